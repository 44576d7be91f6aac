"""What the condition adds to words that carry content, and to those that hold a sentence together.

log p(word|input) − log p(word), summed over a word's pieces, is what the token plots show; here it is averaged by class
of word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from captioners.metrics.base import CaptionSet, Gains, MetricResult, metric, needed
from captioners.types import TokenTrace
from captioners.words import FUNCTION_WORDS


def word_gains(trace: Sequence[TokenTrace]) -> list[tuple[str, float]]:
    """(word, log p(word|input) − log p(word)) of each word; pieces of one word are put together, punctuation is
    dropped.
    """
    words: list[tuple[str, float]] = []
    for token in trace:
        piece = token.token
        special = piece.startswith("<") and piece.endswith(">")  # the end of the sentence is no word
        if special or not any(c.isalnum() for c in piece):
            continue
        if not words or piece.startswith(" "):
            words.append(("", 0.0))
        text, gain = words[-1]
        words[-1] = (text + piece, gain + (token.cond - token.uncond))
    cleaned = (("".join(c for c in text.lower() if c.isalnum()), gain) for text, gain in words)
    return [(text, gain) for text, gain in cleaned if text and np.isfinite(gain)]


def gains_by_class(trace: Sequence[TokenTrace]) -> Gains:
    """The words of one caption."""
    gains = {"content": (0.0, 0), "function": (0.0, 0)}
    for word, gain in word_gains(trace):
        kind = "function" if word in FUNCTION_WORDS else "content"
        gains[kind] = (gains[kind][0] + gain, gains[kind][1] + 1)
    return gains


@metric("gains")
def gains(rows: CaptionSet) -> list[MetricResult]:
    """The mean over all words of a class; nats."""
    results = []
    for kind in ("content", "function"):
        sums = np.array([g[kind] for g in needed(rows.gains)], dtype=np.float64)  # (n, 2)
        if sums[:, 1].sum():
            low, high = rows.resampler.of_sums(sums, lambda s: s[..., 0] / np.maximum(s[..., 1], 1))
            results.append(MetricResult(f"gain-{kind}", float(sums[:, 0].sum() / sums[:, 1].sum()), low, high))
    return results
