"""A result's numbers as badges, each with a panel that says what it is, its range and whose word it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from captioners.contract import Calibration
from captioners.types import Result
from captioners.ui.rendering.markup import number, popover, signed


@dataclass(frozen=True)
class Scale:
    """What a number is held against, where that is known: CLIPScore of other and of people's captions, perplexity of
    people's.
    """

    match: Calibration | None = None
    fluency: float | None = None


UNKNOWN = Scale()


def badges_html(method: str, result: Result, plain: Result, scale: Scale = UNKNOWN, more: Sequence[str] = ()) -> str:
    """CLIPScore with its change against the unguided caption, words, fluency, seconds: a wide and a narrow one on each
    line.

    `more` are the scores that this method's card shows besides, where they are known.
    """
    rows = []
    score, before = result.scores.get("clipscore"), plain.scores.get("clipscore")
    if score:
        change = f" {signed(score.value - before.value)}" if before and result is not plain else ""
        rows.append(
            ("CLIPScore", f"<b>{number(score.value)}</b>{change}", _clipscore(score.value, scale.match), score.encoder)
        )
    if words := result.scores.get("words"):
        rows.append(("words", f"<b>{number(words.value, '.0f')}</b>", "How many words the caption has.", ""))
    if fluency := result.scores.get("perplexity"):
        change = _change(fluency.value, plain, "perplexity") if result is not plain else ""
        value = number(fluency.value, ",.1f" if fluency.value < 1000 else ",.0f")
        rows.append(("fluency", f"<b>{value}</b>{change}", _fluency(scale.fluency), fluency.encoder))
    stages = ", ".join(f"{name} {value:.2f} s" for name, value in result.seconds.items())
    seconds = f"Wall time of this caption, as its share of the batch it was decoded in: {stages}."
    rows.append(("seconds", f"<b>{number(sum(result.seconds.values()))}</b>", seconds, ""))
    for name in (name for name in more if name in result.scores):
        label, meaning = SHARES[name]
        chance = result.scores[name]
        change = _change(chance.value, plain, name, 2) if result is not plain else ""
        rows.append((label, f"<b>{number(chance.value)}</b>{change}", meaning, chance.encoder))
    return "".join(_badge(method, *row) for row in rows)


UNITS = {"words": "words", "seconds": "s"}
SHARES = {  # score → its badge, and what it means
    "audibility": (
        "audible",
        "How sure a classifier is, from 0 to 1, that the caption tells of something to be heard. It guides nothing.",
    ),
    "visibility": (
        "visible",
        "How sure the guide is, from 0 to 1, that the caption tells of something to be seen: "
        "its own word, not a judge's.",
    ),
}


def _clipscore(value: float, calibration: Calibration | None) -> str:
    words = (
        "How well the caption fits the input: 2.5 · max(cosine, 0), from 0 to 2.5. "
        "The judge takes no part in any method."
    )
    if calibration is None:
        return words
    place = calibration.place(value)
    return (
        f"{words} Captions of other inputs score {calibration.random:.2f} on average, people's captions "
        f"{calibration.human:.2f}: this one stands {number(100 * place, '.0f')} % of the way."
    )


def _fluency(people: float | None) -> str:
    words = (
        "Perplexity: how surprised a language model is by each word of the caption. From 1, fully expected, upwards; "
        "lower reads more fluently. The judge takes no part in any method."
    )
    return (
        words
        if people is None
        else f"{words} People's captions measure {people:.0f} on average: they say less expected things."
    )


def _change(value: float, plain: Result, name: str, digits: int = 1) -> str:
    before = plain.scores.get(name)
    return f" {signed(value - before.value, digits)}" if before else ""


def _badge(method: str, label: str, value: str, words: str, encoder: str) -> str:
    source = f"<small>Encoder: {escape(encoder)}</small>" if encoder else ""
    body = f"<strong>{label}</strong><span>{escape(words)}</span>{source}"
    return popover(
        f"cl-{method}-{label.lower()}",
        f"{value} {UNITS[label]}" if label in UNITS else f"<span>{label}</span> {value}",
        body,
        "cl-badge",
        hint=words,
    )
