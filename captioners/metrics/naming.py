"""Does a caption name the sound? For clips that have a class."""

from __future__ import annotations

from captioners.metrics.base import CaptionSet, MetricResult, mean_of, metric, needed
from captioners.metrics.sound_words import names_sound


@metric("categories")
def naming(rows: CaptionSet) -> list[MetricResult]:
    """The share of captions that name the sound of their clip's class."""
    pairs = zip(needed(rows.categories), rows.captions, strict=True)
    return [mean_of("named", [float(names_sound(category, caption)) for category, caption in pairs], rows)]
