"""Intervals for figures about votes, which are alike when they come from one rater or are about one input."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

RESAMPLES = 500
Z = NormalDist().inv_cdf(0.975)


def wilson(wins: float, of: float) -> tuple[float, float] | None:
    """Wilson's 95 % interval of a proportion of independent votes."""
    if not of:
        return None
    rate, z2 = wins / of, Z**2 / of
    middle, half = (rate + z2 / 2) / (1 + z2), Z * math.sqrt(rate * (1 - rate) / of + z2 / (4 * of)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def two_way(
    columns: np.ndarray,
    items: np.ndarray,
    raters: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray | None]:
    """A statistic of column sums, and how far its 95 % interval reaches to either side.

    `columns` (votes, c); `statistic` (…, c) → (…, m). Votes share their item's and their rater's taste, so the variance
    is that of resampled items plus that of resampled raters minus that of resampled votes, which both contain (Cameron,
    Gelbach and Miller's two-way clusters). Resampling both at once would count the votes' own noise three times. None
    instead of a reach where there are not two items and two raters to compare.
    """
    estimate, rng = statistic(columns.sum(0)), np.random.default_rng(seed)
    fewest = min(len(np.unique(items)), len(np.unique(raters)))
    if fewest < 2:
        return estimate, None

    def variance(owner: np.ndarray) -> np.ndarray:
        names, owner = np.unique(owner, return_inverse=True)
        sums = np.stack([np.bincount(owner, column, minlength=len(names)) for column in columns.T], axis=1)
        draws = np.stack(
            [
                np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names)) @ sums
                for _ in range(resamples)
            ]
        )
        variances: np.ndarray = np.nanvar(statistic(draws), axis=0) * len(names) / (len(names) - 1)
        return variances

    of_items, of_raters, of_votes = variance(items), variance(raters), variance(np.arange(len(columns)))
    total = np.maximum(of_items + of_raters - of_votes, np.maximum(of_items, of_raters))
    return estimate, student(fewest - 1) * np.sqrt(total)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t by its expansion in 1/freedom; exact up to 3, where that does not hold."""
    if freedom <= 3:
        return (12.706, 4.303, 3.182)[freedom - 1]
    z, n = Z, freedom
    return (
        z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )  # fmt: skip
