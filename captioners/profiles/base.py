"""What a profile offers, split in two: the models that methods may use, and the judges, which only ever score.

`load_profile(name)` gives both; a method is handed the models alone, so none can flatter itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from captioners.allocator import keep_freed_memory
from captioners.contract import Calibration, FluencyJudge, Matcher, MethodModels, TextJudge, YesNoClassifier
from captioners.types import CaptionLabError, Modality

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "PROFILES",
    "Calibration",
    "FluencyJudge",
    "Judges",
    "Matcher",
    "Profile",
    "ProfileError",
    "load_profile",
    "pick_device",
]

PROFILES = ("embedded", "hub", "hub-small")


class ProfileError(CaptionLabError):
    """A profile or a model in it that cannot be had; the text says what to do."""


class Judges(Protocol):
    """Everything that may score and never takes part in a method."""

    def matcher(self, kind: Modality) -> Matcher:
        """CLIPScore's encoder, or its twin for sound."""
        ...

    def fluency(self) -> FluencyJudge:
        """Perplexity's language model."""
        ...

    def audibility(self) -> YesNoClassifier:
        """The classifier behind the share of audible captions."""
        ...

    def texts(self) -> TextJudge | None:
        """BERTScore's encoder, in a profile that has one."""
        ...


@dataclass(frozen=True)
class Profile:
    """One source of weights."""

    name: str
    models: MethodModels  # what methods are handed
    judges: Judges
    # method id → models of its own, where vocabularies differ
    models_by_method: Mapping[str, MethodModels] = field(default_factory=dict)
    status: Callable[[], str] = lambda: ""  # what is being loaded right now, in words
    load: Callable[[], None] = lambda: None  # reads all that methods use, which otherwise is read when first used
    slow: tuple[str, ...] = ()  # methods that nobody should wait for who did not ask

    def models_for(self, method: str) -> MethodModels:
        """What this method is handed."""
        return self.models_by_method.get(method, self.models)

    def keep_features(self, folder: Path) -> None:
        """The encoders' features are kept in this folder, and taken from it."""
        if not hasattr(self.models, "keep_features"):
            raise ProfileError(f"The {self.name} profile keeps no features on disk: leave --features out.")
        if folder.exists() and not folder.is_dir():
            raise ProfileError(f"{folder} is not a folder: give one for the features.")
        for side in (self.models, self.judges):
            keep = getattr(side, "keep_features", None)
            if keep:
                keep(folder)


def load_profile(
    name: str = "embedded", device: str = "auto", models: str | None = None, checkpoints: Sequence[str] = ()
) -> Profile:
    """The profile's two sides; weights are read when first used.

    `checkpoints` of our own training come first, then `models` (hub only).
    """
    if name not in PROFILES:
        raise ProfileError(f"There is no profile called {name!r}: choose from {', '.join(PROFILES)}.")
    keep_freed_memory()
    profile: Profile
    if name != "embedded":
        profile = import_module("captioners.profiles.hub").profile(
            pick_device(device), models, tuple(checkpoints), name=name
        )
    elif models:
        raise ProfileError("The embedded profile has its models in assets/: give --models with `--profile hub`.")
    else:
        profile = import_module("captioners.profiles.embedded").profile(pick_device(device), tuple(checkpoints))
    return profile


def pick_device(name: str = "auto") -> str:
    """`auto` → the best device that is there; anything else is checked."""
    import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(d for d in ("cuda", "mps", "cpu") if available[d])
    if not available.get(name.split(":")[0]):
        choices = ", ".join(d for d, present in available.items() if present)
        raise ProfileError(f"There is no device {name!r} on this machine: choose from auto, {choices}.")
    return name
