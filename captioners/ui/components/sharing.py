"""What leaves the page: a link that reopens the view, the run as JSON, and the run as one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import gradio as gr
import numpy as np

from captioners.media.data_uri import jpeg_uri
from captioners.resources import ASSETS
from captioners.types import Control, Media, Result, SettingsError, Spec, Step, StepToken, to_json
from captioners.ui.components import examples, knobs
from captioners.ui.rendering.card import body_html, head_html, numbers_html
from captioners.ui.rendering.tables import comparison_table
from captioners.ui.rendering.tint import legend

STYLE = ASSETS / "app.css"
WRITE_LINK = "(link) => { history.replaceState(null, '', link || location.pathname); }"


BAD_LINK = "This link is not quite right"


def columns(specs: Sequence[Spec], methods: Sequence[str]) -> list[gr.Column]:
    """The cards of the chosen methods are to be seen."""
    return [gr.Column(visible=s.id in methods) for s in specs]


class PageLink:
    """The page's state as a link's query and back. Uploads are left out.

    `?input=cat&methods=cfg,classifier&guidance_scale=3&seed=7&cfg.temperature=0.5`
    """

    def __init__(self, specs: Sequence[Spec], front: Mapping[str, Control]):
        self.specs, self.front = specs, dict(front)
        self.own = {f"{s.id}.{c.name}": c for s in specs for c in knobs.own_controls(s)}
        self.inputs = {Path(p).stem: p for p in (*examples.PICTURES, *examples.SOUNDS)}

    def link(
        self, source: str | None, methods: Sequence[str], touched: Sequence[str], seed: float, *values: Any
    ) -> str:
        """The address of the view, which holds only what differs from a fresh page."""
        query: dict[str, Any] = {}
        named = {Path(p).name: stem for stem, p in self.inputs.items()}.get(Path(source or "").name)
        if named and self.inputs[named] != examples.PICTURES[0]:
            query["input"] = named
        if len(methods) < len(self.specs):
            query["methods"] = ",".join(methods)
        if seed:
            query["seed"] = int(seed)
        for (name, control), value in zip((self.front | self.own).items(), values, strict=True):
            if name in touched or (name in self.own and value != control.default):
                query[name] = "auto" if value is None else value
        return f"?{urlencode(query, safe=',')}" if query else ""

    def restore(self, request: gr.Request) -> list[Any]:
        """Values for the cards, tabs, picture, sound, methods, touched, seed and every control; what is no good is
        left out and told of.
        """
        query = dict(request.query_params)
        source = self.inputs.get(query.get("input", ""), examples.PICTURES[0])
        sound = source in examples.SOUNDS
        values = {name: self._read(control, query.get(name)) for name, control in (self.front | self.own).items()}
        seed = query.get("seed", "0")
        touched = tuple(name for name in self.front if name in query)
        shown = [gr.Tabs(selected="audio"), gr.skip(), source] if sound else [gr.skip(), source, gr.skip()]
        methods = self._methods(query.get("methods"))
        return [
            *columns(self.specs, methods),
            *shown,
            methods,
            touched,
            int(seed) if seed.isdecimal() else 0,
            *values.values(),
        ]

    def _methods(self, text: str | None) -> list[str]:
        known = [s.id for s in self.specs]
        if text is None:
            return known
        named = text.split(",")
        for name in named:
            if name and name not in known:
                gr.Warning(f"There is no method called {name!r}: choose from {', '.join(known)}.", title=BAD_LINK)
        return [name for name in known if name in named]

    def _read(self, control: Control, text: str | None) -> Any:
        if text is None:
            return control.default
        try:
            return control.parse(text)
        except SettingsError as error:
            gr.Warning(str(error), title=BAD_LINK)
            return control.default


def as_json(*runs: tuple[Result, Result] | None) -> str:
    """The run as the API would answer it, the unguided captions beside the guided ones."""
    finished = [pair for pair in runs if pair]
    if not finished:
        return ""
    return json.dumps(
        {"results": to_json([r[0] for r in finished]), "unguided": to_json([r[1] for r in finished])},
        ensure_ascii=False,
    )


def as_html(media: Media, rows: Sequence[tuple[Spec, Result, Result]]) -> str:
    """One file with everything in it: opens anywhere, asks for nothing."""
    cards = "".join(
        f'<section class="cl-card">{head_html(spec)}{body_html(spec, _finished(guided), _finished(plain))}'
        f'<div class="cl-tail">{numbers_html(spec, guided, media)}</div></section>'
        for spec, guided, plain in rows
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Caption Lab: '
        f"{escape(media.name)}</title><style>{PLAIN}"
        f"{STYLE.read_text(encoding='utf-8')}</style><h1>Caption Lab: "
        f"{escape(media.name)}</h1>{_picture(media)}{legend()}"
        f'<div class="cl-cards">{cards}</div>{comparison_table(rows)}</html>'
    )


PLAIN = (
    ":root{--body-text-color:#111827;--body-text-color-subdued:#4b5563;--border-color-primary:#d1d5db;--background-fill-primary:#fff;"
    "--background-fill-secondary:#f3f4f6;--color-accent:#7c3aed}.cl-replay{display:none!important}body{font-family:system-ui,sans-serif;margin:1rem}img{max-width:20rem}"
)


def _finished(result: Result) -> Step:
    """A result as the last step of its own making."""
    tokens = [StepToken(t.token, "final", float(np.exp(t.guided))) for t in result.trace if not t.token.startswith("<")]
    return Step(
        len(tokens), len(tokens), tokens or [StepToken(result.caption, "final", 1.0)], result.trace, result=result
    )


def _picture(media: Media) -> str:
    if media.kind != "image":
        return f"<p>A sound of {media.seconds:.1f} s.</p>"
    return f'<img alt="{escape(media.name)}" src="{jpeg_uri(media, 480)}">'
