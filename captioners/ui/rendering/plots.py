"""Figures from results.

Backgrounds are transparent and text takes the page's colour, so that one figure serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from captioners.types import Result, Spec, TokenTrace
from captioners.ui.rendering.markup import number, shown
from captioners.ui.rendering.steps import GREEN, GREY, ORANGE, PURPLE, Drawn, finite, steps_row

CURVES = {  # column → colour, dash
    "cond": (ORANGE, "solid"),
    "uncond": (PURPLE, "dash"),
    "guided": (GREEN, "dot"),
    "lm": (GREY, "dashdot"),
}
GRID = "rgba(128,128,128,0.25)"
AXIS = {"gridcolor": GRID, "zerolinecolor": GRID, "automargin": True}
LOOK: dict[str, Any] = {
    "margin": {"l": 40, "r": 4, "t": 22, "b": 4},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"size": 11},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 10}},
    "showlegend": True,
    "hoverlabel": {"bgcolor": "#1f2937", "font": {"color": "#ffffff", "size": 12}, "align": "left"},
    "dragmode": False,
}
KEY = {
    "xref": "paper",
    "yref": "paper",
    "x": 0,
    "xshift": -36,
    "xanchor": "left",
    "yanchor": "bottom",
    "showarrow": False,
    "font": {"size": 10},
}
DASHES = {"solid": "━", "dash": "╍", "dot": "┅", "dashdot": "┉"}
HOVER_ALTERNATIVES = 5
HEIGHT = 330  # the same for every card
# of the rows, with a line for a key above each
DOMAINS = {2: [(0.47, 1), (0, 0.38)], 3: [(0.71, 1), (0.46, 0.62), (0, 0.36)]}
LEAST = 0.25  # nats: smaller differences must not look large


def trace_figure(spec: Spec, result: Result) -> go.Figure:
    """Per token: log-probabilities of both branches and guided, above; their difference, below; then inner steps if
    any.

    Drawn after every caption, so it is plain data that Plotly need not check: 2 ms instead of 34.
    """
    trace = result.trace
    x = [t.position for t in trace]
    rows = [_curves(trace, spec.branches), _difference(trace, spec.branches), *steps_row(result)]
    layout: dict[str, Any] = {**LOOK, "height": HEIGHT, "showlegend": False, "annotations": []}
    for i, (bottom, top) in enumerate(DOMAINS[len(rows)]):
        suffix = str(i + 1) if i else ""
        layout[f"yaxis{suffix}"] = {**AXIS, "domain": [bottom, top], "anchor": f"x{suffix}", **rows[i][1]}
        layout[f"xaxis{suffix}"] = {**AXIS, "anchor": f"y{suffix}", "matches": "x", "showticklabels": False}
        layout["annotations"].append({**KEY, "y": top, "text": _key(rows[i][0])})
        for drawn in rows[i][0]:
            drawn |= {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
    small = {"size": 11 if len(x) < 16 else 8}
    words = {
        "tickvals": x,
        "ticktext": [shown(t.token) for t in trace],
        "tickangle": -60,
        "tickfont": small,
        "showticklabels": True,
    }
    layout[f"xaxis{len(rows)}"] |= words
    return go.Figure({"data": [drawn for traces, _ in rows for drawn in traces], "layout": layout}, _validate=False)


def _key(drawn: Sequence[dict[str, Any]]) -> str:
    """The curves' names in their colours on one line; Plotly's own legend takes a line for each on a narrow card."""
    lines = [(d["name"], d["line"]) for d in drawn if "line" in d]
    if not lines:
        return escape(drawn[0]["name"])
    return " ".join(
        f'<span style="color:{line["color"]}">{DASHES[line["dash"]]} {escape(name)}</span>' for name, line in lines
    )


def _curves(trace: Sequence[TokenTrace], branches: tuple[str, str]) -> Drawn:
    drawn, names = [], dict(zip(CURVES, (*branches, "guided", "LM"), strict=True))
    for column, (colour, dash) in CURVES.items():
        y = [finite(getattr(t, column)) for t in trace]
        if any(v is not None for v in y):
            line = {"line": {"color": colour, "width": 2, "dash": dash}, "marker": {"size": 5}, "mode": "lines+markers"}
            hover = {
                "text": [_hover(t, column, names[column]) for t in trace],
                "hovertemplate": "%{text}<extra></extra>",
            }
            drawn.append(
                {"type": "scatter", "name": names[column], "x": [t.position for t in trace], "y": y, **line, **hover}
            )
    return drawn, {"title": {"text": "log p", "font": {"size": 10}}}


def _difference(trace: Sequence[TokenTrace], branches: tuple[str, str]) -> Drawn:
    y = [finite(t.cond - t.uncond) for t in trace]
    bars = {
        "type": "bar",
        "name": f"difference, {branches[0]} − {branches[1]}",
        "x": [t.position for t in trace],
        "y": y,
        "showlegend": False,
        "marker": {"color": [ORANGE if (d or 0) > 0 else PURPLE for d in y]},
        "text": [f"<b>{shown(t.token)}</b><br>difference {number(t.cond - t.uncond, '+.2f')}" for t in trace],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }
    known = [d for d in y if d is not None]
    ends = [1.1 * min([-LEAST, *known]), 1.1 * max([LEAST, *known])]
    return [bars], {"title": {"text": "nats", "font": {"size": 10}}, "range": ends, "nticks": 4}


def comparison_figure(runs: Sequence[tuple[Spec, Result, Result]]) -> go.Figure:
    """CLIPScore against perplexity, an arrow from each method's unguided caption to its guided one."""
    figure = go.Figure()
    colours = (ORANGE, PURPLE, GREEN, "#2c7fb8")
    for i, (spec, guided, plain) in enumerate(runs):
        if not all(k in r.scores for r in (guided, plain) for k in ("perplexity", "clipscore")):
            continue
        ends = [(r.scores["perplexity"].value, r.scores["clipscore"].value) for r in (plain, guided)]
        text = [
            f"<b>{escape(spec.title)}, {w}</b><br>{escape(r.caption)}"
            for w, r in (("unguided", plain), ("guided", guided))
        ]
        shared: dict[str, Any] = {
            "legendgroup": spec.id,
            "line": {"color": colours[i % len(colours)], "width": 2},
            "hovertemplate": "%{text}<br>perplexity %{x:.3g}, CLIPScore %{y:.2f}<extra></extra>",
        }
        unchanged = ends[0] == ends[1]  # no arrow without a way to go
        figure.add_scatter(
            x=[e[0] for e in ends], y=[e[1] for e in ends], name=spec.title + (" (no change)" if unchanged else ""), text=text,
            mode="lines+markers", marker={"size": 14, "symbol": "circle" if unchanged else "arrow", "angleref": "previous",
            "opacity": [0, 1]}, **shared,
        )  # fmt: skip
        if not unchanged:
            circle = {"size": 9, "symbol": "circle-open", "line": {"width": 2}}
            figure.add_scatter(
                x=[ends[0][0]], y=[ends[0][1]], text=text[:1], mode="markers", marker=circle, showlegend=False, **shared
            )
    ticks = [m * 10**k for k in range(6) for m in (1, 2, 5)]
    figure.update_xaxes(
        title_text="perplexity, logarithmic (← more fluent)",
        type="log",
        tickvals=ticks,
        ticktext=[f"{t:,}" for t in ticks],
    )
    figure.update_yaxes(title_text="CLIPScore (↑ fits better)")
    return dressed(figure, 320)


def dressed(figure: go.Figure, height: int) -> go.Figure:
    """The look that all figures share."""
    figure.update_layout(height=height, **LOOK)
    figure.update_xaxes(**AXIS, title_font={"size": 10})
    figure.update_yaxes(**AXIS, title_font={"size": 10})
    return figure


def _hover(trace: TokenTrace, column: str, name: str) -> str:
    best = "<br>".join(
        f"{shown(a.token)}  {number(100 * math.exp(a.logprob), '.1f')} %"
        for a in trace.alternatives.get(column, [])[:HOVER_ALTERNATIVES]
    )
    return f"<b>{shown(trace.token)}</b>  {name} {number(getattr(trace, column))}" + (f"<br>{best}" if best else "")
