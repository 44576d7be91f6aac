"""A finished evaluation for people: a table of text, a CSV file of all captions, a page of HTML that needs nothing
else.
"""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from captioners.evaluation.report import PEOPLE, Interval, Report, RunReport
from captioners.spreadsheets import csv_text
from captioners.types import to_json

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums } small { color: #666 }
"""


def metric_names(runs: list[RunReport]) -> list[str]:
    """All metrics of all runs, in the order of the first that has them."""
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def labels(runs: list[RunReport]) -> list[str]:
    """A name for each run: its method, and the settings in which it differs from other runs of that method."""
    names = []
    for run in runs:
        kin = [other.settings for other in runs if other.method == run.method]
        own = [f"{name}={value}" for name, value in run.settings.items() if any(other[name] != value for other in kin)]
        names.append(" ".join([run.method, *own]))
    return names


def number(value: float | None) -> str:
    """Three decimals below ten, fewer above."""
    return (
        "–"
        if value is None or not math.isfinite(value)
        else f"{value:.{3 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
    )


def interval(metric: Interval | None) -> str:
    """A metric's mean and 95 % interval in words."""
    return f"{number(metric.mean)} [{number(metric.low)}, {number(metric.high)}]" if metric else ""


def text_table(report: Report) -> str:
    """One column for each run, then what could not be done."""
    runs = report.rows
    table = [["", *labels(runs)], ["n", *(str(run.n) for run in runs)]]
    table += [[name, *(interval(run.metrics.get(name)) for run in runs)] for name in metric_names(runs)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(lines + remarks(runs, most=5))


def remarks(runs: list[RunReport], most: int | None = None) -> list[str]:
    """Encoders, notes and failed items of all runs, each said once; at most `most` of the failed ones by name."""
    by_encoder: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, encoder in run.encoders.items():
            by_encoder.setdefault(encoder, {})[name] = None
    encoders = [f"{', '.join(names)}: by {encoder}" for encoder, names in by_encoder.items()]
    notes = dict.fromkeys(note for run in runs for note in run.notes)
    failed = list(dict.fromkeys(f"{f.id} failed: {f.reason}" for run in runs for f in run.failed))
    count = [f"{len(failed)} items failed."] if failed else []
    return [*encoders, *notes, *count, *failed[:most]]


def write_csv(report: Report, path: Path) -> None:
    """Write the captions and their scores as CSV, one line for each."""
    runs = report.runs
    names = list(dict.fromkeys(name for run in runs for name in run.items[0].scores))
    rows = [
        [label, item.id, item.caption, *(to_json(item.scores.get(name)) for name in names)]
        for label, run in zip(labels(runs), runs, strict=True)
        for item in run.items
    ]
    path.write_text(csv_text(["run", "id", "caption", *names], rows), encoding="utf-8", newline="")


def html_page(report: Report) -> str:
    """The metrics of every run side by side, then the captions of every item side by side."""
    runs = report.rows
    title = f"Evaluation of {report.dataset}" + (f", {report.split}" if report.split else "")
    provenance = f"<p>Made by</p><pre>{escape(report.command)}</pre>" if report.command else ""
    return document(
        title,
        f"<p>Means with 95 % intervals.</p>{provenance}{metrics_table(runs)}{notes_list(runs)}{captions_table(runs)}",
    )


def document(title: str, body: str) -> str:
    """A whole HTML page around a body."""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{STYLE}</style>
<h1>{escape(title)}</h1>
{body}
</html>
"""


def metrics_table(runs: list[RunReport]) -> str:
    """All metrics as a table with a column for each run."""
    lines = "".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(f'<td class="number">{interval(run.metrics.get(name))}</td>' for run in runs)
        + "</tr>"
        for name in metric_names(runs)
    )
    return f"<table>{_head(runs)}{lines}</table>"


def notes_list(runs: list[RunReport]) -> str:
    """Settings of every run, and what is to be known."""
    settings = [f"{run.method}: {_settings(run.settings)}" for run in runs if run.settings]
    if any(run.method == PEOPLE for run in runs):
        settings.append(f"{PEOPLE}: each item's first reference caption, measured against the others")
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in [*settings, *remarks(runs)]) + "</ul>"


def _head(runs: list[RunReport]) -> str:
    cells = zip(labels(runs), runs, strict=True)
    return (
        "<tr><th></th>"
        + "".join(f"<th>{escape(label)}<br><small>{run.n} captions</small></th>" for label, run in cells)
        + "</tr>"
    )


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items() if value not in (None, "", {}))


def captions_table(runs: list[RunReport]) -> str:
    """One line for each item; an item with several captions in a run has them one below the other."""
    cells: dict[str, list[list[str]]] = {}
    for column, run in enumerate(runs):
        for item in run.items:
            scores = " · ".join(
                f"{name} {number(item.scores[name])}" for name in ("clipscore", "cider") if name in item.scores
            )
            cell = f"{escape(item.caption)} <small>{scores}</small>"
            cells.setdefault(item.id, [[] for _ in runs])[column].append(cell)
    lines = []
    for name, row in cells.items():
        columns = "".join(f"<td>{'<br>'.join(cell)}</td>" for cell in row)
        lines.append(f"<tr><td><small>{escape(name)}</small></td>{columns}</tr>")
    return f"<table>{_head(runs)}{''.join(lines)}</table>"
