"""What one process does with one batch of files: decode, embed for the judge, caption in every planned run."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from captioners import registry
from captioners.contract import Matcher
from captioners.evaluation.dataset import Item
from captioners.lab import find_judges
from captioners.media import load_media
from captioners.metrics.matching import embed_media
from captioners.metrics.word_classes import Gains, gains_by_class
from captioners.profiles.base import Profile
from captioners.types import CaptionLabError, Media, Modality, Result, Settings


@dataclass(frozen=True)
class Plan:
    """What is done to every item."""

    runs: tuple[tuple[str, Settings], ...]  # method and settings
    traced: bool = False  # whether the words' traces are read


@dataclass(frozen=True)
class Said:
    """One item in one run."""

    caption: str
    candidates: tuple[str, ...] = ()  # all of them where there are several, the best first
    gains: Gains | None = None  # what the condition added to its words, by class, where traces are read


@dataclass(frozen=True)
class Outcome:
    """What came of one batch."""

    ids: list[str]  # of the items that could be read
    said: list[list[Said]]  # of each run, in the order of `ids`
    seconds: list[float]  # of each run
    vectors: np.ndarray | None  # (ids, d), the judging matcher's
    failed: dict[str, str] = field(default_factory=dict)  # id → reason
    weights: dict[str, str] = field(default_factory=dict)  # part → hash, of all that was read for it

    def __json__(self) -> dict[str, Any]:
        vectors = None if self.vectors is None else base64.b64encode(np.float32(self.vectors).tobytes()).decode()
        said = [[[s.caption, list(s.candidates), s.gains] for s in run] for run in self.said]
        return {**vars(self), "said": said, "vectors": vectors}

    @classmethod
    def __from_json__(cls, value: dict[str, Any]) -> Outcome:
        ids, vectors = value["ids"], value["vectors"]
        if vectors is not None:
            vectors = np.frombuffer(base64.b64decode(vectors), np.float32).reshape(len(ids), -1)
        said = [[Said(caption, tuple(candidates), gains) for caption, candidates, gains in run] for run in value["said"]]
        return cls(**{**value, "said": said, "vectors": vectors})


class Worker:
    """A profile with the planned methods, loaded once."""

    def __init__(self, profile: Profile, plan: Plan):
        self.profile, self.plan = profile, plan
        self.methods = {name: registry.load(name, profile) for name, _ in plan.runs}
        self.matchers: dict[Modality, Matcher | None] = {}

    def read(self, items: Sequence[Item]) -> dict[str, Media | CaptionLabError]:
        """Each item's media, or why not; on several threads, because some formats are decoded in a process of their own."""

        def load(item: Item) -> Media | CaptionLabError:
            try:
                return load_media(item.path, item.kind)
            except CaptionLabError as error:
                return error

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(zip((item.id for item in items), pool.map(load, items), strict=True))

    def caption(self, read: dict[str, Media | CaptionLabError]) -> Outcome:
        """The batch's outcome."""
        media = {name: m for name, m in read.items() if isinstance(m, Media)}
        inputs = list(media.values())
        matcher = self._matcher(inputs[0].kind) if inputs else None
        vectors = embed_media(matcher, inputs) if matcher else None
        said, seconds, weights = [], [], {"matcher": matcher.name} if matcher else {}
        for name, settings in self.plan.runs:
            started = time.perf_counter()
            asked = settings if self.plan.traced else settings.untraced()
            results = self.methods[name].caption_batch(inputs, [asked] * len(inputs))
            seconds.append(time.perf_counter() - started)
            said.append([self._said(result) for result in results])
            weights |= {part: name for result in results for part, name in result.weights.items()}
        failed = {name: str(error) for name, error in read.items() if name not in media}
        return Outcome(list(media), said, seconds, vectors, failed, weights)

    def _matcher(self, kind: Modality) -> Matcher | None:
        if kind not in self.matchers:
            self.matchers[kind] = find_judges(self.profile.judges, kind).matcher
        return self.matchers[kind]

    def _said(self, result: Result) -> Said:
        several = tuple(c.caption for c in result.candidates) if len(result.candidates) > 1 else ()
        return Said(result.caption, several, gains_by_class(result.trace) if self.plan.traced else None)
