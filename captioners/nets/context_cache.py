"""A causal language model's cache of keys and values, untouched, and a copy of it that follows a gradient (method 2).

A step is measured by the cache itself: the keys of a layer, and its values, move by a share of the typical length of
one of their vectors, and a model of fewer layers moves each of them further. So a step size means the same for GPT-2
and for a model of four layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from captioners.nets.padding import left_padded
from captioners.nets.transformer import KeysValues

LanguageModelCall = Callable[..., tuple[Tensor, list[KeysValues]]]  # (ids, past, mask) → logits and the cache

NORM_POWER = 0.9  # ZeroCap divides the gradient by its norm to this power
LAYERS = 24  # of GPT-2 medium, ZeroCap's: a step size is stated for a model of so many
RETRY_SCALE = 1 / 3  # of a step's size, after one that was taken back


class ContextCache:
    """The untouched cache of some rows. It holds everything but the last token."""

    def __init__(self, lm: LanguageModelCall, starts: Sequence[Sequence[int]], pad: int, device: str | torch.device):
        """`starts`: each row's tokens so far, at least two, so that there is something to move."""
        ids, self.mask = left_padded(starts, pad, device)
        self.lm = lm
        _, self.past = lm(ids[:, :-1], None, self.mask[:, :-1])
        self.last = ids[:, -1:]
        self.grown: list[KeysValues] = []

    def scores(self) -> Tensor:
        """Logits (rows, vocab) of the next token."""
        logits, self.grown = self.lm(self.last, self.past, self.mask)
        return logits[:, -1]

    def append(self, tokens: Tensor) -> None:
        """The last token enters the cache, the chosen one (rows,) becomes the last."""
        self.past, self.last = self.grown, tokens[:, None]
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)

    def moving(self, rows: Tensor, sizes: Tensor) -> MovingCache:
        """A copy of some rows (b,) that can be moved, by steps of `sizes` (b,)."""
        return MovingCache(self.lm, self.last[rows], self.mask[rows], [(k[rows], v[rows]) for k, v in self.past], sizes)


class MovingCache:
    """Keys and values plus a difference that follows the gradient of a loss.

    A step that raises the loss is taken back and shortened.
    """

    def __init__(self, lm: LanguageModelCall, last: Tensor, mask: Tensor, kept: list[KeysValues], sizes: Tensor):
        self.lm, self.last, self.mask, self.kept = lm, last, mask, kept
        present = mask[:, None, :-1, None].to(kept[0][0].dtype)  # (b, 1, t, 1): padding has no length
        count = present.sum((1, 2, 3)) * kept[0][0].shape[1]
        lengths = [((x * present).square().sum((1, 2, 3)) / count).sqrt() for pair in kept for x in pair]
        self.units = [_column(length) for length in lengths]
        self.sizes = sizes * LAYERS / len(kept)
        self.delta = [torch.zeros_like(x) for pair in kept for x in pair]
        # each row's lowest loss so far, where it was, and which way it went on
        self.lowest = torch.full_like(sizes, torch.inf)
        self.place, self.way = self.delta, self.delta

    def scores(self) -> Tensor:
        """Logits (rows, vocab) of the next token under the moved cache; inside `torch.enable_grad` they carry a
        gradient for `step`.
        """
        if torch.is_grad_enabled():
            self.delta = [d.detach().requires_grad_() for d in self.delta]
        past = [(k + dk, v + dv) for (k, v), dk, dv in zip(self.kept, self.delta[::2], self.delta[1::2], strict=True)]
        return self.lm(self.last, past, self.mask)[0][:, -1]

    def step(self, loss: Tensor, rows: Tensor) -> None:
        """One step against the gradient of `loss` (b,), for the rows (b,) that still move.

        What is not finite does not move.
        """
        gradients = torch.autograd.grad(loss, self.delta, torch.ones_like(loss))  # no row depends on another
        lower = rows & (loss.detach() < self.lowest)
        self.lowest = torch.where(lower, loss.detach(), self.lowest)
        self.sizes = torch.where(lower, self.sizes, self.sizes * RETRY_SCALE)
        self.place = [
            torch.where(_column(lower), new.detach(), old) for new, old in zip(self.delta, self.place, strict=True)
        ]
        self.way = [
            torch.where(_column(lower), _direction(g, unit), old)
            for g, unit, old in zip(gradients, self.units, self.way, strict=True)
        ]
        distance = _column(torch.where(rows, self.sizes, 0.0))
        self.delta = [place - distance * way for place, way in zip(self.place, self.way, strict=True)]


def _direction(gradient: Tensor, unit: Tensor) -> Tensor:
    """Where a step of size 1 goes: the gradient of the cache measured in its own unit, over its norm to a power."""
    relative = gradient * unit
    norm = _column(relative.flatten(1).norm(dim=1))
    return (unit * relative / (norm**NORM_POWER + 1e-12)).nan_to_num(0.0, 0.0, 0.0)


def _column(values: Tensor) -> Tensor:
    return values[:, None, None, None]
