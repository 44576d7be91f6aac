"""Where a decoder's layers keep their keys and values while a text grows: one behind the other, or in tensors with room
for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from captioners.nets.transformer import KeysValues


class KeyValueCache(Protocol):
    """Called by every layer in turn."""

    def extend(self, k: Tensor, v: Tensor) -> KeysValues:
        """The next layer's keys and values of the new tokens (b, heads, t, d) → those that it looks at."""
        ...


class GrowingCache:
    """New tensors for every token: what was there before stays as it was, for gradients and for whoever still holds
    it.
    """

    def __init__(self, past: Sequence[KeysValues] | None):
        self.past, self.pairs = past, list[KeysValues]()

    def extend(self, k: Tensor, v: Tensor) -> KeysValues:
        """Behind the layer's own so far."""
        if self.past:
            before = self.past[len(self.pairs)]
            k, v = torch.cat([before[0], k], dim=2), torch.cat([before[1], v], dim=2)
        self.pairs.append((k, v))
        return k, v


class StaticCache:
    """Tensors with room for tokens to come, written in place: neither their shapes nor their addresses change, so a
    GPU can record a step and replay it.
    """

    def __init__(self, room: Sequence[KeysValues], place: Tensor):
        """`room` holds (b, heads, room, d) of each layer; `place` (1,) is the new token's."""
        self.layers, self.place = iter(room), place

    def extend(self, k: Tensor, v: Tensor) -> KeysValues:
        """All of the layer's room: what lies behind the new token is for a mask to hide."""
        keys, values = next(self.layers)
        return keys.index_copy_(2, self.place, k), values.index_copy_(2, self.place, v)


class CacheByRow(list[KeysValues], ABC):
    """A cache whose rows do not all lie in the same tensors."""

    @abstractmethod
    def rows(self, rows: Tensor) -> list[KeysValues]:
        """The cache of these rows, in this order."""


def rows_of(cache: list[KeysValues], rows: Tensor) -> list[KeysValues]:
    """The cache of some rows, in this order; a row that is named twice goes on as two."""
    return cache.rows(rows) if isinstance(cache, CacheByRow) else [(k[rows], v[rows]) for k, v in cache]
