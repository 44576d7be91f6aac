"""95 % confidence intervals by resampling media: captions of one picture or clip are drawn together.

Counts of distinct things have a jackknife instead: a resample repeats captions, which says nothing of new words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 1000


class Resampler:
    """Which media stand how often in each resample; drawn once, so that all metrics of a run share the resamples."""

    def __init__(self, ids: Sequence[str], resamples: int = RESAMPLES, seed: int = 0):
        names = {name: i for i, name in enumerate(dict.fromkeys(ids))}
        self.owner = np.array([names[name] for name in ids])  # row → media
        draws = np.random.default_rng(seed).integers(len(names), size=(resamples, len(names)))
        draws += len(names) * np.arange(resamples)[:, None]
        counts = np.bincount(draws.ravel(), minlength=resamples * len(names))
        self.counts = counts.reshape(resamples, len(names)).astype(np.float32)

    def mean(self, values: np.ndarray) -> tuple[float, float]:
        """The interval of a mean over rows."""
        values = np.asarray(values, dtype=np.float64)
        return self.of_sums(np.stack([values, np.ones_like(values)], axis=1), lambda sums: sums[..., 0] / sums[..., 1])

    def of_sums(self, columns: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
        """The interval of a statistic of column sums: `columns` (rows, c), `statistic` (…, c) → (…)."""
        by_media = np.stack([np.bincount(self.owner, column) for column in columns.T], axis=1)
        return _interval(statistic(self.counts @ by_media), float(statistic(columns.sum(0))))


def jackknife(value: float, without: np.ndarray) -> tuple[float, float]:
    """The interval of a statistic from what it would be `without` each of the media: ±1.96 standard errors.

    On disjoint sets of 500 Flickr8k captions the vocabulary varies by ±50 words: this says ±52, the bootstrap ±33.
    """
    spread = 1.96 * np.sqrt(max(len(without) - 1, 0) * np.var(without))
    return float(value - spread), float(value + spread)


def _interval(resampled: np.ndarray, value: float) -> tuple[float, float]:
    low, high = np.percentile(resampled, (2.5, 97.5))
    return float(min(low, value)), float(max(high, value))
