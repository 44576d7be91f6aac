"""Judges take no part in a method: nothing that a method holds, after it has captioned, leads to a judge."""

import contextlib
import functools
import gc
import sys
import types
import weakref

import pytest
import torch
from tiny_hub import save_all

from captioners import registry
from captioners.captioner import Captioner
from captioners.profiles.base import ProfileError, load_profile
from captioners.profiles.embedded import (
    EmbeddedClassifier,
    EmbeddedFluency,
    EmbeddedJudges,
    EmbeddedMatcher,
    PartLoader,
)
from captioners.profiles.hub.judges import HubJudges
from captioners.profiles.hub.matchers import ClapMatcher, ClipMatcher
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.texts import Gpt2Fluency
from captioners.profiles.store import MissingPart

METHODS = [spec.id for spec in registry.available()]


def is_judge(thing: object, modules: set[int]) -> bool:
    """A judge, a module that one of them uses, or a loader that holds a judge's part."""
    if id(thing) in modules or isinstance(thing, EmbeddedJudges | EmbeddedFluency | HubJudges | Gpt2Fluency):
        return True
    if isinstance(thing, ModelLoader):
        return any("judge" in role for role in (*thing.sources, *thing.loaded))
    if isinstance(thing, ClipMatcher | ClapMatcher):
        return "judge" in thing.name
    if isinstance(thing, PartLoader):
        return any("judge" in part for part in thing.modules)
    return isinstance(thing, EmbeddedMatcher | EmbeddedClassifier) and "judge" in thing.name


def referents(thing: object) -> list[object]:
    """What an object leads to: attributes, containers, closures, bound methods, caches, suspended generators.

    Modules, other packages' classes and a function's globals are left out: from there everything leads everywhere.
    The globals of a method's own module are roots of the walk instead.
    """
    match thing:
        case types.ModuleType() | torch.Tensor() | str() | bytes() | int() | float():
            return []
        case type():
            return list(vars(thing).values()) if thing.__module__.startswith("captioners.methods.") else []
        case types.FunctionType():
            return [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
        case types.GeneratorType():
            return [thing.gi_frame.f_locals] if thing.gi_frame else []
        case weakref.ref():
            return [thing()]
    return gc.get_referents(thing)


def path_to_judge(adapter: Captioner, modules: set[int]) -> str | None:
    """How the adapter reaches a judge, as the types on the way, or None."""
    home = (
        vars(sys.modules[type(adapter).__module__])
        if type(adapter).__module__.startswith("captioners.methods.")
        else {}
    )
    queue = [(root, type(root).__name__) for root in (adapter, type(adapter), *home.values())]
    seen: dict[int, object] = {}  # keeps what it has seen alive, so that no id is used twice
    while queue:
        thing, path = queue.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if is_judge(thing, modules):
            return path
        queue += [(found, f"{path} → {type(found).__name__}") for found in referents(thing)]
    return None


@pytest.fixture(scope="module")
def judge_modules(embedded) -> set[int]:
    """Identities of every module and weight that the judges use."""
    judges = embedded.judges
    for load in (lambda: judges.matcher("image"), lambda: judges.matcher("audio"), judges.fluency, judges.audibility):
        with contextlib.suppress(MissingPart):
            load()
    return {id(thing) for net in judges.loader.modules.values() for thing in (*net.modules(), *net.parameters())}


@pytest.mark.parametrize("name", METHODS)
def test_no_method_reaches_a_judge(name, embedded, judge_modules, picture, sound):
    method = registry.load(name, embedded)
    busy = {"num_candidates": 2, "lm_weight": 0.5, "max_tokens": 4}
    settings = method.spec.settings(**{k: v for k, v in busy.items() if method.spec.listens_to(k)})
    for media in (picture, sound):
        if media.kind in method.spec.modalities:
            assert method.caption(media, settings).caption is not None
    assert path_to_judge(method, judge_modules) is None


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    return load_profile("hub", "cpu", str(save_all(tmp_path_factory.mktemp("hub-judges") / "models")))


@pytest.mark.parametrize("name", METHODS)
def test_no_method_of_the_hub_profile_reaches_a_judge(name, hub, picture, sound):
    judges = hub.judges
    loaded = [judges.matcher("image").net, judges.matcher("audio").net, judges.fluency().net]
    modules = {id(thing) for net in loaded for thing in (*net.modules(), *net.parameters())}
    method = registry.load(name, hub)
    brief = {"num_candidates": 2, "lm_weight": 0.5, "max_tokens": 4, "num_steps": 5, "top_k": 8}
    settings = method.spec.settings(**{k: v for k, v in brief.items() if method.spec.listens_to(k)})
    for media in (picture, sound):
        with contextlib.suppress(ProfileError):  # CoCa knows no sound
            assert method.caption(media, settings).caption is not None
    assert path_to_judge(method, modules) is None
    method.helper = {"a": [judges.matcher("audio")]}
    assert path_to_judge(method, modules)


class Clean(Captioner):
    """Holds nothing yet."""

    __module__ = "captioners.methods.planted"
    spec = None

    def decode(self, media, settings, live):
        yield []


def _attribute(adapter, judge):
    adapter.helper = types.SimpleNamespace(inner=judge)


def _containers(adapter, judge):
    adapter.helpers = {"a": [({"b": judge},)]}


def _closure(adapter, judge):
    adapter.score = lambda text: judge.fluency().log_likelihood([text])


def _default(adapter, judge):
    def score(text, using=judge):
        return using

    adapter.score = score


def _bound_method(adapter, judge):
    adapter.score = judge.matcher


def _partial(adapter, judge):
    adapter.score = functools.partial(print, judge)


def _cache(adapter, judge):
    box = [judge]
    adapter.find = functools.lru_cache(lambda kind: box.pop())
    adapter.find("image")


def _generator(adapter, judge):
    def running():
        held = judge
        yield
        yield held

    adapter.work = running()
    next(adapter.work)


def _weak_reference(adapter, judge):
    adapter.helper = weakref.ref(judge)


def _net(adapter, judge):
    adapter.net = judge.matcher("image").net.text.blocks


def _matcher(adapter, judge):
    adapter.ranker = judge.matcher("audio")


def _shelf(adapter, judge):
    adapter.loader = PartLoader("cpu")
    adapter.loader.modules["fluency-judge"] = torch.nn.Identity()


def _class_attribute(adapter, judge):
    type(adapter).helper = judge


def _module_global(adapter, judge):
    sys.modules["captioners.methods.planted"].HELPER = judge


@pytest.mark.parametrize(
    "plant",
    [
        _attribute,
        _containers,
        _closure,
        _default,
        _bound_method,
        _partial,
        _cache,
        _generator,
        _weak_reference,
        _net,
        _matcher,
        _shelf,
        _class_attribute,
        _module_global,
    ],
)
def test_a_planted_judge_is_found(plant, embedded, judge_modules, monkeypatch):
    monkeypatch.setitem(sys.modules, "captioners.methods.planted", types.ModuleType("captioners.methods.planted"))
    adapter = type("Planted", (Clean,), {"__module__": Clean.__module__})(embedded.models)
    assert path_to_judge(adapter, judge_modules) is None
    plant(adapter, embedded.judges)
    assert path_to_judge(adapter, judge_modules)
