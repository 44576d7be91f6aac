"""A study for people: a table of text, a page of HTML with its plots drawn inside, and every vote as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from captioners.evaluation.tables import document
from captioners.spreadsheets import csv_text
from captioners.study.analysis import Bounds, JudgeAgreement, QuestionReport, Standing, StudyReport, WinRate, preference
from captioners.study.store import Vote

Line = tuple[str, float, float | None, float | None]  # label, value, low, high
LETTER, FIELD, RIGHT, ROW, TOP = 7, 220, 66, 24, 6  # pixels: of a letter, of the plot, beside, of a line, above
NOTE = (
    "Strengths are Bradley–Terry log-odds (ties by Davidson's model) with mean 0; their intervals, and the judges', "
    "come from resampling inputs and raters. Win rates leave ties out and have Wilson intervals, which take votes for "
    "independent. All intervals are 95 %. Krippendorff's α is 1 when raters agree, 0 at chance."
)


def interval(value: float | None, bounds: Bounds, percent: bool = False) -> str:
    """A value and its interval in words."""

    def one(number: float | None) -> str:
        return "–" if number is None else f"{number:.0%}" if percent else f"{number:.2f}".replace("-", "−")

    return one(value) if bounds["low"] is None else f"{one(value)} [{one(bounds['low'])}, {one(bounds['high'])}]"


def comparison(row: WinRate | JudgeAgreement) -> str:
    """Which two systems met; a judge's first line is about all of them."""
    return f"{row['a']} : {row['b']}" if row["a"] else "all comparisons"


def text_report(report: StudyReport) -> str:
    """The figures as plain lines."""
    lines = [f"{report['title']} ({report['study']})", summary(report)]
    for question in report["questions"]:
        alpha = "–" if question["alpha"] is None else f"{question['alpha']:.2f}"
        lines += ["", f"{question['text']} {question['votes']} votes, Krippendorff's α {alpha}"]
        lines += [f"  {row['system']}: strength {interval(row['strength'], row)}" for row in question["strengths"]]
        lines += [
            f"  {row['a']} beats {row['b']}: {interval(row['rate'], row, True)}, {ties(row)}"
            for row in question["wins"]
        ]
        lines += [
            f"  {row['judge']} agrees with people, {comparison(row)}: {interval(row['rate'], row, True)}"
            for row in question["judges"]
        ]
    return "\n".join(lines)


def summary(report: StudyReport) -> str:
    """Who took part."""
    excluded, checks = len(report["excluded"]), report["checks"]
    left_out = f"; {excluded} left out for failing half of their attention checks or more" if excluded else ""
    return (
        f"{report['raters']} raters, {report['inputs']} inputs{left_out}. "
        f"Attention checks: {checks['passed']} answers right, {checks['failed']} wrong."
    )


def ties(row: WinRate) -> str:
    """The three counts of a comparison."""
    return f"{row['a_wins']} : {row['b_wins']}, {row['neither']} without preference"


def forest_svg(title: str, lines: Sequence[Line], middle: float, percent: bool = False) -> str:
    """Values with their intervals, one below the other; the dashed line is where nothing differs.

    Drawn in the colour of the text.
    """
    ends = [end for _, value, low, high in lines for end in (value, low, high) if end is not None]
    low, high = (0.0, 1.0) if percent else (min([middle - 0.5, *ends]), max([middle + 0.5, *ends]))
    # the plot begins right of the longest label
    start = 20 + LETTER * max((len(label) for label, *_ in lines), default=0)
    width, height = start + FIELD + RIGHT, TOP + ROW * len(lines) + 24

    def x(value: float) -> float:
        return round(start + (value - low) / (high - low) * FIELD, 1)

    def label_of(value: float) -> str:
        return f"{value:.0%}" if percent else f"{value:.2f}".replace("-", "−")

    drawn = [
        f'<line x1="{x(middle)}" x2="{x(middle)}" y1="{TOP}" y2="{height - 24}" stroke="currentColor" '
        'stroke-dasharray="3 3"/>'
    ]
    for row, (label, value, left, right) in enumerate(lines):
        y = TOP + ROW * (row + 0.5)
        drawn.append(f'<text x="{start - 10}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        if left is not None and right is not None:
            drawn.append(
                f'<line x1="{x(left)}" x2="{x(right)}" y1="{y}" y2="{y}" stroke="currentColor" stroke-width="2"/>'
            )
        drawn.append(f'<circle cx="{x(value)}" cy="{y}" r="4.5" fill="currentColor"/>')
        drawn.append(f'<text x="{start + FIELD + 14}" y="{y + 4}">{label_of(value)}</text>')
    for value in (low, middle, high):
        drawn.append(f'<text x="{x(value)}" y="{height - 6}" text-anchor="middle">{label_of(value)}</text>')
    style = f"max-width:{width * 1.2:.0f}px;width:100%;font:13px system-ui,sans-serif;fill:currentColor"
    return (
        f'<svg role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {width} {height}" '
        f'style="{style}">{"".join(drawn)}</svg>'
    )


def strength_plot(question: Standing | QuestionReport) -> str:
    """Bradley–Terry strengths; a plot for each group of systems that can be compared."""
    groups: dict[int, list[Line]] = {}
    for row in question["strengths"]:
        groups.setdefault(row["group"], []).append((row["system"], row["strength"], row["low"], row["high"]))
    return "".join(forest_svg(f"Strengths: {question['text']}", lines, 0.0) for lines in groups.values())


def figures_html(report: StudyReport) -> str:
    """Plots and tables of every question, without the page around them."""
    parts = [f"<p>{escape(summary(report))}</p>"]
    for question in report["questions"]:
        alpha = "–" if question["alpha"] is None else f"{question['alpha']:.2f}".replace("-", "−")
        parts.append(f"<h2>{escape(question['text'])}</h2><p>{question['votes']} votes. Krippendorff's α: {alpha}.</p>")
        if not question["votes"]:
            continue
        judged = [
            (f"{row['judge']}, {comparison(row)}", row["rate"], row["low"], row["high"]) for row in question["judges"]
        ]
        decided = [
            (comparison(row), row["rate"], row["low"], row["high"])
            for row in question["wins"]
            if row["rate"] is not None
        ]
        parts += [
            "<h3>Strengths</h3>", strength_plot(question),
            _table(["system", "strength"], [[r["system"], interval(r["strength"], r)] for r in question["strengths"]]),
            "<h3>Win rates</h3>", forest_svg(f"Win rates: {question['text']}", decided, 0.5, True),
            _table(["comparison", "first preferred", "votes"],
                   [[comparison(r), interval(r["rate"], r, True), ties(r)] for r in question["wins"]]),
            "<h3>Do the judges prefer what people prefer?</h3>",
            forest_svg(f"Judges: {question['text']}", judged, 0.5, True),
            _table(["judge", "comparison", "agrees with people", "votes"],
                   [[r["judge"], comparison(r), interval(r["rate"], r, True), f"{r['agreed']} of {r['of']}"] for r in question["judges"]]),
        ]  # fmt: skip
    return "".join([*parts, f"<p><small>{escape(NOTE)}</small></p>"])


def html_report(report: StudyReport) -> str:
    """A whole page that needs nothing else."""
    return document(f"Blind study: {report['title']}", figures_html(report))


CSV_HEAD = (
    "rater", "item", "question", "system_a", "system_b", "answer", "left", "seconds", "check", "clipscore", "perplexity",
    "caption_a", "caption_b",
)  # fmt: skip


def csv_report(votes: Sequence[Vote]) -> str:
    """One line for each answer; `clipscore` and `perplexity` are what these judges prefer."""
    rows = []
    for v in votes:
        verdicts = [preference(judge, v) for judge in ("clipscore", "perplexity")]
        identity = [v.rater, v.item, v.question, v.system_a, v.system_b]
        rows.append(
            [*identity, v.answer, v.left, f"{v.seconds:.1f}", int(v.is_check), *verdicts, v.caption_a, v.caption_b]
        )
    return csv_text(CSV_HEAD, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div style="overflow-x:auto"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
