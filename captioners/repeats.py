"""Which words may stand again in a caption whose words settle one by one.

Positions that are filled in parallel do not know each other: two of them have the same word in mind, and the caption
says "a sink and a sink". No word stands beside itself, and a content word is said once where that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from captioners.contract import Tokenizer
from captioners.words import is_content_word

_CONTENT: WeakKeyDictionary[Tokenizer, Tensor] = WeakKeyDictionary()  # the pieces of a vocabulary are gone through once


def content_tokens(tokenizer: Tokenizer) -> Tensor:
    """(vocab,): the tokens that begin a word with content; function words, endings and single letters are not."""
    if tokenizer not in _CONTENT:
        pieces = [tokenizer.piece(i) for i in range(len(tokenizer))]
        words = [p[1:] if p.startswith(" ") and p[1:].isalpha() else "" for p in pieces]
        content = torch.tensor([is_content_word(word) for word in words])
        _CONTENT[tokenizer] = content.index_fill(0, torch.tensor(tokenizer.special_ids), False)
    return _CONTENT[tokenizer]


@dataclass(frozen=True)
class RepeatRule:
    """What may not be said again, for all rows of a batch."""

    content: Tensor  # (vocab,) tokens that begin a word with content
    once: Tensor  # (rows,) True where those are said once

    @classmethod
    def of(cls, tokenizer: Tokenizer, repeats: Sequence[str], device: torch.device) -> RepeatRule:
        """The rule that the control `repeats` of every row asks for."""
        once = torch.tensor([value == "once" for value in repeats], device=device)
        return cls(content_tokens(tokenizer).to(device), once)

    def forbid(self, rows: Tensor, words: Tensor, at: Tensor, logp: Tensor) -> Tensor:
        """logp (m, vocab) of the positions at (r, n), with −inf on what would be a repeat there.

        words (r, n) of rows (r,), −1 where none stands.
        """
        row, place = at.nonzero(as_tuple=True)
        position, column = self._clash(rows, words)[row, place].nonzero(as_tuple=True)
        logp = logp.clone()
        logp[position, words[row[position], column]] = -torch.inf
        return logp

    def less_sure(self, rows: Tensor, words: Tensor, sure: Tensor) -> Tensor:
        """(r, n): positions whose word repeats one that is surer, or as sure and further left.

        words (r, n) of rows (r,), −1 where none stands; sure (r, n) log-probabilities.
        """
        place = torch.arange(words.shape[1], device=words.device)
        left = place < place[:, None]  # (n, n)
        surer = (sure[:, None] > sure[:, :, None]) | (sure[:, None] == sure[:, :, None]) & left
        same = words[:, :, None] == words[:, None]
        return (self._clash(rows, words) & same & surer).any(2)

    def _clash(self, rows: Tensor, words: Tensor) -> Tensor:
        """(r, n, n): whether the word at the second position may not stand at the first one, too."""
        place = torch.arange(words.shape[1], device=words.device)
        distance = (place[:, None] - place).abs()
        single = self.content[words.clamp(min=0)] & self.once[rows, None]
        return (words >= 0)[:, None] & ((distance == 1) | (distance > 1) & single[:, None])
