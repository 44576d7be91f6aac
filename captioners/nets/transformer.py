"""The one transformer block behind every embedded text model: matchers, language model, captioner, denoisers.

Pre-norm, GELU, learned positions. The key–value cache is plain data, a list of (k, v) per layer, so that a decoder
can grow it, share it between rows, or optimise it by gradient descent (method 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]  # each (b, heads, t, dim / heads)


@dataclass(frozen=True)
class Places:
    """The positions of a padded batch that are there.

    Layers run on those alone, one behind the other; only attention needs the padding.
    """

    present: Tensor  # (b, t), True where a position is not padding
    index: Tensor  # (m,) into b · t

    @classmethod
    def of(cls, present: Tensor) -> Places:
        """present (b, t), True where a position is not padding."""
        return cls(present, present.flatten().nonzero()[:, 0])

    @property
    def all(self) -> bool:
        """Whether nothing is padding."""
        return len(self.index) == self.present.numel()

    def find(self, subset: Places) -> Tensor:
        """Where some of the positions stand among these: (their number,) into m."""
        return torch.searchsorted(self.index, subset.index)

    def gather(self, x: Tensor) -> Tensor:
        """(b, t, …) → (m, …)."""
        return x.flatten(0, 1) if self.all else x.flatten(0, 1)[self.index]

    def spread(self, x: Tensor) -> Tensor:
        """(m, c) → (b, t, c), 0 where nothing is."""
        if not self.all:
            x = x.new_zeros(self.present.numel(), x.shape[1]).index_copy(0, self.index, x)
        padded: Tensor = x.unflatten(0, self.present.shape)
        return padded


class Attention(nn.Module):
    """Multi-head attention from x to itself (with a cache) or to a context whose keys and values were made before."""

    def __init__(self, dim: int, heads: int, context_dim: int | None = None, dropout: float = 0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(context_dim or dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def keys_values(self, x: Tensor, places: Places | None = None) -> KeysValues:
        """x (b, t, c), or (m, c) at `places` → keys and values, each (b, heads, t, head_dim)."""
        k, v = self._spread(self.key_value(x), places).chunk(2, dim=-1)
        return self._split(k), self._split(v)

    def forward(self, x: Tensor, kv: KeysValues, mask: Tensor | None = None, places: Places | None = None) -> Tensor:
        """x (b, t, c), or (m, c) at `places`; mask broadcasts to (b, heads, t, keys), True where attention is
        allowed.
        """
        q = self._split(self._spread(self.query(x), places))
        y = F.scaled_dot_product_attention(q, *kv, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0)
        y = y.transpose(1, 2).flatten(2)
        attended: Tensor = self.out(y if places is None else places.gather(y))
        return attended

    def _spread(self, x: Tensor, places: Places | None) -> Tensor:
        return x if places is None else places.spread(x)

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return heads


class Block(nn.Module):
    """Self-attention, then cross-attention where `context_dim` is given, then a feed-forward layer."""

    def __init__(self, dim: int, heads: int, context_dim: int | None = None, dropout: float = 0.0):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, heads, dropout=dropout)
        self.cross_norm = nn.LayerNorm(dim) if context_dim else None
        self.cross = Attention(dim, heads, context_dim, dropout) if context_dim else None
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,  # (b, t, c), or (m, c) at `places`
        mask: Tensor | None = None,  # (b or 1, 1, t, past + t), True where allowed
        past: KeysValues | None = None,
        context: KeysValues | None = None,
        context_mask: Tensor | None = None,  # (b, 1, 1, cells)
        places: Places | None = None,
        asked: Places | None = None,  # some of `places`: the output is theirs, the others are only looked at
    ) -> tuple[Tensor, KeysValues]:
        h = self.norm1(x)
        k, v = self.attention.keys_values(h, places)
        if asked is not None:
            assert places is not None  # which they are some of
            index, places = places.find(asked), asked
            x, h = x[index], h[index]
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        x = x + self.drop(self.attention(h, (k, v), mask, places))
        if self.cross is not None and self.cross_norm is not None and context is not None:
            x = x + self.drop(self.cross(self.cross_norm(x), context, context_mask, places))
        return x + self.drop(self.mlp(self.norm2(x))), (k, v)


def causal_mask(length: int, past: int = 0, device: torch.device | None = None) -> Tensor:
    """(1, 1, length, past + length): position i sees everything up to itself."""
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)[None, None]


def init_weights(module: nn.Module, std: float = 0.02) -> None:
    """GPT-2's initialisation: small normal weights, zero biases."""
    for m in module.modules():
        if isinstance(m, nn.Linear | nn.Embedding):
            nn.init.normal_(m.weight, std=std)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)
