"""A sweep as the papers draw it: every metric along the swept control, and what is gained against what is paid, on one
page.

The page needs nothing else: plotly is inside, and so are the numbers, the captions of every setting and the command
that made it.
"""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from captioners.evaluation.report import Report, RunReport
from captioners.evaluation.tables import captions_table, document, metrics_table, notes_list

COLOURS = ("#7b3294", "#e66101", "#1b7837", "#2166ac", "#b2182b", "#666666")
ALONG = (  # metric, label: those that a run has are drawn
    ("clipscore", "CLIPScore"),
    ("recall@1", "recall@1"),
    ("cider", "CIDEr"),
    ("bleu-4", "BLEU-4"),
    ("meteor", "METEOR"),
    ("bertscore", "BERTScore"),
    ("perplexity", "perplexity"),
    ("audibility", "audible"),
    ("named", "sound named"),
    ("objects_named", "main object named"),
    ("objects_right", "objects said that are there"),
    ("self-bleu", "Self-BLEU of the candidates"),
    ("candidates-dist-2", "Dist-2 of the candidates"),
    ("distinct", "distinct captions"),
    ("vocabulary", "vocabulary"),
    ("words", "words"),
    ("pointing", "words from inside their boxes"),
    ("gain-content", "cond − uncond, content words"),
    ("gain-function", "cond − uncond, function words"),
)
TRADES = (
    ("cider", "recall@1"),
    ("cider", "clipscore"),
    ("perplexity", "clipscore"),
    ("audibility", "named"),
    ("self-bleu", "clipscore"),
    ("objects_right", "objects_named"),
)
LABELS = dict(ALONG)
COLUMNS = 3
GREY = "#666666"


def swept(runs: list[RunReport]) -> list[str]:
    """The controls in which the runs differ, the one to draw along first: a number with the most values."""
    settings = [run.settings for run in runs]
    values = {name: {str(s[name]) for s in settings} for name in settings[0]}

    def order(name: str) -> tuple[bool, int]:
        numeric = all(isinstance(s[name], int | float) and not isinstance(s[name], bool) for s in settings)
        return not numeric, -len(values[name])

    return sorted((name for name, distinct in values.items() if len(distinct) > 1), key=order)


def series(runs: list[RunReport]) -> tuple[str, dict[str, list[RunReport]]]:
    """The control to draw along, and the runs of each line: those that agree in every other swept control."""
    names = swept(runs)
    if not names:
        return "", {runs[0].method: runs}
    along, *others = names
    lines: dict[str, list[RunReport]] = {}
    for run in runs:
        label = ", ".join(f"{name} = {run.settings[name]}" for name in others) or run.method
        lines.setdefault(label, []).append(run)
    for line in lines.values():
        if all(isinstance(run.settings[along], int | float) for run in line):
            line.sort(key=lambda run: run.settings[along])
    return along, lines


def along_figure(runs: list[RunReport], people: RunReport | None = None) -> go.Figure:
    """One panel for each metric, with 95 % intervals; a dotted line where people's own captions lie."""
    along, lines = series(runs)
    panels = [(name, label) for name, label in ALONG if any(name in run.metrics for run in runs)]
    rows = -(-len(panels) // COLUMNS)
    figure = make_subplots(
        rows=rows, cols=COLUMNS, subplot_titles=[label for _, label in panels], vertical_spacing=0.25 / rows
    )
    for index, (name, _) in enumerate(panels):
        for (label, line), colour in zip(lines.items(), _colours(), strict=False):
            known = [run for run in line if name in run.metrics]
            metrics = [run.metrics[name] for run in known]
            error = {
                "type": "data",
                "symmetric": False,
                "array": [m.high - m.mean for m in metrics],
                "arrayminus": [m.mean - m.low for m in metrics],
                "thickness": 1,
            }
            figure.add_scatter(
                x=[run.settings.get(along) for run in known], y=[m.mean for m in metrics], error_y=error, mode="lines+markers",
                name=label, legendgroup=label, showlegend=index == 0 and len(lines) > 1, line={"color": colour},
                row=index // COLUMNS + 1, col=index % COLUMNS + 1,
            )  # fmt: skip
        place = {"row": index // COLUMNS + 1, "col": index % COLUMNS + 1}
        if people and name in people.metrics:
            level = people.metrics[name].mean
            figure.add_hline(y=level, line={"color": GREY, "dash": "dot"}, annotation_text="people", **place)
        figure.update_xaxes(title_text=along, **place)
    return _dressed(figure, 300 * rows)


def trade_figure(runs: list[RunReport], paid: str, gained: str) -> go.Figure:
    """One metric against another, a point for each setting: what lies further up and right is better."""
    along, lines = series(runs)
    figure = go.Figure()
    for (label, line), colour in zip(lines.items(), _colours(), strict=False):
        figure.add_scatter(
            x=[run.metrics[paid].mean for run in line], y=[run.metrics[gained].mean for run in line],
            text=[str(run.settings.get(along, "")) for run in line], textposition="top center", mode="lines+markers+text",
            name=label, showlegend=len(lines) > 1, line={"color": colour},
            hovertemplate=f"{escape(along)} = %{{text}}<br>{paid} %{{x:.3f}}<br>{gained} %{{y:.3f}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text=LABELS[paid])
    figure.update_yaxes(title_text=LABELS[gained])
    return _dressed(figure, 420)


def sweep_page(report: Report) -> str:
    """Figures, tables, captions, command."""
    runs = report.runs
    along, _ = series(runs)
    trades = [
        (paid, gained)
        for paid, gained in TRADES
        if len(runs) > 1 and all(paid in r.metrics and gained in r.metrics for r in runs)
    ]
    method = runs[0].method
    figures = [(f"Along {along}" if along else "The run", along_figure(runs, report.people))]
    figures += [
        (f"{LABELS[gained]} against {LABELS[paid]}", trade_figure(runs, paid, gained)) for paid, gained in trades
    ]
    drawn = "".join(
        f"<h2>{escape(title)}</h2>{figure.to_html(full_html=False, include_plotlyjs=False)}"
        for title, figure in figures
    )
    body = f"""<script>{get_plotlyjs()}</script>
<p>{runs[0].n} items. Means with 95 % intervals. Made by</p><pre>{escape(report.command)}</pre>
{drawn}<h2>Numbers</h2>{metrics_table(report.rows)}{notes_list(report.rows)}<h2>Captions</h2>{captions_table(report.rows)}"""
    return document(f"Sweep of {method} over {report.dataset}" + (f", {report.split}" if report.split else ""), body)


def _colours() -> list[str]:
    return [*COLOURS] * 20


def _dressed(figure: go.Figure, height: int) -> go.Figure:
    return figure.update_layout(template="plotly_white", height=height, margin={"l": 50, "r": 20, "t": 40, "b": 40})
