"""What an evaluation found, as data: what `evaluate --json` and `sweep --json` write and `compare-runs` reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from captioners.contract import Calibration
from captioners.types import to_json

PEOPLE = "people"  # the name of the run of people's own captions


@dataclass(frozen=True)
class Interval:
    """A metric over a set of captions, with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class ItemReport:
    """One caption and its scores."""

    id: str
    caption: str
    scores: dict[str, float]
    candidates: tuple[str, ...] = ()  # all of them where there are several, the best first

    def __json__(self) -> dict[str, Any]:
        several = {"candidates": list(self.candidates)} if self.candidates else {}
        return {"id": self.id, "caption": self.caption, **several, "scores": to_json(self.scores)}


@dataclass(frozen=True)
class FailedItem:
    """An item that could not be read."""

    id: str
    reason: str


@dataclass(frozen=True)
class RunReport:
    """One method with one set of settings over the data set."""

    method: str
    settings: dict[str, Any]
    n: int
    metrics: dict[str, Interval]
    items: list[ItemReport]
    profile: str = ""
    encoders: dict[str, str] = field(default_factory=dict)  # metric → the judge that it came from
    calibration: Calibration | None = None  # of CLIPScore, where it was measured
    seconds: float = 0.0
    failed: list[FailedItem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    label: str = ""  # of a run that was read from a file

    def __json__(self) -> dict[str, Any]:
        fields = (
            "method",
            "settings",
            "profile",
            "n",
            "metrics",
            "encoders",
            "calibration",
            "seconds",
            "failed",
            "notes",
        )
        return {name: to_json(getattr(self, name)) for name in (*fields, "items")}


@dataclass(frozen=True)
class Report:
    """All runs over one data set."""

    dataset: str
    split: str | None
    runs: list[RunReport]
    command: str = ""  # the command line that made it
    people: RunReport | None = None  # people's own captions: each item's first reference, measured against the others

    def __json__(self) -> dict[str, Any]:
        command = {"command": self.command} if self.command else {}
        people = {"people": to_json(self.people)} if self.people else {}
        return {**command, "dataset": self.dataset, "split": self.split, "runs": to_json(self.runs), **people}

    @property
    def rows(self) -> list[RunReport]:
        """What a table shows: the methods' runs, then people's where it was measured."""
        return [*self.runs, *([self.people] if self.people else [])]
