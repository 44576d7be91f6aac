"""Does a caption name the sound? For clips that have a class."""

from __future__ import annotations

from captioners.metrics.base import CaptionSet, MetricResult, mean_of, metric
from captioners.metrics.sound_words import names_sound


@metric("categories")
def naming(rows: CaptionSet) -> list[MetricResult]:
    """The share of captions that name the sound of their clip's class."""
    return [
        mean_of(
            "named", [float(names_sound(c, text)) for c, text in zip(rows.categories, rows.captions, strict=True)], rows
        )
    ]
