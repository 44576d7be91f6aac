"""What happened inside each token: a step × position heatmap where a caption was denoised, loss curves where a context
was moved.

Both come from `TokenTrace.steps`; the frames of the denoising from `Result.details["denoising"]`. A long run is thinned
out evenly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from captioners.types import Result, TokenTrace
from captioners.ui.rendering.markup import number, shown, table
from captioners.ui.rendering.tint import strength

ORANGE, PURPLE, GREEN, GREY = "#e66101", "#8073ac", "#1b9e77", "#888888"
LOSSES = {  # column of a gradient step → name, colour, dash
    "loss": ("loss", GREEN, "solid"),
    "relevance": ("relevance", ORANGE, "solid"),
    "classifier": ("classifier", PURPLE, "dash"),
    "fluency": ("fluency", GREY, "dot"),
}
MAX_STEPS = 50  # steps that are drawn

Drawn = tuple[list[dict[str, Any]], dict[str, Any]]  # a plot's traces and its y axis


def finite(value: float | None) -> float | None:
    """The value, or None where a plot cannot show it."""
    return value if value is not None and math.isfinite(value) else None


def thinned(count: int, most: int = MAX_STEPS) -> list[int]:
    """At most `most` of `count` steps, evenly spaced, the first and the last among them."""
    return list(range(count)) if count <= most else [round(i * (count - 1) / (most - 1)) for i in range(most)]


def is_denoised(result: Result) -> bool:
    """Whether the caption came out of noise as a whole, rather than word by word."""
    return "denoising" in result.details


def steps_row(result: Result) -> list[Drawn]:
    """The third row of a card's figure; none for a method without inner steps."""
    depth = max((len(t.steps) for t in result.trace), default=0)
    if not depth:
        return []
    return [_losses(result.trace) if "loss" in _names(result.trace) else _heatmap(result, depth)]


def _names(trace: Sequence[TokenTrace]) -> list[str]:
    return list(dict.fromkeys(name for t in trace for step in t.steps for name in step))


def _heatmap(result: Result, depth: int) -> Drawn:
    """How likely the final word was at each step."""
    trace, kept = result.trace, thinned(depth)
    z = [[_probability(t, k) for t in trace] for k in kept]
    heat = {
        "type": "heatmap",
        "name": "p(final word) at each step",
        "x": [t.position for t in trace],
        "y": [k + 1 for k in kept],
        "z": z,
        "zmin": 0,
        "zmax": 1,
        "colorscale": "Viridis",
        "colorbar": {
            "thickness": 6,
            "len": 0.38,
            "y": 0,
            "yanchor": "bottom",
            "tickvals": [0, 0.5, 1],
            "tickfont": {"size": 9},
        },
        "text": [[_moment(result, t, k) for t in trace] for k in kept],
        "hovertemplate": "step %{y}: %{text}<extra></extra>",
    }
    axis = {
        "title": {"text": "step", "font": {"size": 10}},
        "autorange": "reversed",
        "dtick": max(1, math.ceil(depth / 5)),
    }
    return [heat], axis


def _probability(trace: TokenTrace, step: int) -> float | None:
    value = finite(trace.steps[step].get("guided")) if step < len(trace.steps) else None
    return None if value is None else round(math.exp(value), 4)


def _moment(result: Result, trace: TokenTrace, step: int) -> str:
    """One cell in words: what stood there and how likely the final word was."""
    frames = result.details.get("denoising", [])
    tokens = frames[step]["tokens"] if step < len(frames) else []
    text, state = tokens[trace.position][:2] if trace.position < len(tokens) else ("", "")
    stood = "masked" if state == "masked" else f"“{shown(text)}”, {state}" if state else ""
    values = trace.steps[step] if step < len(trace.steps) else {}
    logprobs = " ".join(f"{name} {number(values[name])}" for name in ("cond", "uncond", "guided") if name in values)
    return f"{stood}<br><b>{shown(trace.token)}</b> {logprobs}"


def _losses(trace: Sequence[TokenTrace]) -> Drawn:
    """The weighted terms along the gradient steps, each token's run around its place on the axis."""
    drawn = []
    for column, (name, colour, dash) in LOSSES.items():
        x, y, text = [], [], []
        for t in trace:
            for i, step in enumerate(t.steps):
                x.append(t.position + 0.8 * ((i + 0.5) / len(t.steps) - 0.5))
                y.append(finite(step.get(column)))
                text.append(
                    f"<b>{shown(t.token)}</b> step {i}: {name} {number(step.get(column))}, p "
                    f"{number(step.get('probability'))}"
                )
            x.append(t.position + 0.5)  # a gap between two tokens
            y.append(None)
            text.append("")
        if any(v is not None for v in y):
            line = {
                "mode": "lines+markers",
                "marker": {"size": 3},
                "line": {"color": colour, "width": 1.5, "dash": dash},
            }
            drawn.append(
                {
                    "type": "scatter",
                    "name": name,
                    "x": x,
                    "y": y,
                    "text": text,
                    "hovertemplate": "%{text}<extra></extra>",
                    **line,
                }
            )
    return drawn, {"title": {"text": "loss", "font": {"size": 10}}, "rangemode": "tozero"}


# ------------------------------------------------------------------------------------------------------ in plain HTML


def replay_html(method: str, result: Result) -> str:
    """A slider over the steps and the caption as it stood at each; drawn by the page's script from the frames it
    carries.
    """
    frames = result.details.get("denoising", [])
    if not frames:
        return ""
    kept = thinned(len(frames))
    data = [
        [frames[k]["step"], [_frame_token(result.trace, i, k, token) for i, token in enumerate(frames[k]["tokens"])]]
        for k in kept
    ]
    last = len(kept) - 1
    name = f"cl-{method}-step"
    return (
        f'<div class="cl-replay" data-frames="{escape(json.dumps(data, ensure_ascii=False))}"><label '
        f'for="{name}">Step</label>'
        f'<input type="range" id="{name}" min="0" max="{last}" value="{last}" aria-valuetext="step '
        f'{frames[kept[-1]]["step"]}">'
        f'<output for="{name}">{frames[kept[-1]]["step"]} of {frames[-1]["step"]}</output><p aria-live="off"></p></div>'
    )


def _frame_token(trace: Sequence[TokenTrace], position: int, step: int, token: Sequence[Any]) -> list[Any]:
    """[text, state, signed strength of its tint] of one position at one step."""
    steps = trace[position].steps if position < len(trace) else []
    values = steps[step] if step < len(steps) else {}
    difference = values.get("cond", math.nan) - values.get("uncond", math.nan)
    return [token[0], token[1], strength(difference) if token[1] != "masked" else 0]


def steps_table(result: Result) -> str:
    """The heatmap or the curves in numbers; nothing for a method without inner steps."""
    trace, names = result.trace, _names(result.trace)
    if not names:
        return ""
    if "loss" in names:
        columns = [n for n in (*LOSSES, "probability") if n in names]
        rows = [
            [f"{shown(t.token)}, {i}", *(number(s.get(n)) for n in columns)]
            for t in trace
            for i, s in enumerate(t.steps)
        ]
        return table("Weighted losses along the gradient steps", ["token, step", *columns], rows)
    kept = thinned(max(len(t.steps) for t in trace))
    rows = [[str(k + 1), *(_percent(_probability(t, k)) for t in trace)] for k in kept]
    return table("Probability of the final word at each step, %", ["step", *(shown(t.token) for t in trace)], rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else number(100 * value, ".0f")
