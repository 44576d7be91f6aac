"""METEOR without Java: nltk's, on our own tokens. Words match exactly, by their stem, or as synonyms where WordNet is
there.

The papers' numbers come from the Java program, whose parameters are tuned and which knows paraphrases: these lie on
another scale.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from nltk.corpus import wordnet
from nltk.stem.porter import PorterStemmer
from nltk.translate.meteor_score import meteor_score

from captioners.metrics.base import CaptionSet, MetricResult, mean_of, metric, needed
from captioners.words import tokenize


class NoSynonyms:
    """Stands for WordNet where its files are not."""

    def synsets(self, word: str) -> list[Any]:
        """No synonyms, for any word."""
        return []


class RememberedStems:
    """Porter's stemmer, which takes long for a word and sees the same ones again and again."""

    def __init__(self) -> None:
        self.stem = cache(PorterStemmer().stem)


def find_synonyms() -> tuple[Any, str]:
    """WordNet if nltk finds its files, and how words are matched then."""
    try:
        wordnet.ensure_loaded()
    except LookupError:
        return NoSynonyms(), "exact and stem matches"
    return wordnet, "exact, stem and WordNet matches"


@metric("references")
def meteor(rows: CaptionSet) -> list[MetricResult]:
    """METEOR of each caption against the best of its references."""
    synonyms, variant = find_synonyms()
    stems = RememberedStems()
    tokens = cache(tokenize)
    scores = [
        meteor_score([tokens(r) for r in references], tokens(caption), stemmer=stems, wordnet=synonyms)
        for caption, references in zip(rows.captions, needed(rows.references), strict=True)
    ]
    return [mean_of("meteor", scores, rows, f"nltk ({variant})")]
