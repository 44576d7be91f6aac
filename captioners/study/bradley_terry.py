"""Strengths of systems from paired votes: the Bradley–Terry model, with Davidson's ties.

    P(a wins) ∝ exp(d/2),  P(b wins) ∝ exp(−d/2),  P(neither) ∝ ν,   d = strength a − strength b

ν is fitted too; without ties this is Bradley and Terry's own model, and d is the log-odds of a's victory.
"""

from __future__ import annotations

import numpy as np

PRIOR = 1 / 25  # a normal prior of standard deviation 5 keeps a system that won every vote finite
ITERATIONS, LONGEST, CLOSE = 50, 2.0, 1e-9  # Newton's steps, how far one may go, and when it has arrived


def fit(counts: np.ndarray, pairs: np.ndarray, systems: int) -> np.ndarray:
    """Strengths (…, systems), their mean 0 among systems that are connected by votes.

    `counts` (…, pairs, 3): how often a won, b won, neither; `pairs` (pairs, 2): who a and b are.
    """
    shape, counts = counts.shape[:-2], counts.reshape(-1, len(pairs), 3).astype(float)
    ties = bool(counts[..., 2].any())
    sides = np.zeros((len(pairs), systems))  # d = sides @ strengths
    sides[np.arange(len(pairs)), pairs[:, 0]] += 1
    sides[np.arange(len(pairs)), pairs[:, 1]] -= 1
    size = systems + ties
    total, x = counts.sum(-1), np.zeros((len(counts), size))
    for _ in range(ITERATIONS):
        d = x[:, :systems] @ sides.T  # (b, pairs)
        weights = np.stack([np.exp(d / 2), np.exp(-d / 2), np.exp(x[:, systems:]) + 0 * d if ties else 0 * d], axis=-1)
        p = weights / weights.sum(-1, keepdims=True)
        lead = (p[..., 0] - p[..., 1]) / 2
        slope, curve = np.empty_like(x), np.zeros((len(x), size, size))
        slope[:, :systems] = ((counts[..., 0] - counts[..., 1]) / 2 - total * lead) @ sides
        of_d = total * ((p[..., 0] + p[..., 1]) / 4 - lead**2)
        curve[:, :systems, :systems] = np.einsum("bp,pi,pj->bij", of_d, sides, sides)
        if ties:
            slope[:, -1] = (counts[..., 2] - total * p[..., 2]).sum(-1)
            curve[:, :systems, -1] = curve[:, -1, :systems] = -(total * lead * p[..., 2]) @ sides
            curve[:, -1, -1] = (total * p[..., 2] * (1 - p[..., 2])).sum(-1)
        curve += PRIOR * np.eye(size)
        step = np.linalg.solve(curve, (slope - PRIOR * x)[..., None])[..., 0]
        longest = np.abs(step).max(-1, keepdims=True, initial=0)
        x += step * np.minimum(1, LONGEST / np.maximum(longest, CLOSE))
        if longest.max(initial=0) < CLOSE:
            break
    return x[:, :systems].reshape(*shape, systems)


def probabilities(d: np.ndarray, nu: float) -> np.ndarray:
    """P(a wins), P(b wins), P(neither) at differences d of strength, on a new last axis."""
    weights = np.stack([np.exp(d / 2), np.exp(-d / 2), np.full_like(d, nu)], axis=-1)
    shares: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return shares
