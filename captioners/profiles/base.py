"""What a profile offers, split in two: `Players`, which methods may use, and `Judges`, which only ever score.

`load_profile(name)` gives both; a method is handed the players alone, so none can flatter itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from captioners.allocator import keep_freed_memory
from captioners.types import CaptionLabError, Media, Modality

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

PROFILES = ("embedded", "hub")


class ProfileError(CaptionLabError):
    """A profile or a model in it that cannot be had; the text says what to do."""


@dataclass(frozen=True)
class Calibration:
    """Where on a matcher's own scale random and human captions lie: means of CLIPScore on the development split."""

    random: float
    human: float

    def place(self, score: float) -> float:
        """0 at the level of random captions, 1 at that of human ones."""
        return (score - self.random) / (self.human - self.random)


class Matcher(Protocol):
    """Media and text in one space. The vectors are of unit length."""

    name: str  # shown beside every number that came from it
    prompt: str  # put before a caption that is scored ("A photo depicts " for CLIP)
    calibration: Calibration | None

    def embed_media(self, media: list[Media]) -> Tensor: ...  # (n, d)
    def embed_text(self, texts: list[str]) -> Tensor: ...  # (n, d), without the prompt: callers add it


class FluencyJudge(Protocol):
    """A language model that only judges."""

    name: str
    human: Mapping[Modality, float]  # perplexity of people's captions, where it was measured

    def log_likelihood(self, texts: list[str]) -> list[float]: ...  # nats, the end of the sentence included


class AudibilityJudge(Protocol):
    """A text classifier that only judges."""

    name: str

    def probability(self, texts: list[str]) -> Tensor: ...  # (n,): that the sentence is about something audible


class Judges(Protocol):
    """Everything that may score and never play."""

    def matcher(self, kind: Modality) -> Matcher: ...
    def fluency(self) -> FluencyJudge: ...
    def audibility(self) -> AudibilityJudge: ...


@dataclass(frozen=True)
class Profile:
    """One source of weights."""

    name: str
    players: object  # what methods are handed: see embedded.Players
    judges: Judges
    seats: Mapping[str, object] = field(default_factory=dict)  # method id → players of its own, where models have different vocabularies
    status: Callable[[], str] = lambda: ""  # what is being loaded right now, in words
    load: Callable[[], None] = lambda: None  # reads all that methods use, which otherwise is read when first used

    def players_for(self, method: str) -> object:
        """What this method is handed."""
        return self.seats.get(method, self.players)

    def keep_features(self, folder: Path) -> None:
        """The encoders' features are kept in this folder, and taken from it."""
        if not hasattr(self.players, "keep_features"):
            raise ProfileError(f"The {self.name} profile keeps no features on disk: leave --features out.")
        if folder.exists() and not folder.is_dir():
            raise ProfileError(f"{folder} is not a folder: give one for the features.")
        self.players.keep_features(folder)


def load_profile(name: str = "embedded", device: str = "auto", models: str | None = None, checkpoints: Sequence[str] = ()) -> Profile:
    """The profile's two sides; weights are read when first used. `checkpoints` of our own training come first, then `models` (hub only)."""
    if name not in PROFILES:
        raise ProfileError(f"There is no profile called {name!r}: choose from {', '.join(PROFILES)}.")
    keep_freed_memory()
    module = import_module(f"captioners.profiles.{name}")
    if name == "hub":
        return module.profile(pick_device(device), models, tuple(checkpoints))
    if models:
        raise ProfileError("The embedded profile has its models in assets/: give --models with `--profile hub`.")
    return module.profile(pick_device(device), tuple(checkpoints))


def pick_device(name: str = "auto") -> str:
    """`auto` → the best device that is there; anything else is checked."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(d for d in ("cuda", "mps", "cpu") if there[d])
    if not there.get(name.split(":")[0]):
        have = ", ".join(d for d, here in there.items() if here)
        raise ProfileError(f"There is no device {name!r} on this machine: choose from auto, {have}.")
    return name
