"""Words of a caption and how varied they are, counted in one way by methods and metrics.

The COCO evaluation runs the Stanford PTB tokenizer in Java; this does the same without Java: lower case, punctuation
removed, clitics split off ("isn't" → is n't, "man's" → man 's), hyphenated words and numbers kept whole. On 27,593
captions of Flickr8k, COCO, Clotho and AudioCaps it differs from the original in 30 (abbreviations, "&", brackets).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

CLOSED_CLASSES = """
    a an the this that these those some any each every all both another other its his her their our my your he she
    it they them him we us you i who whom which what there one someone something and or but nor so as than if while
    when where because of in on at by to from with without for into onto over under above below between among
    through across along around behind before after during near off out up down against toward towards beside next
    inside outside about is are was were be been being am has have had do does did can could will would may might
    must shall should not no"""
FUNCTION_WORDS = frozenset(CLOSED_CLASSES.split())


def is_content_word(word: str) -> bool:
    """Whether a word carries content; function words and single letters hold a sentence together."""
    return len(word) > 1 and word.lower() not in FUNCTION_WORDS


_CLITIC = re.compile(r"(?<=\w)(n't|'(?:s|re|ve|ll|d|m))(?!\w)")
_TOKEN = re.compile(r"\d+(?:[.,:]\d+)+|n't(?!\w)|'(?:s|re|ve|ll|d|m)(?!\w)|\w+(?:[-/']\w+)*")


def tokenize(text: str) -> list[str]:
    """The caption's tokens, the same on every machine."""
    text = text.lower().replace("’", "'")
    return _TOKEN.findall(_CLITIC.sub(r" \1", text))


def count_words(text: str) -> int:
    """Words as a reader counts them: what stands between spaces and has a letter or a digit."""
    return sum(any(c.isalnum() for c in word) for word in text.split())


def ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All runs of n tokens."""
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def distinct_captions(captions: Sequence[Sequence[str]]) -> float:
    """The share of tokenized captions that are not said twice."""
    return len({*map(tuple, captions)}) / len(captions)


def distinct_ngrams(captions: Sequence[Sequence[str]], n: int) -> float:
    """Dist-n of tokenized captions: distinct n-grams over all n-grams, 0 where there are none."""
    grams = [gram for tokens in captions for gram in ngrams(tokens, n)]
    return len({*grams}) / max(1, len(grams))
