"""The adapter every method implements, and the register that finds them: a method is one file and one decorator."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from captioners.allocator import lacks_memory
from captioners.provenance import noting
from captioners.types import CaptionLabError, Media, Result, Settings, Spec, Step

if TYPE_CHECKING:
    from captioners.profiles.base import Profile


class Captioner(ABC):
    """One guided captioning method. Subclasses write `decode`, the one loop behind a row, a batch and a stream."""

    spec: ClassVar[Spec]

    def __init__(self, players):
        self.players = players

    @abstractmethod
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        """The loop: yields at every moment, so that a caller may stop: one Step per row if `live`, else an empty list.

        The last moment's Steps hold the Results.
        """

    def run(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        """`decode`, whose results name the weights that were used for them; a lack of memory is told in a sentence."""
        try:
            yield from noting(self.decode(media, settings, live))
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            advice = "choose fewer candidates, a smaller --batch, a smaller model with --models FILE, or --device cpu."
            raise CaptionLabError(f"There is not enough memory for what {self.spec.title} was asked: {advice}") from error

    def caption_batch(self, media: Sequence[Media], settings: Sequence[Settings]) -> list[Result]:
        """Rows may differ in everything: media, scales, seeds."""
        if len(media) != len(settings):
            raise ValueError(f"{len(media)} media but {len(settings)} settings")
        if not media:
            return []
        for item in media:
            self.check(item)
        (last,) = deque(self.run(media, settings, live=False), maxlen=1)
        return [step.result for step in last]

    def stream(self, media: Media, settings: Settings) -> Iterator[Step]:
        """The same work for one row, live."""
        self.check(media)
        for (step,) in self.run([media], [settings], live=True):
            yield step

    def caption(self, media: Media, settings: Settings | None = None) -> Result:
        """One caption."""
        return self.caption_batch([media], [settings or self.spec.settings()])[0]

    @classmethod
    def passes(cls, settings: Settings) -> int:
        """About how many passes of its model a caption takes, one behind the other: steps where there are steps, else tokens."""
        return settings.get("num_steps", settings.get("max_tokens", 1))

    @classmethod
    def check(cls, media: Media) -> None:
        """Refuse a modality that the method does not know."""
        if media.kind not in cls.spec.modalities:
            kinds = " or ".join({"image": "a picture", "audio": "a sound clip"}[m] for m in cls.spec.modalities)
            raise CaptionLabError(f"{cls.spec.title} cannot caption this kind of input: give {kinds}.")


_METHODS: dict[str, type[Captioner]] = {}


def register(method: type[Captioner]) -> type[Captioner]:
    """Class decorator: makes a method known under its spec's id."""
    _METHODS[method.spec.id] = method
    return method


def available() -> list[Spec]:
    """The specs of all methods, in a stable order."""
    return [m.spec for m in _methods().values()]


def find(name: str) -> type[Captioner]:
    """The method of that id."""
    methods = _methods()
    if name not in methods:
        raise CaptionLabError(f"There is no method called {name!r}: choose from {', '.join(methods)}.")
    return methods[name]


def load(name: str, profile: str | Profile = "embedded", device: str = "auto") -> Captioner:
    """A method with its weights. Give a loaded Profile to share models between methods."""
    from captioners.profiles.base import load_profile

    method = find(name)
    return method((load_profile(profile, device) if isinstance(profile, str) else profile).players_for(name))


def _methods() -> dict[str, type[Captioner]]:
    import captioners.methods as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _METHODS
