"""A ZeroGPU Space: models are read before the launch, borrowed time goes to decoding alone, one comparison is one
loan.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import fakes
import pytest
from lent_gpu import LentGpu

from captioners import registry
from captioners.lab import Lab
from captioners.profiles import embedded as embedded_profile
from captioners.profiles.base import load_profile
from captioners.types import CaptionLabError
from captioners.ui.components import knobs
from captioners.ui.components.card_controller import CardController
from captioners.ui.runtime import loans
from captioners.ui.runtime.hosting import gpu_is_lent, on_gpu
from captioners.ui.runtime.loans import Job, loan_seconds
from captioners.ui.runtime.studio import Studio


@pytest.fixture
def lent(monkeypatch) -> LentGpu:
    """This machine is a ZeroGPU Space."""
    gpu = LentGpu()
    monkeypatch.setitem(sys.modules, "spaces", gpu)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    return gpu


@pytest.fixture
def studio(lent, monkeypatch) -> Studio:
    fakes.use_fakes(monkeypatch, fakes.Echo, fakes.Shout, fakes.Mover, Refusing)
    studio = Studio(lambda: Lab(fakes.profile()))
    studio.lab.load()
    return studio


class Refusing(fakes.Echo):
    """Has a sentence for the visitor instead of a caption."""

    spec = fakes.Spec("refusing", "Refusing", "No.", "https://example.org/no", ("image",), fakes.Echo.spec.controls)

    def decode(self, media, settings, live):
        yield []
        raise CaptionLabError("There is not enough memory: choose fewer candidates.")


def compare(studio: Studio, media, *methods: str) -> list:
    """What the cards of a page do: each asks on a thread of its own."""

    def card(name: str) -> list:
        spec = registry.find(name).spec
        *_, last = studio.stream(media, name, [spec.settings(), spec.settings(seed=1)])
        return [step.result.caption for step in last]

    with ThreadPoolExecutor(len(methods)) as cards:
        return list(cards.map(card, methods))


def test_all_cards_of_a_comparison_share_one_loan(studio, lent, picture):
    told = compare(studio, picture, "echo", "shout", "mover")
    assert len(lent.loans) == 1
    assert compare(studio, picture, "echo", "shout", "mover") == told  # known by now: nothing is borrowed
    assert len(lent.loans) == 1
    assert told == [
        [Lab(fakes.profile()).caption(picture, name, registry.find(name).spec.settings(seed=s)).caption for s in (0, 1)]
        for name in ("echo", "shout", "mover")
    ]


def test_a_sentence_for_the_visitor_arrives_and_the_other_cards_go_on(studio, lent, picture):
    answers = list(studio.each(picture, [(name, registry.find(name).spec.settings()) for name in ("refusing", "echo")]))
    assert "choose fewer candidates" in str(answers[0])
    assert answers[1].caption
    assert len(lent.loans) == 1
    with pytest.raises(CaptionLabError, match="choose fewer candidates"):
        studio.results(picture, "refusing", [Refusing.spec.settings()])


def test_what_breaks_in_a_loan_breaks_every_card_instead_of_leaving_it_waiting(studio, monkeypatch, picture):
    monkeypatch.setattr(fakes.Echo, "decode", lambda *_: {}["broken"])
    with pytest.raises(RuntimeError, match="KeyError"):
        studio.results(picture, "echo", [fakes.Echo.spec.settings()])


def test_nothing_is_computed_ahead_or_before_anybody_asks(studio, lent, picture):
    studio.prefetch(picture)
    assert list(studio.ahead(picture, "echo", [fakes.Echo.spec.settings(seed=5)])) == []
    player = CardController(studio, fakes.Echo.spec, knobs.front_controls([fakes.Echo.spec]))
    assert lent.loans == []
    assert player.studio.lent


def test_the_time_that_is_asked_for_is_made_from_the_request(picture):
    def seconds(name: str, **values) -> int:
        return loan_seconds([Job(picture, name, [registry.find(name).spec.settings(**values)])])

    assert seconds("cfg", max_tokens=5) < seconds("cfg", max_tokens=40) < seconds("classifier", num_steps=20)
    assert seconds("prefix-diffusion", num_steps=10) < seconds("prefix-diffusion", num_steps=200)
    assert seconds("cfg", num_candidates=64) > seconds("cfg", num_candidates=1)
    assert seconds("prefix-diffusion", num_steps=1000, num_candidates=64) == loans.LONGEST
    everything = [Job(picture, spec.id, [spec.settings()] * 2) for spec in registry.available()]
    assert loan_seconds(everything) < 60  # less than one loan of the default length


def test_models_are_read_once_before_the_launch_and_found_by_every_loan(
    lent, monkeypatch, picture, tmp_path, one_thread
):
    """Reading is counted in a file, because what a forked process remembers is lost."""
    log, load_into = tmp_path / "read.txt", embedded_profile.load_into

    def counted(module, path: Path):
        with log.open("a") as file:
            file.write(f"{os.getpid()} {path.stem}\n")
        return load_into(module, path)

    monkeypatch.setattr(embedded_profile, "load_into", counted)
    studio = Studio(lambda: Lab(load_profile("embedded", "cpu")))
    studio.lab.load()
    read = log.read_text().splitlines()
    assert {int(line.split()[0]) for line in read} == {os.getpid()}
    assert len(read) == len(set(read)) + 1  # the audio encoder: once for the methods, once for the judges
    for seed in (0, 1):  # two loans: another process each time
        for spec in registry.available():
            brief = {
                c.name: max(c.low, 2) for c in spec.controls if c.name in ("max_tokens", "num_steps", "num_candidates")
            }
            (result,) = studio.results(picture, spec.id, [spec.settings(seed=seed, **brief)])
            assert result.scores["clipscore"].value
    assert len(lent.loans) == 2 * len(registry.available())
    assert log.read_text().splitlines() == read


@pytest.mark.parametrize(("value", "is_lent"), [(None, False), ("", False), ("0", False), ("1", True), ("true", True)])
def test_the_host_says_that_its_gpu_is_lent_and_the_package_does_not(monkeypatch, value, is_lent):
    monkeypatch.setitem(sys.modules, "spaces", SimpleNamespace(GPU=lambda **_: lambda function: "borrowed"))
    monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    if value is not None:
        monkeypatch.setenv("SPACES_ZERO_GPU", value)
    assert gpu_is_lent() == is_lent
    assert (on_gpu(len, lambda *_: 1) == "borrowed") == is_lent


def test_a_visitor_who_leaves_ends_the_loan(lent, monkeypatch, picture):
    fakes.use_fakes(monkeypatch, fakes.Mover)
    studio = Studio(lambda: Lab(fakes.profile()))
    moments = studio.stream(picture, "mover", [fakes.Mover.spec.settings()])
    next(moments)
    moments.close()
    assert studio.known(picture, "mover", [fakes.Mover.spec.settings()]) is None
