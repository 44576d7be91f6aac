"""What every metric takes and gives: a `CaptionSet` in, `MetricResult`s out, found through `@metric`.

A metric says what it needs besides captions; `measure` runs those whose needs are met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from captioners.metrics.bootstrap import Resampler

if TYPE_CHECKING:
    from captioners.contract import FluencyJudge, Matcher, TextJudge, YesNoClassifier

Given = TypeVar("Given")
Gains = dict[str, tuple[float, int]]  # class of words → log p(word|input) − log p(word) summed over its words, how many
# of a word that names a boxed object: does its strongest cell lie in a box; chance; the middle cell
Point = tuple[float, float, float]
Need = Literal[
    "references", "media", "fluency", "categories", "objects", "texts", "audibility", "candidates", "gains", "points"
]
# in the order in which results are listed
MODULES = (
    *("matching", "naming", "objects", "ngram", "meteor", "bertscore"),  # against the input and the references
    *("diversity", "fluency", "audibility", "word_classes", "pointing"),  # of the captions and their traces
)


@dataclass(frozen=True, eq=False)
class CaptionSet:
    """Captions to be measured. Media ids may repeat: several captions of one picture are several rows."""

    ids: list[str]
    captions: list[str]
    references: list[list[str]] | None = None  # at least one caption for every row
    matcher: Matcher | None = None
    media: np.ndarray | None = None  # (n, d): the matcher's vector of each row's media
    fluency: FluencyJudge | None = None
    categories: list[str] | None = None  # the class of each row's clip
    objects: list[tuple[str, ...]] | None = None  # what was boxed in each row's picture, the largest first
    texts: TextJudge | None = None
    audibility: YesNoClassifier | None = None
    candidates: list[list[str]] | None = None  # all finished captions of each row's media, where there are several
    gains: list[Gains] | None = None  # what the condition added to each row's words
    points: list[list[Point]] | None = None  # where each row's words for boxed objects come from

    @cached_property
    def resampler(self) -> Resampler:
        """The resampler that confidence intervals are made with."""
        return Resampler(self.ids)

    def has(self, need: Need) -> bool:
        """Whether a metric with that need can run."""
        return getattr(self, need) is not None


@dataclass(frozen=True)
class MetricResult:
    """One number about a set of captions, its 95 % interval, and one value per row where there is such a thing."""

    name: str
    mean: float
    low: float
    high: float
    items: list[float] | None = None
    encoder: str = ""  # the judge that it came from


Metric = Callable[[CaptionSet], list[MetricResult]]
_METRICS: dict[Metric, tuple[Need, ...]] = {}


def metric(*needs: Need) -> Callable[[Metric], Metric]:
    """Decorator: makes a metric known to `measure`."""

    def add(function: Metric) -> Metric:
        _METRICS[function] = needs
        return function

    return add


def needed(value: Given | None) -> Given:
    """What a metric has declared to need: `measure` runs it only where it is there."""
    if value is None:
        raise ValueError("This metric was asked without what it needs: run it through `measure`.")
    return value


def measure(rows: CaptionSet) -> dict[str, MetricResult]:
    """Every metric that applies to these rows, by name."""
    for module in MODULES:
        import_module(f"captioners.metrics.{module}")
    able = [function for function, needs in _METRICS.items() if all(map(rows.has, needs))]
    able.sort(key=lambda function: MODULES.index(function.__module__.rpartition(".")[2]))
    results = [result for function in able for result in function(rows)]
    return {r.name: r for r in results}


def mean_of(name: str, values: Sequence[float] | np.ndarray, rows: CaptionSet, encoder: str = "") -> MetricResult:
    """A metric that is a mean over rows."""
    values = np.asarray(values, dtype=np.float64)
    return MetricResult(name, float(values.mean()), *rows.resampler.mean(values), values.tolist(), encoder)
