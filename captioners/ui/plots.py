"""Figures from results. Backgrounds are transparent and text takes the page's colour, so that one figure serves light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from captioners.types import Result, Spec, TokenTrace
from captioners.ui.markup import number, shown

ORANGE, PURPLE, GREEN, GREY = "#e66101", "#8073ac", "#1b9e77", "#888888"
CURVES = {  # column → name, colour, dash
    "cond": ("with input", ORANGE, "solid"),
    "uncond": ("without", PURPLE, "dash"),
    "guided": ("guided", GREEN, "dot"),
    "lm": ("language model", GREY, "dashdot"),
}
GRID = "rgba(128,128,128,0.25)"
HOVER_ALTERNATIVES = 5
LEAST = 0.25  # nats: smaller differences must not look large


def trace_figure(trace: Sequence[TokenTrace]) -> go.Figure:
    """Per token: log-probabilities with and without the input and guided, above; their difference, below."""
    inner = any(t.steps for t in trace)
    heights = [0.45, 0.25, 0.3] if inner else [0.62, 0.38]
    figure = make_subplots(rows=len(heights), cols=1, shared_xaxes=True, row_heights=heights, vertical_spacing=0.06)
    x = [t.position for t in trace]
    for column, (name, colour, dash) in CURVES.items():
        y = [_finite(getattr(t, column)) for t in trace]
        if all(v is None for v in y):
            continue
        figure.add_scatter(
            x=x, y=y, name=name, mode="lines+markers", line={"color": colour, "width": 2, "dash": dash}, marker={"size": 5},
            text=[_hover(t, column) for t in trace], hovertemplate="%{text}<extra></extra>", row=1, col=1,
        )  # fmt: skip
    difference = [_finite(t.cond - t.uncond) for t in trace]
    figure.add_bar(
        x=x, y=difference, showlegend=False, marker={"color": [ORANGE if (d or 0) > 0 else PURPLE for d in difference]},
        text=[f"<b>{shown(t.token)}</b><br>difference {number(t.cond - t.uncond, '+.2f')}" for t in trace],
        hovertemplate="%{text}<extra></extra>", textposition="none", row=2, col=1,
    )  # fmt: skip
    if inner:
        _add_steps(figure, trace)
    figure.update_xaxes(
        tickvals=x,
        ticktext=[shown(t.token) for t in trace],
        tickangle=-60,
        tickfont={"size": 11 if len(x) < 16 else 8},
        row=len(heights),
        col=1,
    )
    figure.update_yaxes(title_text="log p", row=1, col=1)
    known = [d for d in difference if d is not None]
    ends = [min([-LEAST, *known]), max([LEAST, *known])]
    figure.update_yaxes(title_text="difference", range=[1.1 * end for end in ends], row=2, col=1)
    return dressed(figure, 420 if inner else 300)


def _add_steps(figure: go.Figure, trace: Sequence[TokenTrace]) -> None:
    """Step × position: what happened inside each token, along gradient or denoising steps."""
    name = _series(trace)
    depth = max(len(t.steps) for t in trace)
    z = [[_finite(t.steps[i].get(name)) if i < len(t.steps) else None for t in trace] for i in range(depth)]
    hover = f"%{{x}}, step %{{y}}<br>{escape(name)} %{{z:.3g}}<extra></extra>"
    bar = {"thickness": 6, "len": 0.3, "y": 0, "yanchor": "bottom"}
    figure.add_heatmap(
        x=[t.position for t in trace],
        y=list(range(1, depth + 1)),
        z=z,
        colorscale="Viridis",
        colorbar=bar,
        hovertemplate=hover,
        row=3,
        col=1,
    )
    figure.update_yaxes(title_text=f"{name}, by step", autorange="reversed", dtick=max(1, depth // 5), row=3, col=1)


def _series(trace: Sequence[TokenTrace]) -> str:
    """The guided log-probability where a method keeps it at every step, or its loss, or what it names first."""
    names = list(next(t.steps[0] for t in trace if t.steps))
    return next((name for name in ("guided", "loss") if name in names), names[0])


def comparison_figure(runs: Sequence[tuple[Spec, Result, Result]]) -> go.Figure:
    """CLIPScore against perplexity, an arrow from each method's unguided caption to its guided one."""
    figure = go.Figure()
    colours = (ORANGE, PURPLE, GREEN, "#2c7fb8")
    for i, (spec, guided, plain) in enumerate(runs):
        if not all(k in r.scores for r in (guided, plain) for k in ("perplexity", "clipscore")):
            continue
        ends = [(r.scores["perplexity"].value, r.scores["clipscore"].value) for r in (plain, guided)]
        figure.add_scatter(
            x=[e[0] for e in ends], y=[e[1] for e in ends], name=spec.title, mode="lines+markers",
            line={"color": colours[i % len(colours)], "width": 2},
            marker={"size": [8, 14], "symbol": ["circle-open", "arrow"], "angleref": "previous"},
            text=[f"<b>{word}</b><br>{escape(r.caption)}" for word, r in (("unguided", plain), ("guided", guided))],
            hovertemplate="%{text}<br>perplexity %{x:.3g}, CLIPScore %{y:.2f}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text="perplexity, logarithmic (← more fluent)", type="log")
    figure.update_yaxes(title_text="CLIPScore (↑ fits better)")
    return dressed(figure, 320)


def dressed(figure: go.Figure, height: int) -> go.Figure:
    """The look that all figures share."""
    figure.update_layout(
        height=height,
        margin={"l": 44, "r": 8, "t": 28, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"size": 11},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 10}},
        showlegend=True,
        hoverlabel={"bgcolor": "#1f2937", "font": {"color": "#ffffff", "size": 12}, "align": "left"},
        dragmode=False,
    )
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True, title_font={"size": 10})
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True, title_font={"size": 10})
    return figure


def _hover(trace: TokenTrace, column: str) -> str:
    best = "<br>".join(
        f"{shown(a.token)}  {number(100 * math.exp(a.logprob), '.1f')} %" for a in trace.alternatives.get(column, [])[:HOVER_ALTERNATIVES]
    )
    return f"<b>{shown(trace.token)}</b>  {CURVES[column][0]} {number(getattr(trace, column))}" + (f"<br>{best}" if best else "")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
