"""A caption as HTML, in the making or finished: every token with its state, its tint and its alternatives."""

from __future__ import annotations

import math
from html import escape

from captioners.types import Step, StepToken, TokenTrace
from captioners.ui.rendering.markup import number, popover, shown
from captioners.ui.rendering.tint import tint

SHOWN_ALTERNATIVES = 8


def caption_html(method: str, step: Step) -> str:
    """The tokens of one moment. A finished caption's words are buttons that open their alternatives."""
    traces = [*step.trace, *[None] * len(step.tokens)]
    if not step.tokens:
        return escape(step.result.caption) if step.result else '<span class="cl-waiting">…</span>'
    return "".join(_token(method, i, token, traces[i], step.result is not None) for i, token in enumerate(step.tokens))


def _token(method: str, position: int, token: StepToken, trace: TokenTrace | None, done: bool) -> str:
    gap = " " if token.text.startswith(" ") or token.state == "masked" else ""
    text = "▒▒▒" if token.state == "masked" else escape(token.text.strip()) or "␣"
    hue, style = tint(trace.cond - trace.uncond) if trace else ("cl-even", "")
    joined = "" if gap or not position else " cl-joined"  # a further piece of the same word
    if not (done and trace):
        return f'{gap}<span class="cl-token cl-{token.state} {hue}{joined}" style="{style}">{text}</span>'
    name = f"cl-{method}-{position}"
    return gap + popover(name, text, _alternatives(trace), f"cl-token cl-final {hue}{joined}", style, hint(trace))


def hint(trace: TokenTrace) -> str:
    """A hint that says in words what the tint shows."""
    return f"with the input {number(trace.cond)}, without {number(trace.uncond)}, difference {number(trace.cond - trace.uncond, '+.2f')}"


def _alternatives(trace: TokenTrace) -> str:
    """What could have stood here; each is a button that makes the method go on from it."""
    likely = trace.alternatives.get("guided") or next(iter(trace.alternatives.values()), [])
    rows = "".join(
        f'<button type="button" data-position="{trace.position}" data-token="{escape(a.token)}"'
        f"{' disabled' if a.token == trace.token or not a.token.strip() or a.token.strip().startswith('<') else ''}>"
        f"<span>{shown(a.token)}</span><span>{number(100 * math.exp(a.logprob), '.1f')} %</span></button>"
        for a in likely[:SHOWN_ALTERNATIVES]
    )
    head = f"<strong>{shown(trace.token)}</strong><small>{escape(hint(trace))}</small>"
    return f"{head}<small>Go on with another word here:</small>{rows}" if rows else head
