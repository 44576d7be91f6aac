"""Is a caption about something that can be heard? By a classifier that guides nothing."""

from __future__ import annotations

from captioners.metrics.base import CaptionSet, MetricResult, mean_of, metric, needed


@metric("audibility")
def audibility(rows: CaptionSet) -> list[MetricResult]:
    """The share of captions that the classifier calls audible."""
    classifier = needed(rows.audibility)
    yes = classifier.probability(rows.captions) > 0.5
    return [mean_of("audibility", yes.float().cpu().numpy(), rows, classifier.name)]
