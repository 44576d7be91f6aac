"""The plots' numbers as plain tables, for people who cannot read plots."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from captioners.types import Result, Spec, TokenTrace
from captioners.ui.rendering.markup import number, shown, table


def trace_table(spec: Spec, trace: Sequence[TokenTrace]) -> str:
    """The trace as a table with one row per token."""
    columns = ["token", *spec.branches, "difference", "guided", "KL", "entropy"]
    extra = [name for name in ("lm", "classifier") if any(getattr(t, name) is not None for t in trace)]
    rows = [
        [shown(t.token), number(t.cond), number(t.uncond), number(t.cond - t.uncond, "+.2f"), number(t.guided)]
        + [number(t.kl), number(t.entropy)]
        + [number(getattr(t, name)) for name in extra]
        for t in trace
    ]
    return table("Log-probabilities in nats", columns + extra, rows)


def candidates_table(result: Result) -> str:
    """All finished captions as a table, the best first."""
    rows = [[escape(c.caption), number(c.score, ".3f"), number(c.logprob, ".1f")] for c in result.candidates]
    variety = ", ".join(
        f"{escape(name)} {number(value)}" for name, value in result.details.get("diversity", {}).items()
    )
    note = f'<p class="cl-note">Variety: {variety}.</p>' if variety else ""
    return table("Candidates, best first", ["caption", "ranker's score", "log-probability"], rows) + note


def comparison_table(runs: Sequence[tuple[Spec, Result, Result]]) -> str:
    """Every method, unguided and guided, in rows."""
    rows = []
    for spec, guided, plain in runs:
        for name, result in (("unguided", plain), ("guided", guided)):
            scores = [number(s.value, form) if (s := result.scores.get(key)) else "–" for key, form in SCORES]
            rows.append(
                [escape(spec.title), name, escape(result.caption), *scores, number(sum(result.seconds.values()))]
            )
    return table("All methods", ["method", "guidance", "caption", "CLIPScore", "perplexity", "words", "seconds"], rows)


SCORES = (("clipscore", ".2f"), ("perplexity", ",.1f"), ("words", ".0f"))
