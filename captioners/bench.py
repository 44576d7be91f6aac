"""Speed as ratios: ours against what a user would do instead, in one process, on the same weights, in alternation.

A ratio above 1 means that ours is faster. Nothing here is a test: `python -m captioners bench` prints what it finds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from captioners import registry
from captioners.profiles.base import Profile
from captioners.types import Media, Result

REPEATS = 7
Work = Callable[[], int]  # does something once and returns how many units it did


@dataclass(frozen=True)
class Contest:
    """Two ways to the same end."""

    name: str
    says: str  # what is compared, in words
    unit: str  # of the times: seconds per this
    ours: Work
    peer: Work


def contests(profile: Profile) -> Iterator[Contest]:
    """Everything that can be measured with what this profile has."""
    method = registry.load("cfg", profile)
    pictures = [_picture(i) for i in range(32)]

    def captions(media: list[Media], **values) -> list[Result]:
        return method.caption_batch(media, [method.spec.settings(**values)] * len(media))

    captions(pictures, max_tokens=1)  # encodes them: features are kept, so that what follows is decoding alone
    one = pictures[:1]
    yield Contest(
        "cfg_two_branches_vs_one",
        "cfg at guidance 2 against guidance 1, which needs one branch",
        "token",
        ours=lambda: len(captions(one, guidance_scale=2)[0].trace),
        peer=lambda: len(captions(one, guidance_scale=1)[0].trace),
    )
    yield Contest(
        "batch_32_vs_1",
        "cfg on 32 pictures in one batch against one at a time",
        "caption",
        ours=lambda: len(captions(pictures)),
        peer=lambda: sum(len(captions([picture])) for picture in pictures),
    )
    yield Contest(
        "candidates_64_vs_1",
        "64 candidates of cfg in one batch against as many runs of one",
        "candidate",
        ours=lambda: len(captions(one, num_candidates=64)[0].candidates),
        peer=lambda: len(captions(one)[0].candidates),
    )


def _picture(seed: int) -> Media:
    """Smooth random colours: what is in a picture does not change how long a token takes."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Media("image", small.repeat(56, 0).repeat(56, 1))


def run(contest: Contest, repeats: int = REPEATS) -> dict[str, object]:
    """Both sides in turn, after a warm-up; the median of the ratios and their spread (largest − smallest)."""
    contest.ours(), contest.peer()
    ours, peer = [], []
    for _ in range(repeats):
        ours.append(_timed(contest.ours))
        peer.append(_timed(contest.peer))
    ratios = [theirs / mine for mine, theirs in zip(ours, peer, strict=True)]
    return {
        "name": contest.name,
        "says": contest.says,
        "ours": statistics.median(ours),
        "peer": statistics.median(peer),
        "unit": f"s/{contest.unit}",
        "ratio": statistics.median(ratios),
        "spread": max(ratios) - min(ratios),
    }


def _timed(work: Work) -> float:
    began = time.perf_counter()
    units = work()
    return (time.perf_counter() - began) / units


def bench(profile: Profile, repeats: int = REPEATS, progress: Callable[[dict], None] = lambda row: None) -> dict[str, object]:
    """All contests, in the shape that `bench --json` writes."""
    rows = []
    for contest in contests(profile):
        rows.append(run(contest, repeats))
        progress(rows[-1])
    return {"rows": rows}
