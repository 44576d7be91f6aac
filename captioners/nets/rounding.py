"""From a distribution at every position to one caption: the best sequence that begins with a word and ends once, by
dynamic programming.

Positions are rounded together and not one by one, so that padding never stands inside a caption, and a caption can be
asked to have an exact number of words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

ANY = 0  # number of words: whatever fits best


class Pieces(Protocol):
    """What is asked of a tokenizer here."""

    eos: int
    special_ids: tuple[int, ...]

    def __len__(self) -> int: ...

    def piece(self, id: int) -> str:
        """The text of one token."""
        ...


@dataclass(frozen=True)
class TokenKinds:
    """Which tokens begin a word and which go on with one, each (vocab,); the rest, the end aside, is never said."""

    begins: Tensor
    goes_on: Tensor
    end: int

    @classmethod
    def of(cls, tokenizer: Pieces) -> TokenKinds:
        """The kinds of a `CaptionTokenizer`'s pieces, which begin with a space where a word does."""
        pieces = [tokenizer.piece(i) for i in range(len(tokenizer))]
        special = torch.zeros(len(pieces), dtype=torch.bool)
        special[list(tokenizer.special_ids)] = True
        spaced = torch.tensor([p.startswith(" ") for p in pieces])
        spoken = torch.tensor([any(c.isalnum() for c in p) for p in pieces])
        return cls(spaced & spoken & ~special, ~spaced & ~special, tokenizer.eos)

    def words(self, ids: Tensor) -> Tensor:
        """ids (b, t) → (b,): how many words begin."""
        return self.begins[ids].sum(1)


def best_sequences(logp: Tensor, kinds: TokenKinds, words: Tensor, sizes: Tensor | None = None) -> Tensor:
    """logp (b, t, vocab) → ids (b, t): the likeliest words, then ends. words (b,) is how many, or ANY; sizes (b,)
    positions that are there.

    A row whose wish cannot be had (tokens that were fixed, too few positions) gets the likeliest caption of any length.
    """
    b, t, _ = logp.shape
    device = logp.device
    sizes = torch.full((b,), t, device=device) if sizes is None else sizes
    present = torch.arange(t, device=device) < sizes[:, None]
    begin, begin_id = logp.masked_fill(~kinds.begins.to(device), -torch.inf).max(-1)  # each (b, t)
    on, on_id = logp.masked_fill(~kinds.goes_on.to(device), -torch.inf).max(-1)
    end = torch.where(present, logp[..., kinds.end], 0.0)
    end_from = end.flip(1).cumsum(1).flip(1)  # (b, t): ending here and staying ended
    end_from = torch.cat([end_from, end_from.new_zeros(b, 1)], 1)

    most = t + 1
    score = begin.new_full((b, most), -torch.inf)  # by number of words so far
    score[:, 0] = 0.0
    came, ended = [], []  # (b, most) whether this position began a word; (b, most) the score of ending after it
    for i in range(t):
        new = torch.roll(score, 1, 1) + begin[:, i, None]
        new[:, 0] = -torch.inf
        stay = score + on[:, i, None]
        if i == 0:  # a piece that was fixed at the very start counts as a word
            stay = torch.roll(stay, 1, 1)
            new = torch.maximum(new, torch.where(torch.isneginf(new), stay, -torch.inf))
            stay = torch.full_like(stay, -torch.inf)
        came.append(new >= stay)
        score = torch.maximum(new, stay).masked_fill(~present[:, i, None], -torch.inf)
        ended.append(score + end_from[:, i + 1, None])
    finals = torch.stack(ended, 1)  # (b, t, most)
    is_wanted = (torch.arange(most, device=device) == words[:, None]) & (words != ANY)[:, None]
    only = finals.masked_fill(~is_wanted[:, None], -torch.inf)
    possible = ~torch.isneginf(only).flatten(1).all(1)
    best = torch.where(possible[:, None, None], only, finals).flatten(1).argmax(1)

    last, count = best // most, best % most
    ids = torch.full((b, t), kinds.end, dtype=torch.long, device=device)
    for i in reversed(range(t)):
        inside = i <= last
        begun = came[i].gather(1, count[:, None])[:, 0] & inside
        real = begun & ~torch.isneginf(begin[:, i])
        ids[:, i] = torch.where(inside, torch.where(real, begin_id[:, i], on_id[:, i]), kinds.end)
        count = count - begun.long()
    return ids


def settled(held: Tensor, words: Tensor, sure: Tensor, total: Tensor) -> Tensor:
    """held (b, n), −1 where open → `total` (b,) of a row's positions held: the surest of the proposed words (b, n),
    by sure (b, n).
    """
    rank = torch.where(held >= 0, torch.inf, sure).argsort(dim=1, descending=True, stable=True).argsort(1)
    return torch.where((held < 0) & (rank < total[:, None]), words, held)
