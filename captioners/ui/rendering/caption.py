"""A caption as HTML, in the making or finished: every token with its state, its tint and its alternatives."""

from __future__ import annotations

import math
from collections.abc import Container
from html import escape

from captioners.types import Step, StepToken, TokenTrace
from captioners.ui.rendering.markup import number, popover, shown
from captioners.ui.rendering.tint import tint

SHOWN_ALTERNATIVES = 8


def caption_html(
    method: str, step: Step, branches: tuple[str, str] = ("with input", "without"), changed: Container[int] = ()
) -> str:
    """The tokens of one moment. A finished caption's words are buttons that open their alternatives.

    `branches` are the method's own words for what the tint compares; `changed` are the positions that guidance changed.
    """
    traces = [*step.trace, *[None] * len(step.tokens)]
    if not step.tokens:
        return escape(step.result.caption) if step.result else '<span class="cl-waiting">…</span>'
    parts = []
    for i, token in enumerate(step.tokens):
        name, trace = f"cl-{method}-{i}", traces[i] if step.result else None
        parts.append(_token(name, i, token, traces[i], hint(trace, branches) if trace else "", i in changed))
    return "".join(parts)


def _token(
    name: str, position: int, token: StepToken, trace: TokenTrace | None, description: str, changed: bool
) -> str:
    gap = " " if token.text.startswith(" ") or token.state == "masked" else ""
    text = "▒▒▒" if token.state == "masked" else escape(token.text.strip()) or "␣"
    hue, style = tint(trace.cond - trace.uncond) if trace else ("cl-even", "")
    joined = "" if gap or not position else " cl-joined"  # a further piece of the same word
    if not (description and trace):
        return f'{gap}<span class="cl-token cl-{token.state} {hue}{joined}" style="{style}">{text}</span>'
    kind = f"cl-token cl-final {hue}{joined}{' cl-changed' if changed else ''}"
    return gap + popover(name, text, _alternatives(trace, description), kind, style, description)


def hint(trace: TokenTrace, branches: tuple[str, str]) -> str:
    """A hint that says in words what the tint shows."""
    values = f"{branches[0]} {number(trace.cond)}, {branches[1]} {number(trace.uncond)}"
    return f"{values}, difference {number(trace.cond - trace.uncond, '+.2f')}"


def _alternatives(trace: TokenTrace, description: str) -> str:
    """What could have stood here; each is a button that makes the method go on from it."""
    likely = trace.alternatives.get("guided") or next(iter(trace.alternatives.values()), [])
    rows = "".join(
        f'<button type="button" data-position="{trace.position}" data-token="{escape(a.token)}"'
        f"{' disabled' if a.token == trace.token or not a.token.strip() or a.token.strip().startswith('<') else ''}>"
        f"<span>{shown(a.token)}</span><span>{number(100 * math.exp(a.logprob), '.1f')} %</span></button>"
        for a in likely[:SHOWN_ALTERNATIVES]
    )
    head = f"<strong>{shown(trace.token)}</strong><small>{escape(description)}</small>"
    return f"{head}<small>Go on with another word here:</small>{rows}" if rows else head
