"""What one process does with one batch of files: decode, embed for the judge, caption in every planned run."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from captioners.attribution import attribute
from captioners.evaluation.dataset import Box, Item, load_item
from captioners.lab import Lab
from captioners.metrics.base import Gains, Point
from captioners.metrics.matching import embed_media
from captioners.metrics.pointing import points
from captioners.metrics.word_classes import gains_by_class
from captioners.types import CaptionLabError, Media, Result, Settings


@dataclass(frozen=True)
class Plan:
    """The runs that every item goes through."""

    runs: tuple[tuple[str, Settings], ...]  # method and settings
    traced: bool = False  # whether the words' traces are read
    pointing: bool = False  # whether it is found out where words for boxed objects come from


@dataclass(frozen=True)
class CaptionRecord:
    """What one run said of one item."""

    caption: str
    candidates: tuple[str, ...] = ()  # all of them where there are several, the best first
    gains: Gains | None = None  # what the condition added to its words, by class, where traces are read
    points: list[Point] | None = None  # where its words for boxed objects come from, where that was asked


@dataclass(frozen=True)
class BatchResult:
    """What came of one batch of items."""

    ids: list[str]  # of the items that could be read
    captions: list[list[CaptionRecord]]  # of each run, in the order of `ids`
    seconds: list[float]  # of each run
    vectors: np.ndarray | None  # (ids, d), the judging matcher's
    failed: dict[str, str] = field(default_factory=dict)  # id → reason
    weights: dict[str, str] = field(default_factory=dict)  # part → hash, of all that was read for it

    def __json__(self) -> dict[str, Any]:
        vectors = None if self.vectors is None else base64.b64encode(np.float32(self.vectors).tobytes()).decode()
        captions = [[[c.caption, list(c.candidates), c.gains, c.points] for c in run] for run in self.captions]
        return {**vars(self), "captions": captions, "vectors": vectors}

    @classmethod
    def __from_json__(cls, value: dict[str, Any]) -> BatchResult:
        ids, vectors = value["ids"], value["vectors"]
        if vectors is not None:
            vectors = np.frombuffer(base64.b64decode(vectors), np.float32).reshape(len(ids), -1)
        captions = [
            [CaptionRecord(caption, tuple(candidates), *rest) for caption, candidates, *rest in run]
            for run in value["captions"]
        ]
        return cls(**{**value, "captions": captions, "vectors": vectors})


class Worker:
    """A lab with the planned methods, loaded once."""

    def __init__(self, lab: Lab, plan: Plan) -> None:
        self.lab, self.plan = lab, plan
        self.boxes: dict[str, Mapping[str, tuple[Box, ...]]] = {}  # of every item that was read
        for name, _ in plan.runs:
            lab.method(name)

    def read(self, items: Sequence[Item]) -> dict[str, Media | CaptionLabError]:
        """Each item's media, or why not; on several threads, because some formats are decoded in a process of their
        own.
        """

        def load(item: Item) -> Media | CaptionLabError:
            try:
                return load_item(item)
            except CaptionLabError as error:
                return error

        self.boxes |= {item.id: item.boxes for item in items}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(zip((item.id for item in items), pool.map(load, items), strict=True))

    def caption(self, read: dict[str, Media | CaptionLabError]) -> BatchResult:
        """Caption what could be read, in every planned run."""
        media = {name: m for name, m in read.items() if isinstance(m, Media)}
        inputs = list(media.values())
        matcher = self.lab.judges(inputs[0].kind).matcher if inputs else None
        vectors = embed_media(matcher, inputs) if matcher else None
        captions: list[list[CaptionRecord]] = []
        seconds: list[float] = []
        weights = {"matcher": matcher.name} if matcher else {}
        for method, settings in self.plan.runs:
            started = time.perf_counter()
            run_settings = settings if self.plan.traced or self.plan.pointing else settings.untraced()
            # the whole set is measured at once
            results = self.lab.results(inputs, method, [run_settings] * len(inputs), scored=False)
            seconds.append(time.perf_counter() - started)
            captions.append(
                [self._record(name, m, result) for (name, m), result in zip(media.items(), results, strict=True)]
            )
            weights |= {part: digest for result in results for part, digest in result.weights.items()}
        failed = {name: str(error) for name, error in read.items() if name not in media}
        return BatchResult(list(media), captions, seconds, vectors, failed, weights)

    def _record(self, name: str, media: Media, result: Result) -> CaptionRecord:
        several = tuple(c.caption for c in result.candidates) if len(result.candidates) > 1 else ()
        gains = gains_by_class(result.trace) if self.plan.traced else None
        attribution = attribute(self.lab.method(result.method), media, result) if self.plan.pointing else None
        return CaptionRecord(
            result.caption, several, gains, points(attribution, self.boxes[name]) if attribution else None
        )
