"""Method 1: what a second branch costs, and what a batch saves. Pictures are encoded before: this is decoding alone."""

from __future__ import annotations

from captioners.bench.contest import Work, contest
from captioners.bench.inputs import captions, picture
from captioners.profiles.base import Profile


@contest("cfg_two_branches_vs_one", "cfg at guidance 2 against guidance 1, which needs one branch", "token")
def two_branches(profile: Profile) -> tuple[Work, Work]:
    """Both in one batch with one cache: a second branch should cost much less than a second run."""
    caption, pictures = captions("cfg", profile), [picture(0)]
    return lambda: len(caption(pictures, guidance_scale=2)[0].trace), lambda: len(
        caption(pictures, guidance_scale=1)[0].trace
    )


def _batch(size: int) -> None:
    @contest(f"batch_{size}_vs_1", f"cfg on {size} pictures in one batch against one at a time", "caption", repeats=5)
    def sides(profile: Profile) -> tuple[Work, Work]:
        caption, pictures = captions("cfg", profile), [picture(i) for i in range(size)]
        timed_alone = pictures[:8]  # enough to time one at a time
        return lambda: len(caption(pictures)), lambda: sum(len(caption([p])) for p in timed_alone)


for _size in (2, 8, 32, 64):
    _batch(_size)


@contest("candidates_64_vs_1", "64 candidates of cfg in one batch against as many runs of one", "candidate", repeats=5)
def candidates(profile: Profile) -> tuple[Work, Work]:
    """What many candidates cost, which are rows of one batch."""
    caption, pictures = captions("cfg", profile), [picture(0)]
    return lambda: len(caption(pictures, num_candidates=64)[0].candidates), lambda: len(caption(pictures)[0].candidates)
