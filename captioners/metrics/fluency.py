"""Perplexity per word under a language model that only judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from captioners.metrics.base import CaptionSet, MetricResult, metric, needed
from captioners.words import count_words

if TYPE_CHECKING:
    from captioners.contract import FluencyJudge

BATCH = 256


def log_perplexity(judge: FluencyJudge, captions: Sequence[str]) -> np.ndarray:
    """−log likelihood / (words + 1) of each caption: the end of the sentence counts as a word."""
    likelihoods = [
        value for i in range(0, len(captions), BATCH) for value in judge.log_likelihood(list(captions[i : i + BATCH]))
    ]
    logs: np.ndarray = -np.array(likelihoods, dtype=np.float64) / np.array([count_words(c) + 1 for c in captions])
    return logs


@metric("fluency")
def perplexity(rows: CaptionSet) -> list[MetricResult]:
    """exp of the above; the mean over a set is the geometric one, so that one broken caption does not drown the
    others.
    """
    judge = needed(rows.fluency)
    logs = log_perplexity(judge, rows.captions)
    mean, low, high = np.exp([logs.mean(), *rows.resampler.mean(logs)]).tolist()
    return [MetricResult("perplexity", mean, low, high, np.exp(logs).tolist(), judge.name)]
