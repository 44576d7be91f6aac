"""The Blind vote tab: guided against unguided, names hidden. Which says more, which reads better? The tally stays in the browser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from random import Random
from typing import Any

import gradio as gr

from captioners.lab import choose_methods
from captioners.types import CaptionLabError, Result, Spec
from captioners.ui import examples
from captioners.ui.hosting import HEAVY
from captioners.ui.markup import table
from captioners.ui.saving import save_button
from captioners.ui.studio import Studio

TRIES = 8  # pairs that are looked at for two captions that differ
QUESTIONS = (("specific", "Which says more about this input?"), ("fluent", "Which reads better?"))
ANSWERS = ["A", "B", "no difference"]
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}

Vote = dict[str, str]  # method, and for each question what the visitor and what the judge said: guided, unguided or neither


def judged(guided: Result, plain: Result) -> dict[str, str]:
    """The judges' own votes: more specific is a higher CLIPScore, more fluent a lower perplexity."""

    def better(name: str, sign: int) -> str:
        if name not in guided.scores or name not in plain.scores:
            return "neither"
        gain = sign * (guided.scores[name].value - plain.scores[name].value)
        return "guided" if gain > 0 else "unguided" if gain < 0 else "neither"

    return {"specific": better("clipscore", 1), "fluent": better("perplexity", -1)}


def unmasked(answer: str, guided_is: str) -> str:
    """A or B → which of the two that was."""
    return "neither" if answer not in ("A", "B") else "guided" if answer == guided_is else "unguided"


def tally_html(votes: Sequence[Vote]) -> str:
    """Per question: how often each won with the visitor and with the judge, and how often the two agree."""
    if not votes:
        return '<p class="cl-legend">No votes yet.</p>'
    rows = []
    for question, words in QUESTIONS:
        mine, theirs = [v[question] for v in votes], [v[f"judge_{question}"] for v in votes]
        agree = sum(a == b for a, b in zip(mine, theirs, strict=True))
        rows.append(
            [words, *(f"{mine.count(w)} / {theirs.count(w)}" for w in ("guided", "unguided", "neither")), f"{agree} of {len(votes)}"]
        )
    count = "1 vote" if len(votes) == 1 else f"{len(votes)} votes"
    return table(f"{count}: yours / the judge's", ["question", "guided", "unguided", "no difference", "agreed"], rows)


def pair_html(captions: Sequence[str], revealed: str = "") -> str:
    """The two captions, and after the vote what they were."""
    cards = "".join(f'<div class="cl-card"><h2>{name}</h2><p>{escape(c)}</p></div>' for name, c in zip("AB", captions, strict=True))
    return f'<div class="cl-cards">{cards}</div><p class="cl-legend">{escape(revealed)}</p>'


class BlindVote:
    """Layout and wiring."""

    def __init__(self, studio: Studio, specs: list[Spec], votes: gr.BrowserState, tab: gr.Tab):
        self.studio, self.specs, self.random = studio, {s.id: s for s in specs}, Random()
        ballot = gr.State(None)
        gr.HTML('<p class="cl-legend">One of our examples, two captions by one method: one guided, one not. You are not told which.</p>')
        with gr.Row():
            with gr.Column(min_width=240):
                picture = gr.Image(label="Picture", interactive=False, visible=False, height=220, buttons=[], alt_text="what is captioned")
                sound = gr.Audio(label="Sound", interactive=False, visible=False, buttons=[])
                another = gr.Button("Next pair", variant="primary", elem_id="cl-next")
            with gr.Column(scale=2):
                pair = gr.HTML()
                answers = [gr.Radio(ANSWERS, label=words, elem_id=f"cl-vote-{name}") for name, words in QUESTIONS]
                cast = gr.Button("Vote and reveal", elem_id="cl-vote", interactive=False)
                tally = gr.HTML()
        with gr.Row(elem_classes="cl-downloads"):
            save_button("Download votes", "votes.json", lambda v: json.dumps(v, ensure_ascii=False) if v else "", votes, "cl-votes-json")
            forget = gr.Button("Forget my votes", size="sm", elem_id="cl-forget")
        tab.select(tally_html, votes, tally, **PRIVATE)
        shown = [picture, sound, pair, *answers, cast, ballot]
        another.click(self._next, None, shown, **HEAVY, **PRIVATE)
        cast.click(self._cast, [ballot, votes, *answers], [votes, pair, cast, tally], **PRIVATE)
        forget.click(lambda: ([], tally_html([])), None, [votes, tally], **PRIVATE)

    def _next(self) -> list[Any]:
        """A pair whose captions differ."""
        try:
            for _ in range(TRIES):
                path = self.random.choice(examples.PICTURES + examples.SOUNDS)
                media = self.studio.media(path)
                spec = self.random.choice([s for s in choose_methods(media.kind) if s.unguided])  # others cannot differ
                settings = spec.settings()
                guided, plain = self.studio.results(media, spec.id, [settings, spec.without_guidance(settings)])
                if guided.caption != plain.caption:
                    return self._ballot(path, media.kind, guided, plain)
        except CaptionLabError as error:
            raise gr.Error(str(error), print_exception=False) from error
        raise gr.Error("Guidance changed none of the captions that were tried: press again.", print_exception=False)

    def _ballot(self, path: str, kind: str, guided: Result, plain: Result) -> list[Any]:
        guided_is = self.random.choice("AB")
        captions = [guided.caption, plain.caption] if guided_is == "A" else [plain.caption, guided.caption]
        ballot = {"guided_is": guided_is, "captions": captions, "method": guided.method, "judge": judged(guided, plain)}
        return [
            gr.Image(path if kind == "image" else None, visible=kind == "image"),
            gr.Audio(path if kind == "audio" else None, visible=kind == "audio"),
            pair_html(captions),
            *(None for _ in QUESTIONS),
            gr.Button(interactive=True),
            ballot,
        ]

    def _cast(self, ballot: dict | None, votes: list[Vote], *answers: str | None) -> tuple:
        if ballot is None or None in answers:
            raise gr.Error("Answer both questions first.", print_exception=False)
        given = {name: unmasked(answer, ballot["guided_is"]) for (name, _), answer in zip(QUESTIONS, answers, strict=True)}
        vote = {"method": ballot["method"], **given, **{f"judge_{name}": word for name, word in ballot["judge"].items()}}
        title, judge = self.specs[ballot["method"]].title, ballot["judge"]
        said = f"{ballot['guided_is']} was guided, by {title}. The judge: more specific {judge['specific']}, more fluent {judge['fluent']}."
        votes = [*votes, vote]
        return votes, pair_html(ballot["captions"], said), gr.Button(interactive=False), tally_html(votes)
