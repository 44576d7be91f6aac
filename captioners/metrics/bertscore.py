"""BERTScore (arXiv 1904.09675): every token is matched with its nearest in the other sentence, by vectors that know
their context.

F1 without idf weights and without rescaling, against the best of the references, as the package `bert-score` counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from captioners.metrics.base import CaptionSet, MetricResult, mean_of, metric, needed

if TYPE_CHECKING:
    from captioners.contract import TokenVectors


def f1(caption: TokenVectors, reference: TokenVectors) -> float:
    """The harmonic mean of how well the caption's tokens are found in the reference, and the reference's in the
    caption.

    Start and end of a sentence may be found but are not asked for.
    """
    similarity = caption.vectors @ reference.vectors.T  # (t, u)
    if not (caption.counted.any() and reference.counted.any()):
        return 0.0
    precision = float(similarity.amax(1)[caption.counted].mean())
    recall = float(similarity.amax(0)[reference.counted].mean())
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@metric("references", "texts")
def bertscore(rows: CaptionSet) -> list[MetricResult]:
    """Every sentence is encoded once, however often it stands there."""
    judge, references_of_rows = needed(rows.texts), needed(rows.references)
    sentences = list(dict.fromkeys([*rows.captions, *(r for of_row in references_of_rows for r in of_row)]))
    by_sentence = dict(zip(sentences, judge.embed_tokens(sentences), strict=True))
    pairs = zip(rows.captions, references_of_rows, strict=True)
    scores = [max(f1(by_sentence[caption], by_sentence[r]) for r in references) for caption, references in pairs]
    return [mean_of("bertscore", scores, rows, judge.name)]
