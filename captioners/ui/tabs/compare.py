"""The Compare tab: one input, one set of shared controls, and a card for every method in the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import randrange
from typing import Any

import gradio as gr

from captioners.media import MediaError
from captioners.types import Result, Spec
from captioners.ui.components import knobs, sharing
from captioners.ui.components.card_controller import SCALE, CardController, Runs
from captioners.ui.components.control_panel import ControlPanel
from captioners.ui.components.downloads import save_button
from captioners.ui.rendering.card import head_html, message_html
from captioners.ui.rendering.film import film_text
from captioners.ui.rendering.plots import comparison_figure
from captioners.ui.rendering.tables import comparison_table
from captioners.ui.rendering.tint import legend
from captioners.ui.runtime.hosting import HEAVY
from captioners.ui.runtime.studio import Studio

PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# queued: only then does Gradio tell that a State has changed
QUICK: dict[str, Any] = {**PRIVATE, "concurrency_limit": None}
FORK = """element.addEventListener('click', event => {
    const word = event.target.closest('[data-token]');
    if (word) trigger('select', {position: Number(word.dataset.position), token: word.dataset.token});
});"""


@dataclass
class Card:
    """One method's components and the player behind them."""

    controller: CardController
    column: gr.Column
    body: gr.HTML
    plot: gr.Plot
    numbers: gr.HTML
    own: dict[str, gr.components.Component]
    asked: gr.State  # a new number makes the card run
    runs: gr.State  # its last results, guided and unguided

    @property
    def spec(self) -> Spec:
        """The spec of the method whose card it is."""
        return self.controller.spec


class Compare:
    """Layout first, wiring second. Whatever is a cause for a card to run gives its `asked` a new number."""

    def __init__(self, studio: Studio, specs: list[Spec], page: gr.Blocks):
        self.studio, self.page = studio, page
        self.source = gr.State(None)  # the path of the file that is captioned
        self.touched = gr.State(())  # shared controls that the visitor has moved
        with gr.Row(elem_classes="cl-compare"):
            with gr.Column(elem_classes="cl-panel", min_width=280):
                self.panel = ControlPanel(specs)
            with gr.Column(elem_classes="cl-main", min_width=300):
                gr.HTML(legend())
                with gr.Row(elem_classes="cl-cards"):
                    self.cards = [self._card(spec) for spec in specs]
                with gr.Row(elem_classes="cl-together"):
                    self.chart = gr.Plot(
                        label="CLIPScore against fluency", show_label=False, container=False, elem_classes="cl-plot"
                    )
                    self.table = gr.HTML(elem_classes="cl-all")
                with gr.Row(elem_classes="cl-downloads"):
                    runs = [c.runs for c in self.cards]
                    save_button("Download JSON", "caption-lab.json", sharing.as_json, runs, "cl-json")
                    save_button("Download report", "caption-lab.html", self._report, [self.source, *runs], "cl-report")
                    save_button(
                        "Download GIF", "caption-lab.gif", self._film, [self.source, *runs], "cl-gif", "image/gif"
                    )
                    self.link = gr.Textbox(visible="hidden", label="link")
        self.asked, self.runs = [c.asked for c in self.cards], [c.runs for c in self.cards]
        self._wire_panel()
        self._wire_sharing()
        running = [event for card in self.cards for event in self._wire_card(card)]
        self.panel.stop.click(None, cancels=running, **PRIVATE)

    def _card(self, spec: Spec) -> Card:
        with gr.Column(elem_classes="cl-card", elem_id=f"cl-card-{spec.id}", min_width=240) as column:
            gr.HTML(head_html(spec))
            body = gr.HTML(message_html("On its way …"), js_on_load=FORK)
            plot = gr.Plot(
                label=f"{spec.title}: log-probabilities per token",
                show_label=False,
                container=False,
                elem_classes="cl-plot",
            )
            with gr.Column(elem_classes="cl-tail"):
                numbers = gr.HTML()
                with gr.Accordion("More", open=False, elem_classes="cl-more"):
                    own = {c.name: knobs.component(c) for c in knobs.own_controls(spec)}
        return Card(
            CardController(self.studio, spec, self.panel.front),
            column,
            body,
            plot,
            numbers,
            own,
            gr.State(0),
            gr.State(None),
        )

    # -------------------------------------------------------------------------------------------------- wiring

    def _wire_panel(self) -> None:
        panel, asked = self.panel, self.asked
        for upload, tab, example in panel.inputs:
            upload.change(self._pick, upload, [upload, self.source, *asked], preprocess=False, **QUICK)
            tab.select(
                self._switch(example), [upload, self.source], [upload, self.source, *asked], preprocess=False, **QUICK
            )
        panel.run.click(self._ask, None, asked, **QUICK)
        panel.methods.input(self._choose, panel.methods, [*(c.column for c in self.cards), *asked], **QUICK)
        gr.on([panel.seed.submit, panel.seed.blur], self._ask, None, asked, **QUICK)
        panel.dice.click(lambda: [randrange(2**31), *self._ask()], None, [panel.seed, *asked], **QUICK)
        for name, component in panel.front.items():
            listening = [c.asked for c in self.cards if c.spec.listens_to(name)]
            knobs.moved(component)(_touch(name, len(listening)), self.touched, [self.touched, *listening], **QUICK)
        own = [component for c in self.cards for component in c.own.values()]
        for name, values in knobs.presets(panel.specs).items():
            panel.presets[name].click(
                self._preset(name, values), None, [self.touched, *panel.front.values(), *own, *asked], **QUICK
            )
        panel.reset.click(self._reset, None, [self.touched, panel.seed, *panel.front.values(), *own, *asked], **QUICK)

    def _wire_card(self, card: Card) -> list[Any]:
        """Runs when asked; then its result joins the others, and other guidance scales are decoded ahead."""
        inputs = [self.source, self.touched, self.panel.seed, *self.panel.front.values(), *card.own.values()]
        outputs = [card.body, card.plot, card.numbers, card.runs]
        for component in card.own.values():
            knobs.moved(component)(_number, None, card.asked, **QUICK)
        shown = [self.panel.methods, *inputs]
        shows = card.asked.change(_if_chosen(card), shown, outputs, trigger_mode="always_last", **HEAVY, **PRIVATE)
        forks = card.body.select(card.controller.fork, [card.runs, *inputs], outputs, **HEAVY, **PRIVATE)
        explains = []
        for event in (shows, forks):
            event.success(self._together, self.runs, [self.chart, self.table], **PRIVATE)
            explained = [card.numbers, card.runs]
            slowly: dict[str, Any] = {"concurrency_id": "explain", "concurrency_limit": 4, **PRIVATE}
            explains.append(event.success(card.controller.explain, [card.runs, self.source], explained, **slowly))
        for newer in (card.asked.change, card.body.select):
            newer(None, cancels=explains, **PRIVATE)
        if not card.spec.listens_to(SCALE):
            return [shows, forks, *explains]
        self.panel.front[SCALE].input(card.controller.preview, inputs, outputs, trigger_mode="always_last", **QUICK)
        ahead = explains[0].success(
            card.controller.decode_ahead,
            [card.runs, *inputs],
            None,
            concurrency_id="ahead",
            concurrency_limit=1,
            **PRIVATE,
        )
        card.asked.change(None, cancels=[ahead], **PRIVATE)
        return [shows, forks, *explains, ahead]

    def _wire_sharing(self) -> None:
        """The view is written to the address whenever it changes and read from it when the page opens."""
        view = sharing.PageLink([c.spec for c in self.cards], self.panel.controls)
        own = [component for c in self.cards for component in c.own.values()]
        parts = [self.panel.methods, self.touched, self.panel.seed, *self.panel.front.values(), *own]
        shown = [*(c.column for c in self.cards), self.panel.kinds, self.panel.picture, self.panel.sound]
        self.page.load(view.restore, None, [*shown, *parts], **QUICK)
        gr.on([a.change for a in self.asked], view.link, [self.source, *parts], self.link, **QUICK).then(
            None, self.link, None, js=sharing.WRITE_LINK, **PRIVATE
        )

    # --------------------------------------------------------------------------------------------------- events

    def _pick(self, payload: dict[str, Any] | None) -> list[Any]:
        """A new file.

        It is read at once, so that a bad one is told of once and not by every card, and taken away again.
        """
        path = payload["path"] if payload else None
        try:
            self.studio.prefetch(self.studio.media(path))
        except MediaError as error:
            if path:
                gr.Warning(str(error), title="This file cannot be used")
            return [None if path else gr.skip(), None, *self._ask()]
        return [gr.skip(), path, *self._ask()]

    def _switch(self, example: str) -> Callable[..., list[Any]]:
        """Going to the other tab is choosing what stands there: a file, or else our example.

        A tab is also told when the page opens.
        """

        def switch(payload: dict[str, Any] | None, source: str | None) -> list[Any]:
            if payload:
                return self._pick(payload)
            return [example if source else gr.skip(), gr.skip(), *(gr.skip() for _ in self.asked)]

        return switch

    def _preset(self, name: str, values: dict[str, Any]) -> Callable[..., list[Any]]:
        front = {name: c.default for name, c in self.panel.controls.items()} | values
        chosen = [
            (knobs.own_preset(card.spec, name), c.name) for card in self.cards for c in knobs.own_controls(card.spec)
        ]
        own = [values[c] if c in values else gr.skip() for values, c in chosen]
        return lambda: [tuple(values), *front.values(), *own, *self._ask()]

    def _reset(self) -> list[Any]:
        own = [c.default for card in self.cards for c in knobs.own_controls(card.spec)]
        return [(), 0, *(c.default for c in self.panel.controls.values()), *own, *self._ask()]

    def _choose(self, methods: Sequence[str]) -> list[Any]:
        """Cards come and go; one that has been there before has its answer at once."""
        return [*sharing.columns([c.spec for c in self.cards], methods), *self._ask()]

    def _ask(self) -> list[int]:
        """New numbers for all cards, which make them run."""
        return [_number() for _ in self.cards]

    def _rows(self, runs: Sequence[Runs | None]) -> list[tuple[Spec, Result, Result]]:
        return [(card.spec, *pair) for card, pair in zip(self.cards, runs, strict=True) if pair]

    def _together(self, *runs: Runs | None) -> tuple[Any, str]:
        """The chart and the table of all methods that have an answer."""
        rows = self._rows(runs)
        return (comparison_figure(rows), comparison_table(rows)) if rows else (None, "")

    def _report(self, source: str | None, *runs: Runs | None) -> str:
        rows = self._rows(runs)
        return sharing.as_html(self.studio.media(source), rows) if rows else ""

    def _film(self, source: str | None, *runs: Runs | None) -> str:
        rows = [(spec, guided) for spec, guided, _ in self._rows(runs)]
        return film_text(self.studio.media(source), rows) if rows else ""


def _if_chosen(card: Card) -> Callable[..., Iterator[Any]]:
    """What the card's player shows, or, if its method is not among those chosen, nothing and no result."""

    def show(methods: Sequence[str], *inputs: Any) -> Iterator[Any]:
        if card.spec.id in methods:
            yield from card.controller.show(*inputs)
        else:
            yield gr.skip(), gr.skip(), gr.skip(), None

    return show


def _number() -> int:
    """A number that has not been given before."""
    return randrange(2**62)


def _touch(name: str, listening: int) -> Callable[..., list[Any]]:
    return lambda touched: [tuple(dict.fromkeys((*touched, name))), *(_number() for _ in range(listening))]
