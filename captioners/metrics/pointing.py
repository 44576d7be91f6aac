"""The pointing game: does a word that names a boxed object come from inside one of its boxes?

`pointing` is the share of such words whose strongest cell has its centre in a box; `pointing_chance` is what a cell
drawn at random would reach, the boxes' share of the picture, and `pointing_centre` what the middle cell does, because
photographers put things there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from captioners.metrics.base import CaptionSet, MetricResult, Point, metric, needed
from captioners.metrics.object_words import mentions

if TYPE_CHECKING:
    from captioners.attribution import Attribution

Boxes = Sequence[tuple[float, float, float, float]]  # left, top, width, height as shares of the picture
FINE = 100  # points a side on which the boxes' share is counted


def covered(boxes: Boxes, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which points (…) lie in one of the boxes."""
    inside = np.zeros(np.broadcast(x, y).shape, dtype=bool)
    for left, top, width, height in boxes:
        inside |= (x >= left) & (x <= left + width) & (y >= top) & (y <= top + height)
    return inside


def points(attribution: Attribution, boxes: Mapping[str, Boxes]) -> list[Point]:
    """One for each expression of the caption that names a boxed object, its words' cells added up."""
    rows, columns = attribution.shape
    spelled = ["".join(c for c in word.word.lower() if c.isalnum()) for word in attribution.words]
    shares = (np.arange(FINE) + 0.5) / FINE
    points_of_words = []
    for mention in mentions(spelled):
        own = [box for name in sorted(mention.names) for box in boxes.get(name, ())]
        if not (mention.claims and own):
            continue
        cells = np.sum([word.cells for word in attribution.words[mention.start : mention.end]], axis=0)
        row, column = divmod(int(cells.argmax()), columns)
        hit = covered(own, np.array((column + 0.5) / columns), np.array((row + 0.5) / rows))
        centre = covered(own, np.array(0.5), np.array(0.5))
        points_of_words.append((float(hit), float(covered(own, shares, shares[:, None]).mean()), float(centre)))
    return points_of_words


@metric("points")
def pointing(rows: CaptionSet) -> list[MetricResult]:
    """Means over words, not over pictures; an item has no value where no boxed object was named."""
    sums = np.array(
        [[*np.sum(of_item, axis=0), len(of_item)] if of_item else [0.0] * 4 for of_item in needed(rows.points)]
    )  # (n, 4)
    if not sums[:, 3].sum():
        return []
    results = []
    for column, name in enumerate(("pointing", "pointing_chance", "pointing_centre")):
        low, high = rows.resampler.of_sums(sums[:, [column, 3]], lambda s: s[..., 0] / np.maximum(s[..., 1], 1))
        items = [float(part / count) if count else float("nan") for part, count in sums[:, [column, 3]]]
        results.append(MetricResult(name, float(sums[:, column].sum() / sums[:, 3].sum()), low, high, items))
    return results
