"""Methods 3 and 4: a strided walk through the noise levels against every one of them, what many candidates cost, and
what their default steps cost beside method 1.
"""

from __future__ import annotations

from captioners.bench.contest import Work, contest
from captioners.bench.inputs import captions, picture
from captioners.profiles.base import Profile


@contest("mc_20_vs_100", "mc-diffusion in 20 steps against the paper's 100", "caption", repeats=3)
def mc(profile: Profile) -> tuple[Work, Work]:
    """Two runs that differ in their number of steps and in nothing else."""
    caption, one = captions("mc-diffusion", profile), [picture(0)]
    return lambda: len(caption(one, num_steps=20)), lambda: len(caption(one, num_steps=100))


@contest(
    "prefix_50_vs_1000",
    "prefix-diffusion in 50 steps against the paper's 1000, one candidate each",
    "caption",
    repeats=3,
)
def prefix(profile: Profile) -> tuple[Work, Work]:
    """Two runs that differ in their number of steps and in nothing else."""
    caption, one = captions("prefix-diffusion", profile), [picture(0)]
    values = {"num_candidates": 1}
    return lambda: len(caption(one, num_steps=50, **values)), lambda: len(caption(one, num_steps=1000, **values))


@contest(
    "prefix_candidates_64_vs_1",
    "64 candidates of prefix-diffusion in one batch against as many runs of one: 64 cost 64 / ratio times what 1 costs",
    "candidate",
    repeats=5,
)
def candidates(profile: Profile) -> tuple[Work, Work]:
    """The paper's way to diversity: candidates share the picture's prefix and every pass of the denoiser."""
    caption, one = captions("prefix-diffusion", profile), [picture(0)]
    return lambda: len(caption(one, num_candidates=64)[0].candidates), lambda: len(
        caption(one, num_candidates=1)[0].candidates
    )


@contest(
    "mc_20_vs_method_1",
    "mc-diffusion in 20 steps against method 1's greedy caption: it takes 1 / ratio times as long",
    "caption",
)
def mc_beside_method_1(profile: Profile) -> tuple[Work, Work]:
    """Method 1 tells how fast the machine is, so that ratios of different days can be compared."""
    return _beside_method_1(profile, "mc-diffusion", num_steps=20)


@contest(
    "prefix_30_vs_method_1",
    "prefix-diffusion in 30 steps, 8 candidates, against method 1's greedy caption: it takes 1 / ratio times as long",
    "caption",
)
def prefix_beside_method_1(profile: Profile) -> tuple[Work, Work]:
    """As above."""
    return _beside_method_1(profile, "prefix-diffusion", num_steps=30, num_candidates=8)


def _beside_method_1(profile: Profile, method: str, **settings: int) -> tuple[Work, Work]:
    """A method's caption of a picture, and method 1's, greedy and with its other defaults."""
    ours, theirs, one = captions(method, profile), captions("cfg", profile), [picture(0)]
    return lambda: len(ours(one, **settings)), lambda: len(theirs(one, decoding="greedy", num_candidates=1))
