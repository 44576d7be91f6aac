"""One method's card as HTML: who it is, its caption now, the unguided one beneath, and its numbers."""

from __future__ import annotations

from html import escape
from typing import Any

from captioners.types import Media, Result, Spec, Step
from captioners.ui.rendering.badges import UNKNOWN, Scale, badges_html
from captioners.ui.rendering.caption import caption_html
from captioners.ui.rendering.diff import differences
from captioners.ui.rendering.heat import where_html
from captioners.ui.rendering.masks import condition_html
from captioners.ui.rendering.steps import replay_html, steps_table
from captioners.ui.rendering.tables import candidates_table, trace_table


def head_html(spec: Spec) -> str:
    """Title, idea and paper."""
    formula = f'<p><code title="the guided score">{escape(spec.formula)}</code></p>' if spec.formula else ""
    return (
        f'<header class="cl-head"><div><h2>{escape(spec.title)}</h2><a href="{escape(spec.paper)}" target="_blank" '
        'rel="noopener" '
        f'aria-label="paper: {escape(spec.title)}">paper</a></div><p>{escape(spec.idea)}</p>{formula}</header>'
    )


def message_html(words: str) -> str:
    """A card with nothing to show says why."""
    return f'<div class="cl-body"><div class="cl-caption cl-message">{escape(words)}</div></div>'


def body_html(spec: Spec, guided: Step, plain: Step, scale: Scale = UNKNOWN) -> str:
    """The caption at this moment. Every part keeps its height, so nothing jumps while tokens arrive."""
    result, before = guided.result, plain.result
    if result and before:
        progress = _used(spec, result)
        badges = badges_html(spec.id, result, before, scale, spec.card_scores)
    else:
        progress, badges = progress_words(guided), ""
    words, changed = "".join(escape(t.text) for t in plain.tokens), set[int]()
    if result and before:
        changed, words = differences(result, before)
    elif before:
        words = escape(before.caption)
    return (
        f'<div class="cl-body" data-done="{"yes" if result else "no"}">'
        f'<div class="cl-caption" tabindex="0">{caption_html(spec.id, guided, spec.branches, changed)}</div>'
        f'<p class="cl-plain" tabindex="0"><span title="{_unguided_words(spec)}">unguided</span> {words}</p>'
        f'<div class="cl-badges{" cl-more-badges" if spec.card_scores else ""}">{badges}</div>'
        f'<p class="cl-used">{progress}</p></div>'
    )


def progress_words(step: Step) -> str:
    """How far a caption in the making is."""
    inner = len(step.trace[-1].steps) if step.trace else 0
    words = f"step {step.position}/{step.total}"
    if step.progress == "growing":
        words = f"token {step.position}" + (f", step {inner}/{inner}" if inner else f" of at most {step.total}")
    return words + (f" · {len(step.others) + 1} candidates" if step.others else "")


def numbers_html(spec: Spec, result: Result, media: Media) -> str:
    """What the plot shows, as tables; the steps, the masked cells, the candidates; and notes on the run."""
    parts = [replay_html(spec.id, result), condition_html(media, result)]
    parts.append(where_html(spec.id, media, result))
    parts += [f'<p class="cl-note">{escape(note)}</p>' for note in dict.fromkeys(result.notes)]
    if len(result.candidates) > 1:
        parts.append(
            _details(f"{spec.id}-candidates", f"{len(result.candidates)} candidates", candidates_table(result))
        )
    if result.trace:
        parts.append(
            _details(f"{spec.id}-numbers", "The plot as a table", trace_table(spec, result.trace) + steps_table(result))
        )
    return "".join(parts)


def _details(key: str, summary: str, body: str) -> str:
    return f'<details data-key="{key}"><summary>{summary}</summary>{body}</details>'


def _unguided_words(spec: Spec) -> str:
    """What sets the unguided caption apart."""
    values = [f"{c.label} {_shown(spec.unguided[c.name])}" for c in spec.controls if c.name in spec.unguided]
    return escape(f"The same with {', '.join(values)}") if values else ""


def _shown(value: Any) -> str:
    """A setting for people."""
    return "auto" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


def _used(spec: Spec, result: Result) -> str:
    """The settings that made this caption: the front controls, the seed, what is not as it comes, and the word of a
    fork.
    """
    several = len(result.candidates) > 1
    names = {c.name for c in spec.controls if c.front or c.name == "seed"} - ({"num_candidates"} if several else set())
    names |= {
        c.name
        for c in spec.controls
        if not c.front and c.kind != "text" and result.settings.get(c.name, c.default) != c.default
    }
    values = {c: result.settings.get(c.name) for c in spec.controls if c.name in names}
    parts = [escape(f"{c.label} {_shown(value)}") for c, value in values.items() if value is not None]
    if several:
        parts.append(f"best of {len(result.candidates)}")
    if forced := result.settings.get("forced"):
        last = max(forced, key=int)
        parts.append(f"forked at “{escape(forced[last].strip())}”; Caption goes back")
    return " · ".join(parts)
