"""What guidance changed: the words of the guided caption that the unguided one does not have in that place, and the
other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape

from captioners.attribution import words_of
from captioners.types import Result

SAME = "says the same"


def differing(one: Sequence[str], other: Sequence[str]) -> tuple[list[int], list[int]]:
    """The words of each that have no partner in the other, by the longest runs that both share."""
    matcher = SequenceMatcher(None, [_plain(w) for w in one], [_plain(w) for w in other], autojunk=False)
    blocks = matcher.get_matching_blocks()
    shared_one, shared_other = (
        {b.a + i for b in blocks for i in range(b.size)},
        {b.b + i for b in blocks for i in range(b.size)},
    )
    return [i for i in range(len(one)) if i not in shared_one], [i for i in range(len(other)) if i not in shared_other]


def differences(guided: Result, plain: Result) -> tuple[set[int], str]:
    """The guided caption's tokens that guidance changed, and the unguided caption with its lost words struck out."""
    if guided.caption == plain.caption:
        return set(), SAME
    words, plain_words = words_of(guided.trace), plain.caption.split()
    new, lost = differing([word for word, _ in words], plain_words)
    struck = [f"<s>{escape(word)}</s>" if i in lost else escape(word) for i, word in enumerate(plain_words)]
    return {position for i in new for position in words[i][1]}, " ".join(struck)


def _plain(word: str) -> str:
    return "".join(c for c in word.lower() if c.isalnum())
