"""How varied a set of captions is: distinct n-grams, words used, distinct captions, Self-BLEU, length, words that are
said twice.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from captioners.metrics.base import CaptionSet, MetricResult, mean_of, metric, needed
from captioners.metrics.bootstrap import jackknife
from captioners.words import count_words, distinct_captions, distinct_ngrams, is_content_word, ngrams, tokenize


@metric()
def dist(rows: CaptionSet) -> list[MetricResult]:
    """Dist-1 … Dist-3: distinct n-grams over all n-grams of the set.

    It falls with the size of the set: compare equal sizes.
    """
    tokens = [tokenize(c) for c in rows.captions]
    return [_distinct(f"dist-{n}", [ngrams(t, n) for t in tokens], rows, share=True) for n in (1, 2, 3)]


@metric()
def vocabulary(rows: CaptionSet) -> list[MetricResult]:
    """How many different words the set uses."""
    return [_distinct("vocabulary", [ngrams(tokenize(c), 1) for c in rows.captions], rows, share=False)]


@metric()
def distinct(rows: CaptionSet) -> list[MetricResult]:
    """The share of captions that are not said twice."""
    return [_distinct("distinct", [[tuple(tokenize(c))] for c in rows.captions], rows, share=True)]


@metric()
def words(rows: CaptionSet) -> list[MetricResult]:
    """Words per caption."""
    return [mean_of("words", [count_words(c) for c in rows.captions], rows)]


@metric()
def doubled(rows: CaptionSet) -> list[MetricResult]:
    """The share of captions in which a content word stands twice."""
    content = ([word for word in tokenize(c) if is_content_word(word)] for c in rows.captions)
    return [mean_of("doubled", [float(len(words) > len({*words})) for words in content], rows)]


@metric()
def self_bleu_of_media(rows: CaptionSet) -> list[MetricResult]:
    """Self-BLEU where media have several captions, the mean over such media."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, caption in zip(rows.ids, rows.captions, strict=True):
        groups[name].append(caption)
    groups = {name: captions for name, captions in groups.items() if len(captions) > 1}
    if not groups:
        return []
    several = CaptionSet(list(groups), ["" for _ in groups])
    result = mean_of("self-bleu", [self_bleu(captions) for captions in groups.values()], several)
    return [MetricResult(result.name, result.mean, result.low, result.high)]


@metric("candidates")
def candidates(rows: CaptionSet) -> list[MetricResult]:
    """How varied the candidates of one input are: Self-BLEU, the share of distinct ones, and their Dist-2."""
    tokens = [[tokenize(c) for c in captions] for captions in needed(rows.candidates)]
    return [
        mean_of("self-bleu", [self_bleu(captions) for captions in needed(rows.candidates)], rows),
        mean_of("candidates-distinct", [distinct_captions(captions) for captions in tokens], rows),
        mean_of("candidates-dist-2", [distinct_ngrams(captions, 2) for captions in tokens], rows),
    ]


def self_bleu(captions: list[str]) -> float:
    """The candidates of one picture: mean BLEU-4 of each against the others; 1 when all are the same."""
    from captioners.metrics.ngram import bleu_scorer

    others = [captions[:i] + captions[i + 1 :] for i in range(len(captions))]
    _, items = bleu_scorer(captions, others).compute_score(option="closest")
    return float(np.mean(items[3]))


def _distinct(name: str, ngrams: list[list[tuple[str, ...]]], rows: CaptionSet, share: bool) -> MetricResult:
    """How many different n-grams the rows hold, in number or as a share of all of them."""
    names = {n: i for i, n in enumerate(dict.fromkeys(rows.ids))}
    holders: dict[tuple[str, ...], set[int]] = defaultdict(set)
    size = np.zeros(len(names))
    for owner, row in zip((names[n] for n in rows.ids), ngrams, strict=True):
        size[owner] += len(row)
        for ngram in row:
            holders[ngram].add(owner)
    alone = np.bincount([next(iter(h)) for h in holders.values() if len(h) == 1], minlength=len(names))
    number, total = len(holders), size.sum()
    value = number / max(total, 1) if share else number
    low, high = jackknife(value, (number - alone) / (np.maximum(total - size, 1) if share else 1))
    return MetricResult(name, float(value), max(low, 0.0), min(high, 1.0) if share else high)
