"""The colour of a word: how much more likely the input made it. Purple–orange, which the colour-blind can tell apart."""

from __future__ import annotations

import math

ORANGE, PURPLE = (230, 97, 1), (94, 60, 153)
FULL = 4.0  # nats of |cond − uncond| at which a tint is strongest
STRONGEST = 0.6  # opacity, so that the text stays readable on light and dark pages


def tint(difference: float) -> str:
    """cond − uncond in nats → a CSS colour; nothing known is no tint."""
    if not math.isfinite(difference):
        return "transparent"
    r, g, b = ORANGE if difference > 0 else PURPLE
    return f"rgba({r},{g},{b},{STRONGEST * min(abs(difference) / FULL, 1):.2f})"


def legend() -> str:
    """The scale in words and colour."""
    steps = "".join(f'<i style="background:{tint(d)}"></i>' for d in (-4, -2, -1, 0, 1, 2, 4))
    return (
        '<p class="cl-legend">Words are tinted by log p(word | input) − log p(word): '
        f'<span>said anyway</span><span class="cl-scale" aria-hidden="true">{steps}</span><span>said because of the input</span>'
        f" (full colour at {FULL:g} nats). Click a word to fork the caption there.</p>"
    )
