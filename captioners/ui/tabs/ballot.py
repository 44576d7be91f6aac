"""A ballot as HTML: the input, two captions without names, how far the rater is; and what is told about him and the
others.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from io import BytesIO
from pathlib import Path

import soundfile

from captioners.media import load_media
from captioners.media.data_uri import jpeg_uri
from captioners.study.analysis import JUDGES, Standing, StudyReport
from captioners.study.preparing import Input
from captioners.study.report import figures_html, strength_plot
from captioners.study.store import Ballot

SIDE = 640  # pixels of a picture on the page
OPENS = 10  # votes before the leaderboard opens


def media_html(item: Input) -> str:
    """The picture or the sound itself.

    Its name, which could give something away, and what else the file says stay behind.
    """
    return _media_html(item.path, item.path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _media_html(path: Path, _changed: int) -> str:
    media = load_media(path)
    if media.kind == "image":
        return f'<img class="cl-media" alt="what is captioned" src="{jpeg_uri(media, SIDE)}">'
    sound = BytesIO()
    soundfile.write(sound, media.data, media.rate, format="MP3")
    source = base64.b64encode(sound.getvalue()).decode()
    return (
        '<audio class="cl-media" controls '
        'aria-label="what is captioned" '
        f'src="data:audio/mpeg;base64,{source}"></audio>'
    )


def progress_html(cast: int, share: int | None) -> str:
    """How much of the share is done; where there is none, how often the rater has voted."""
    if share is None:
        return f'<p class="cl-legend">{cast} {"vote" if cast == 1 else "votes"} so far</p>'
    return (
        f'<p class="cl-progress"><progress max="{share}" value="{cast}"'
        f' aria-label="pairs that you have decided"></progress> {cast} of {share}</p>'
    )


def ballot_html(ballot: Ballot, item: Input, progress: str, revealed: str = "") -> str:
    """Everything a rater decides on; after the vote, where that is wanted, what the captions were."""
    cards = "".join(
        f'<section class="cl-card"><h2>{name}</h2><p>{escape(caption)}</p></section>'
        for name, caption in zip("AB", ballot.captions, strict=True)
    )
    answer = f'<p class="cl-revealed" role="status">{escape(revealed)}</p>' if revealed else ""
    return f'<div class="cl-ballot">{progress}{media_html(item)}<div class="cl-pair">{cards}</div>{answer}</div>'


def reveal(ballot: Ballot) -> str:
    """Which system wrote which caption, and what the judges say."""
    if ballot.is_check:
        return "This pair was a check whether captions are read."
    verdicts = []
    for judge, sign in JUDGES.items():
        scores = [score for side in ballot.scores if (score := side.get(judge)) is not None]
        if len(scores) == 2:
            gain = sign * (scores[0] - scores[1])
            verdicts.append(f"{judge} prefers {'A' if gain > 0 else 'B' if gain < 0 else 'neither'}")
    judged = f" {'; '.join(verdicts)}." if verdicts else ""
    return f"A was {ballot.systems[0]}, B was {ballot.systems[1]}.{judged}"


def leaderboard_html(cast: int, questions: Sequence[Standing]) -> str:
    """Strengths so far, or how many votes are missing until they are shown."""
    if cast < OPENS:
        return f'<p class="cl-legend">The leaderboard opens after {OPENS} votes: you have {cast}.</p>'
    boards = "".join(
        f"<section><h3>{escape(q['text'])}</h3>{strength_plot(q)}"
        f"<p class='cl-legend'>{q['votes']} votes of all raters</p></section>"
        for q in questions
    )
    return (
        f'<div class="cl-leaderboard"><h2>Leaderboard</h2>{boards}<p class="cl-legend">Bradley–Terry strengths '
        "(log-odds, mean 0) "
        "with 95 % intervals over inputs and raters, which take two of each.</p></div>"
    )


def results_html(report: StudyReport) -> str:
    """The study's report inside the page."""
    return f'<article class="cl-about cl-results">{figures_html(report)}</article>'
