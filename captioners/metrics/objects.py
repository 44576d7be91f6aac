"""Are the right things named? For pictures whose objects were boxed by people, by a hand-written table of words.

`objects_named` asks for the one thing that a caption should not miss, `objects_right` whether what it says is there
(1 − CHAIRi).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from captioners.metrics.base import CaptionSet, MetricResult, metric, needed
from captioners.metrics.object_words import mentions
from captioners.words import tokenize

PERSON = "person"


def words_of(caption: str) -> list[str]:
    """The caption's words as the table has them: hyphens part words."""
    return tokenize(caption.replace("-", " "))


def main_object(objects: Sequence[str]) -> str | None:
    """The largest object that is not a person, else the person; `objects` has the one with most pixels first."""
    return next((name for name in objects if name != PERSON), objects[0] if objects else None)


def names(caption: str, name: str) -> bool:
    """Whether the caption names this class, if only by a word that may mean it."""
    return any(name in m.names for m in mentions(words_of(caption)))


def said_and_right(caption: str, objects: Sequence[str]) -> tuple[int, int]:
    """How many different objects the caption claims, and how many of those are in the picture."""
    claims = {m.names for m in mentions(words_of(caption)) if m.claims}
    return len(claims), sum(not claim.isdisjoint(objects) for claim in claims)


@metric("objects")
def objects(rows: CaptionSet) -> list[MetricResult]:
    """Both shares; an item has no value where nothing was boxed, or nothing claimed."""
    results = []
    pairs = list(zip(rows.captions, needed(rows.objects), strict=True))
    named = [(int(names(caption, main)), 1) if (main := main_object(boxed)) else (0, 0) for caption, boxed in pairs]
    right = [said_and_right(caption, boxed)[::-1] for caption, boxed in pairs]
    for name, parts in (("objects_named", named), ("objects_right", right)):
        sums = np.array(parts, dtype=np.float64)  # (n, 2): how many are, of how many
        if sums[:, 1].sum():
            low, high = rows.resampler.of_sums(sums, lambda s: s[..., 0] / np.maximum(s[..., 1], 1))
            items = [part / count if count else math.nan for part, count in parts]
            results.append(MetricResult(name, float(sums[:, 0].sum() / sums[:, 1].sum()), low, high, items))
    return results
