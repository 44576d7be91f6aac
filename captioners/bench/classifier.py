"""Method 2: the fast route to a token against the paper's."""

from __future__ import annotations

from captioners.bench.contest import Work, contest
from captioners.bench.inputs import captions, picture
from captioners.profiles.base import Profile

TOKENS = 6  # of each caption: the faithful route takes seconds for each


@contest(
    "classifier_fast_vs_faithful",
    "method 2's fast route against the faithful one: 512 tokens considered, as many gradient steps, one target",
    "token",
    repeats=3,
)
def routes(profile: Profile) -> tuple[Work, Work]:
    """The route differs and nothing else."""
    caption, pictures = captions("classifier", profile), [picture(0)]

    def work(route: str) -> Work:
        return lambda: len(caption(pictures, route=route, top_k=512, max_tokens=TOKENS)[0].trace)

    return work("fast"), work("faithful")
