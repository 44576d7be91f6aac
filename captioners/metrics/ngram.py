"""BLEU, ROUGE-L and CIDEr-D against references, by pycocoevalcap's scorers on our own tokens.

pycocoevalcap's CIDEr is CIDEr-D (clipped counts, Gaussian length penalty, ×10), as in COCO's tables: its 1.0 is their
"100".
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider_scorer import CiderScorer
from pycocoevalcap.rouge.rouge import Rouge

from captioners.metrics.base import CaptionSet, MetricResult, mean_of, metric, needed
from captioners.words import tokenize

ORDERS = (1, 2, 3, 4)
TINY, SMALL = 1e-15, 1e-9  # as in pycocoevalcap: no match gives 0, never 0 / 0


def plain(text: str) -> str:
    """Tokens with single spaces between them, which is what the scorers split."""
    return " ".join(tokenize(text))


def bleu_scorer(captions: list[str], references: list[list[str]]) -> BleuScorer:
    """A scorer filled with tokenized rows."""
    scorer = BleuScorer(n=4)
    for caption, others in zip(captions, references, strict=True):
        scorer += (plain(caption), [plain(r) for r in others])
    return scorer


@metric("references")
def bleu(rows: CaptionSet) -> list[MetricResult]:
    """BLEU-1 … BLEU-4 of the whole set (not the mean of sentence scores); the items are sentence scores."""
    scorer = bleu_scorer(rows.captions, needed(rows.references))
    values, items = scorer.compute_score(option="closest")
    sums = np.array([_bleu_counts(row) for row in scorer.ctest], dtype=np.float64)
    results = []
    for order, value, scores in zip(ORDERS, values, items, strict=True):
        low, high = rows.resampler.of_sums(sums, partial(_bleu, order=order))
        results.append(MetricResult(f"bleu-{order}", float(value), low, high, scores))
    return results


def _bleu_counts(row: dict[str, Any]) -> list[int]:
    """A row's sufficient statistics: its length, that of the closest reference, n-grams said and n-grams right."""
    closest = min((abs(length - row["testlen"]), length) for length in row["reflen"])[1]
    return [row["testlen"], closest, *row["guess"], *row["correct"]]


def _bleu(sums: np.ndarray, order: int) -> np.ndarray:
    guessed, right = sums[..., 2 : 2 + order], sums[..., 6 : 6 + order]
    precision = np.exp(np.log((right + TINY) / (guessed + SMALL)).mean(-1))
    ratio = (sums[..., 0] + TINY) / (sums[..., 1] + SMALL)
    scores: np.ndarray = precision * np.exp(np.minimum(0.0, 1 - 1 / ratio))
    return scores


@metric("references")
def rouge_l(rows: CaptionSet) -> list[MetricResult]:
    """ROUGE-L: F-measure (β = 1.2) of the longest common subsequence, against the best of the references."""
    scorer = Rouge()
    pairs = zip(rows.captions, needed(rows.references), strict=True)
    return [
        mean_of(
            "rouge-l",
            [scorer.calc_score([plain(c)], [plain(r) for r in refs]) if tokenize(c) else 0.0 for c, refs in pairs],
            rows,
        )
    ]


@metric("references")
def cider(rows: CaptionSet) -> list[MetricResult]:
    """CIDEr-D, idf from the references of the measured pictures or clips; one alone has no idf and gives nothing."""
    first = {name: row for row, name in reversed(list(enumerate(rows.ids)))}
    if len(first) < 2:
        return []
    scorer = CiderD(list(first.values()))
    for caption, references in zip(rows.captions, needed(rows.references), strict=True):
        scorer += (plain(caption), [plain(r) for r in references])
    scorer.compute_doc_freq()
    return [mean_of("cider", scorer.compute_cider(), rows)]


class CiderD(CiderScorer):
    """pycocoevalcap counts rows as documents; here a picture that stands in several rows is one document."""

    def __init__(self, documents: list[int]):
        self.documents = documents  # one row for each picture
        super().__init__()

    @property
    def ref_len(self) -> float:
        return math.log(len(self.documents))

    @ref_len.setter
    def ref_len(self, value: float | None) -> None:
        """The parent would set the logarithm of the number of rows."""

    def compute_doc_freq(self) -> None:
        for row in self.documents:
            for ngram in set().union(*self.crefs[row]):
                self.document_frequency[ngram] += 1
