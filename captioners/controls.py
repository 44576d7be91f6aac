"""The controls that several methods share. A shared control has one meaning and one range; a method may change its
default.

CONTROLS = (GUIDANCE_SCALE, NUM_CANDIDATES.but(default=8), number("top_k", "Top k", "…", 512, 1, 4096, 1))
"""

from __future__ import annotations

from typing import Any

from captioners.types import Control


def number(
    name: str, label: str, help: str, default: float | None, low: float, high: float, step: float, **options: Any
) -> Control:
    """A slider; a step of 1 makes it whole."""
    return Control(name, "number", label, help, default, low, high, step, **options)


def text(name: str, label: str, help: str, default: str = "") -> Control:
    """A line of text."""
    return Control(name, "text", label, help, default)


def choice(name: str, label: str, help: str, choices: tuple[str, ...]) -> Control:
    """One of a few words; the first is the default."""
    return Control(name, "choice", label, help, choices[0], choices=choices)


GUIDANCE_SCALE = number(
    "guidance_scale",
    "Guidance scale γ",
    "How far the caption is pushed towards what the input says; 1 is off.",
    2.0,
    0,
    5,
    0.1,
    front=True,
)
LM_WEIGHT = number(
    "lm_weight",
    "LM weight w",
    "How much a language model's opinion of the next word counts; 0 is off.",
    0.0,
    0,
    1,
    0.05,
    front=True,
)
MASK_RATE = number(
    "mask_rate",
    "Mask rate",
    "The share of the input's tokens that the second branch does not see.",
    0.5,
    0,
    1,
    0.05,
    front=True,
)
NUM_CANDIDATES = number(
    "num_candidates",
    "Candidates",
    "How many captions are finished and ranked; the best one is shown.",
    1,
    1,
    64,
    1,
    front=True,
)
TEMPERATURE = number(
    "temperature",
    "Temperature",
    "0 takes the best word at every step; above, words are drawn at random.",
    0.0,
    0,
    2,
    0.1,
)
MAX_TOKENS = number("max_tokens", "Longest caption", "The most tokens a caption may have.", 30, 1, 40, 1)
SEED = number("seed", "Seed", "The same seed gives the same caption.", 0, 0, 2**31 - 1, 1)
RANKING = choice(
    "ranking",
    "Ranking",
    "ranker asks a matcher which candidate fits the input best; mbr takes the one that agrees most with the others.",
    ("ranker", "mbr"),
)
REPEATS = choice(
    "repeats",
    "Repeats",
    "any says a word as often as the model likes, once says a content word a single time (people repeat one in 6 % of "
    "their captions).",
    ("any", "once"),
)
