"""The Sweep tab: one method, one control, a range of values decoded as one batch; where more guidance stops helping
is marked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from captioners.spreadsheets import csv_text
from captioners.types import CaptionLabError, Control, Result, Spec, to_json
from captioners.ui.components.downloads import save_button
from captioners.ui.rendering.markup import number, table
from captioners.ui.rendering.plots import dressed
from captioners.ui.rendering.steps import GREEN, ORANGE, PURPLE
from captioners.ui.runtime.hosting import HEAVY
from captioners.ui.runtime.studio import Studio

MAX_VALUES = 21
SCORES = (  # name, label, colour, format
    ("clipscore", "CLIPScore", ORANGE, ".2f"),
    ("perplexity", "perplexity", PURPLE, ",.1f"),
    ("words", "words", GREEN, ".0f"),
)
PRIVATE: dict[str, Any] = {"api_visibility": "private"}


@dataclass(frozen=True)
class Swept:
    """The results of a sweep, one for each value."""

    method: str
    control: str
    values: list[float]
    results: list[Result]
    title: str = ""  # of the method
    label: str = ""  # of the control
    input: str = ""  # the name of what was captioned

    def scores(self, name: str) -> list[float | None]:
        """The values of one score, in the order of the swept values."""
        return [r.scores[name].value if name in r.scores else None for r in self.results]

    @property
    def turning_point(self) -> int | None:
        """Where CLIPScore is best: beyond it the control costs and gives nothing."""
        known = [(score, -i) for i, score in enumerate(self.scores("clipscore")) if score is not None]
        return -max(known)[1] if known else None


def swept_controls(spec: Spec) -> list[Control]:
    """The controls that can be swept: those that have a range."""
    return [c for c in spec.controls if c.kind == "number" and c.name != "seed"]


def spread(control: Control, low: float, high: float, count: int) -> list[float]:
    """Evenly spaced values within the control's range, each as the control would take it."""
    if count < 2 or high <= low:
        raise CaptionLabError("A sweep needs a range: give a 'to' above 'from' and at least two values.")
    step = control.step or 0.01
    steps = (round((low + i * (high - low) / (count - 1)) / step) * step for i in range(min(int(count), MAX_VALUES)))
    return list(dict.fromkeys(control.parse(round(value, 6)) for value in steps))


def sweep_figure(swept: Swept) -> go.Figure:
    """Each score along the values, the turning point as a line through all."""
    figure = make_subplots(rows=len(SCORES), cols=1, shared_xaxes=True, vertical_spacing=0.05)
    for row, (name, label, colour, _) in enumerate(SCORES, 1):
        text = [escape(r.caption) for r in swept.results]
        figure.add_scatter(
            x=swept.values, y=swept.scores(name), name=label, mode="lines+markers", line={"color": colour},
            text=text, hovertemplate="%{x}: %{y:.3g}<br>%{text}<extra></extra>", row=row, col=1,
        )  # fmt: skip
        figure.update_yaxes(title_text=label, row=row, col=1, **({"type": "log"} if name == "perplexity" else {}))
    figure.update_xaxes(title_text=swept.label, row=len(SCORES), col=1)
    if swept.turning_point is not None:
        marked = {"annotation_text": "best CLIPScore", "annotation_position": "top", "annotation_font_size": 10}
        figure.add_vline(x=swept.values[swept.turning_point], line={"dash": "dot", "color": "#888888"}, **marked)
    return dressed(figure, 480).update_layout(showlegend=False)


def sweep_table(swept: Swept) -> str:
    """The results as a table with one row per value."""
    rows = [
        [
            f"{value:g}{' ← best CLIPScore' if i == swept.turning_point else ''}",
            escape(r.caption),
            *(number(swept.scores(name)[i], form) for name, _, _, form in SCORES),
        ]
        for i, (value, r) in enumerate(zip(swept.values, swept.results, strict=True))
    ]
    return table(
        escape(f"{swept.title} over {swept.label}, {swept.input}"),
        [escape(swept.label), "caption", *(label for _, label, *_ in SCORES)],
        rows,
    )


def sweep_csv(swept: Swept | None) -> str:
    """The results as CSV, for a spreadsheet."""
    if swept is None:
        return ""
    rows = [
        [v, r.caption, *(swept.scores(n)[i] for n, *_ in SCORES)]
        for i, (v, r) in enumerate(zip(swept.values, swept.results, strict=True))
    ]
    return csv_text([swept.control, "caption", *(n for n, *_ in SCORES)], rows)


def sweep_json(swept: Swept | None) -> str:
    """The results as JSON, with their traces."""
    return "" if swept is None else json.dumps(to_json(swept), ensure_ascii=False)


class Sweep:
    """Layout and wiring; `source` is the file chosen in Compare.

    Whoever comes to the `tab` first finds a sweep that is already there.
    """

    def __init__(self, studio: Studio, specs: list[Spec], source: gr.State, tab: gr.Tab | None = None):
        self.studio, self.specs = studio, {s.id: s for s in specs}
        first, swept = specs[0], gr.State(None)
        gr.HTML(
            '<p class="cl-legend">One method, one control, and the input chosen in Compare: '
            "a caption at every value.</p>"
        )
        with gr.Row():
            method = gr.Dropdown([(s.title, s.id) for s in specs], value=first.id, label="Method", min_width=160)
            control = gr.Dropdown(**self._choices(first), label="Control", min_width=160)
            low, high = (
                gr.Number(value, label=label, min_width=80)
                for label, value in zip(("From", "To"), _range(swept_controls(first)[0]), strict=True)
            )
            count = gr.Slider(2, MAX_VALUES, 11, step=1, label="Values", min_width=120)
            run = gr.Button("Sweep", variant="primary", elem_id="cl-sweep", min_width=100)
        with gr.Row(elem_classes="cl-together"):
            plot = gr.Plot(label="Scores along the values", show_label=False, container=False, elem_classes="cl-plot")
            shown = gr.HTML(elem_classes="cl-swept")
        with gr.Row(elem_classes="cl-downloads"):
            save_button("Download CSV", "sweep.csv", sweep_csv, swept, "cl-sweep-csv")
            save_button("Download JSON", "sweep.json", sweep_json, swept, "cl-sweep-json")
        method.input(lambda m: gr.Dropdown(**self._choices(self.specs[m])), method, control, **PRIVATE).then(
            self._limits, [method, control], [low, high], **PRIVATE
        )
        control.input(self._limits, [method, control], [low, high], **PRIVATE)
        inputs = [source, method, control, low, high, count]
        run.click(self._run, inputs, [plot, shown, swept], **HEAVY, **PRIVATE)
        if tab is not None and not studio.lent:
            tab.select(self._begin, [swept, *inputs], [plot, shown, swept], **HEAVY, **PRIVATE)

    def _choices(self, spec: Spec) -> dict[str, Any]:
        controls = swept_controls(spec)
        return {"choices": [(c.label, c.name) for c in controls], "value": controls[0].name}

    def _limits(self, method: str, control: str) -> tuple[float, float]:
        return _range(_control(self.specs[method], control))

    def _begin(self, swept: Swept | None, source: str | None, *values: Any) -> tuple[Any, Any, Any]:
        """Run the open example when the tab is opened, instead of showing empty space."""
        return self._run(source, *values) if swept is None and source else (gr.skip(), gr.skip(), gr.skip())

    def _run(
        self, source: str | None, method: str, control: str, low: float, high: float, count: float
    ) -> tuple[Any, Any, Any]:
        try:
            media, spec = self.studio.media(source), self.specs[method]
            values = spread(_control(spec, control), low, high, int(count))
            points: list[dict[str, Any]] = [{control: value} for value in values]
            results = self.studio.results(media, method, [spec.settings(**point) for point in points])
        except CaptionLabError as error:
            raise gr.Error(str(error), print_exception=False) from error
        swept = Swept(method, control, values, results, spec.title, _control(spec, control).label, media.name)
        return sweep_figure(swept), sweep_table(swept), swept


def _control(spec: Spec, name: str) -> Control:
    return next(c for c in spec.controls if c.name == name)


def _range(control: Control) -> tuple[float, float]:
    """At most ten steps of a wide whole-number control, so that a sweep does not begin with 64 candidates."""
    return control.low, min(control.high, control.low + 10) if control.step == 1 else control.high
