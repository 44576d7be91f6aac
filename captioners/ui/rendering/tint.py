"""The colour of a word: how much more likely the input made it.

Purple–orange, which the colour-blind can tell apart.
"""

from __future__ import annotations

import math

FULL = 4.0  # nats of |cond − uncond| at which a tint is strongest
STRONGEST = 0.6  # opacity, so that the text stays readable on light and dark pages


def strength(difference: float) -> float:
    """cond − uncond in nats → from −STRONGEST, full purple, to STRONGEST, full orange."""
    return round(STRONGEST * max(-1, min(difference / FULL, 1)), 2) if math.isfinite(difference) else 0.0


def tint(difference: float) -> tuple[str, str]:
    """cond − uncond in nats → a class, which the style sheet gives its hue, and a style, its strength."""
    signed = strength(difference)
    return "cl-for" if signed > 0 else "cl-against" if signed < 0 else "cl-even", f"--tint:{abs(signed):.2f}"


def legend() -> str:
    """The legend of the tint, in words and colour."""
    cells = "".join('<i class="{}" style="{}"></i>'.format(*tint(d)) for d in (-4, -2, -1, 0, 1, 2, 4))
    return (
        '<p class="cl-legend">Tint: log p(word | input) − log p(word), <span>less likely with the input</span>'
        f'<span class="cl-scale" aria-hidden="true">{cells}</span><span>more likely</span>, full colour at {FULL:g} '
        "nats. "
        "<u>Underlined</u>: changed by guidance. Point at a word to see where it comes from, "
        "click it to fork the caption there.</p>"
    )
