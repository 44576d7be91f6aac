"""Blind votes on the page: one rater's way through a study. The Blind vote tab is a study of the examples that tells
after each vote what the captions were; a study of one's own keeps that to itself.

The page holds no session: a rater's id lies in his browser and his place in the store, so he goes on after any restart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from secrets import compare_digest
from threading import Lock, Thread
from typing import Any

import gradio as gr

from captioners import registry
from captioners.study.analysis import Standing, analyse, strengths
from captioners.study.design import make_design
from captioners.study.preparing import Input, Preparation
from captioners.study.report import csv_report
from captioners.study.store import Ballot, Store
from captioners.types import CaptionLabError, Modality
from captioners.ui.components import examples
from captioners.ui.components.downloads import save_button
from captioners.ui.runtime.hosting import HEAVY, gpu_is_lent
from captioners.ui.runtime.studio import Studio
from captioners.ui.tabs.ballot import OPENS, ballot_html, leaderboard_html, progress_html, results_html, reveal

CHOICES = ["A", "B", "no difference"]
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
FRESH = 20.0  # seconds that a leaderboard is shown before it is counted again
LEADERBOARD_RESAMPLES = 200
YOURS = (
    "Kept of you: a random number, which your browser remembers, and your answers with their times. No name, no "
    "address. This link takes you back to your place on another device; whoever has it votes as you:"
)


def examples_study(studio: Studio, store: Store, profile: str) -> Preparation:
    """Guided against unguided, and method against method, on the page's own examples."""
    paths = [Path(p) for pair in zip_longest(examples.PICTURES, examples.SOUNDS) for p in pair if p]
    kinds: dict[str, Modality] = {str(p): "image" for p in examples.PICTURES}
    kinds |= {str(p): "audio" for p in examples.SOUNDS}
    several = len(registry.available()) > 1
    design = make_design("Our examples", ["guidance", "methods"] if several else ["guidance"], share=0)
    return Preparation(store, design, [Input(p.name, p, kinds[str(p)]) for p in paths], profile, studio)


def unmasked(choice: str | None, swapped: bool) -> str:
    """A or B → a or b of the pair."""
    if choice not in CHOICES:
        raise CaptionLabError("Answer every question first.")
    return "neither" if choice == CHOICES[2] else "ab"[(choice == "B") ^ swapped]


class VotingPanel:
    """Layout and wiring of one study for one rater."""

    def __init__(self, preparation: Preparation, page: gr.Blocks, reveals: bool, tab: gr.Tab | None = None):
        self.preparation, self.store, self.study, self.reveals = (
            preparation,
            preparation.store,
            preparation.study,
            reveals,
        )
        self._ahead: Thread | None = None
        self._board, self._counting = (0.0, list[Standing]()), Lock()
        questions = self.study.design.questions
        self.rater = gr.BrowserState("", storage_key=f"caption-lab-rater-{self.study.id}", secret="caption-lab")
        self.results = gr.HTML(visible=False, elem_classes="cl-narrow")
        with gr.Column(elem_classes=["cl-voting", "cl-narrow"]) as voting:
            self.position = gr.Number(-1, visible="hidden", label="ballot")
            self.pair = gr.HTML(self._intro())
            # on a tab of its own the first pair comes by itself
            self.begin = gr.Button("Begin", variant="primary", elem_id="cl-next", visible=tab is None)
            with gr.Column(visible=False, elem_classes="cl-questions") as self.asked:
                self.answers = [gr.Radio(CHOICES, label=q.text, elem_id=f"cl-vote-{q.id}") for q in questions]
                self.alert = gr.HTML()
                self.cast = gr.Button("Vote and reveal" if reveals else "Vote", variant="primary", elem_id="cl-vote")
            self.board = gr.HTML(visible=reveals)
            with gr.Accordion("Your data", open=False):
                self.yours = gr.HTML()
                with gr.Row(elem_classes="cl-downloads"):
                    save_button("Download my votes", "votes.csv", self._own_votes, self.rater, "cl-votes-csv")
                    forget = gr.Button("Delete my votes", size="sm", elem_id="cl-forget")
        self.shown = [
            self.rater,
            self.position,
            self.pair,
            self.begin,
            self.asked,
            *self.answers,
            self.board,
            self.yours,
        ]
        quick: dict[str, Any] = {**PRIVATE, "queue": False}
        self.begin.click(self._begin, self.rater, self.shown, **(HEAVY if reveals else {"queue": False}), **PRIVATE)
        self.cast.click(
            self._cast_or_tell, [self.rater, self.position, *self.answers], [*self.shown, self.alert], **quick
        )
        forget.click(self._forget, self.rater, self.shown, **quick)
        page.load(self._arrive, self.rater, [*self.shown, self.results, voting], **quick)
        if tab:
            tab.select(self._select, [self.rater, self.position], self.shown, **HEAVY, **PRIVATE)

    # ------------------------------------------------------------------------------------------------- events

    def _arrive(self, rater: str, request: gr.Request) -> list[Any]:
        """By a link: the results with their secret, or a rater's own place. Else wherever this browser's rater was."""
        query = dict(request.query_params)
        if "results" in query:
            return [*self._nothing(), self._results(query["results"]), gr.Column(visible=False)]
        rater = query.get("rater", rater)
        if not self.store.knows(self.study.id, rater):
            return [*self._nothing(), gr.skip(), gr.skip()]
        if self.reveals:  # on the tab nothing is drawn before it is wanted
            return [*self._waiting(rater), gr.skip(), gr.skip()]
        return [*self._show(rater, self.store.ballot(self.study, rater)), gr.skip(), gr.skip()]

    def _begin(self, rater: str) -> list[Any]:
        """Join, or go on; where captions are still being made, wait for the next ones."""
        try:
            if not self.store.knows(self.study.id, rater):
                rater = self.store.join(self.study.id)
            while (ballot := self.store.ballot(self.study, rater)) is None and self.preparation.prepare_next():
                pass
        except CaptionLabError as error:  # told in place: an error outside of the queue would not reach the page
            message = f'{self._intro()}<p role="alert">{escape(str(error))}</p>'
            return [gr.skip(), gr.skip(), message, gr.Button(visible=True), *self._nothing()[4:]]
        self._prepare_ahead()
        return self._show(rater, ballot)

    def _cast_or_tell(self, rater: str, position: float, *choices: str | None) -> list[Any]:
        """What cannot be kept is told above the button: an error outside of the queue would not reach the page."""
        try:
            return [*self._cast(rater, int(position), choices), ""]
        except CaptionLabError as error:
            return [*self._nothing(), f'<p role="alert">{escape(str(error))}</p>']

    def _cast(self, rater: str, position: int, choices: Sequence[str | None]) -> list[Any]:
        """Keep the vote, then show what comes next, or what that was."""
        ballot = self.store.find_ballot(self.study, rater, position)
        answers = {q.id: unmasked(c, ballot.swapped) for q, c in zip(self.study.design.questions, choices, strict=True)}
        following = self.store.vote(self.study, rater, position, answers)
        return self._reveal(rater, ballot) if self.reveals else self._show(rater, following)

    def _forget(self, rater: str) -> list[Any]:
        """Delete everything about this rater, here and in his browser."""
        count = self.store.forget(self.study.id, rater)
        message = f'{self._intro()}<p role="status">{count} {"vote" if count == 1 else "votes"} deleted.</p>'
        return [
            "",
            -1,
            message,
            gr.Button("Begin", visible=True),
            gr.Column(visible=False),
            *self._blank(),
            "",
            self._about(""),
        ]

    def _select(self, rater: str, position: float) -> list[Any]:
        """The tab is opened: only now does the browser tell who it is. A pair that is being looked at stays; where
        there is none, the first or the next one is asked for.
        """
        if position < 0:
            return self._begin(rater)
        return [*self._nothing()[:-2], *self._standing(rater)]

    def _standing(self, rater: str) -> list[str]:
        return [self._leaderboard(rater), self._about(rater)]

    # ------------------------------------------------------------------------------------------------ what is shown

    def _show(self, rater: str, ballot: Ballot | None) -> list[Any]:
        progress = self._progress(rater)
        if ballot is None:
            thanks = "That was all: thank you. You may close the page."
            message = f'<div class="cl-ballot">{progress}<p role="status">{thanks}</p></div>'
            return [
                rater,
                -1,
                message,
                gr.Button(visible=False),
                gr.Column(visible=False),
                *self._blank(),
                *self._standing(rater),
            ]
        html = ballot_html(ballot, self.preparation.inputs[ballot.item], progress)
        controls = [gr.Button(visible=False), gr.Column(visible=True), *self._blank()]
        return [rater, ballot.position, html, *controls, *self._standing(rater)]

    def _reveal(self, rater: str, ballot: Ballot) -> list[Any]:
        progress = self._progress(rater)
        html = ballot_html(ballot, self.preparation.inputs[ballot.item], progress, reveal(ballot))
        controls = [gr.Button("Next pair", visible=True), gr.Column(visible=False), *self._blank()]
        return [rater, -1, html, *controls, *self._standing(rater)]

    def _waiting(self, rater: str) -> list[Any]:
        """A rater who comes back to the tab."""
        html = f'<div class="cl-ballot">{self._progress(rater)}</div>'
        return [
            rater,
            -1,
            html,
            gr.Button("Next pair"),
            gr.Column(visible=False),
            *self._blank(),
            *self._standing(rater),
        ]

    def _progress(self, rater: str) -> str:
        cast, share = self.store.progress(self.study, rater)
        return progress_html(cast, share if self.study.design.share else None)

    def _nothing(self) -> list[Any]:
        return [gr.skip()] * len(self.shown)

    def _blank(self) -> list[None]:
        return [None] * len(self.answers)

    def _intro(self) -> str:
        words = (
            "One of our examples and two captions, by two methods or by one with and without guidance. "
            "You are not told which."
            if self.reveals
            else "You will see pictures or hear sounds, each with two captions. Look or listen first, then say which "
            "caption is better. There is no right answer, except where a caption itself says that it is a check."
        )
        return f"<p>{words}</p>"

    def _about(self, rater: str) -> str:
        if not rater:
            return ""
        link = f"/?study={self.study.id}&amp;rater={rater}"
        return f'<p class="cl-legend">{YOURS} <a href="{link}">{link}</a></p>'

    def _leaderboard(self, rater: str) -> str:
        if not self.reveals or not rater:
            return ""
        cast, _ = self.store.progress(self.study, rater)
        return leaderboard_html(cast, self._standings() if cast >= OPENS else ())

    def _standings(self) -> Sequence[Standing]:
        """Everybody's votes, counted anew when the last count is not fresh."""
        with self._counting:
            counted, board = self._board
            if not board or time.monotonic() - counted > FRESH:
                votes = [v for v in self.store.votes(self.study.id) if not v.is_check]
                by_question = [(q, [v for v in votes if v.question == q.id]) for q in self.study.design.questions]
                board = [
                    {
                        "text": q.text,
                        "votes": len(question_votes),
                        "strengths": strengths(question_votes, LEADERBOARD_RESAMPLES),
                    }
                    for q, question_votes in by_question
                ]
                self._board = time.monotonic(), board
            return board

    def _results(self, secret: str) -> gr.HTML:
        if not compare_digest(secret.encode(), self.study.secret.encode()):
            return gr.HTML(
                '<p role="alert">This link does not open the results: ask who runs the study.</p>', visible=True
            )
        return gr.HTML(results_html(analyse(self.study, self.store.votes(self.study.id))), visible=True)

    def _own_votes(self, rater: str) -> str:
        votes = self.store.votes(self.study.id, rater)
        return csv_report(votes) if votes else ""

    def _prepare_ahead(self) -> None:
        """Captions one more input while the rater thinks; on a lent GPU only what somebody waits for is computed."""
        if gpu_is_lent() or (self._ahead and self._ahead.is_alive()):
            return
        self._ahead = Thread(target=self.preparation.prepare_next, daemon=True)
        self._ahead.start()
