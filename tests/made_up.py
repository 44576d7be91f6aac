"""Two methods and a result that no model made, for tests of what the page draws."""

import math

from captioners.controls import GUIDANCE_SCALE, LM_WEIGHT, NUM_CANDIDATES, SEED, TEMPERATURE, number
from captioners.types import Alternative, Candidate, Result, Score, Spec, Step, StepToken, TokenTrace

ALPHA = number("alpha", "Exponent", "Weight.", None, 0, 5, 0.1, optional=True)
SPEC = Spec(
    "one",
    "Method <One>",
    "An idea.",
    "https://example.org",
    ("image",),
    (GUIDANCE_SCALE, LM_WEIGHT, ALPHA, TEMPERATURE, SEED),
    unguided={"guidance_scale": 1.0, "lm_weight": 0.0, "alpha": None},
)
OTHER = Spec(
    "two",
    "Two",
    "Another.",
    "https://example.org",
    ("image",),
    (GUIDANCE_SCALE, NUM_CANDIDATES.but(default=8), SEED),
    unguided={"guidance_scale": 1.0},
)


def trace(position: int, token: str, cond: float, uncond: float) -> TokenTrace:
    options = [Alternative(token, cond), Alternative(" cat", -2.0), Alternative("<eos>", -3.0)]
    return TokenTrace(position, token, cond, uncond, cond, {"guided": options, "cond": options}, 0.5, 1.0)


def result(caption: str = "a <dog>", clip: float = 1.2, **settings) -> Result:
    entries = [trace(0, " a", -0.1, -0.2), trace(1, " <dog>", -0.5, -4.0), trace(2, "<eos>", -0.1, math.nan)]
    scores = {"clipscore": Score(clip, "judge-1"), "perplexity": Score(20.0, "lm-1"), "words": Score(2.0)}
    return Result(
        "one", caption, [Candidate(caption, 0.5, -1.0), Candidate("a cat", 0.4, -2.0)], entries,
        {"guidance_scale": 2.0, "seed": 0, **settings}, 0, "fake", {}, {"decode": 0.25}, {}, scores, ["a <note>"],
    )  # fmt: skip


def finished(made: Result) -> Step:
    tokens = [StepToken(t.token, "final", 0.9) for t in made.trace if t.token != "<eos>"]
    return Step(2, 2, tokens, made.trace, result=made)
