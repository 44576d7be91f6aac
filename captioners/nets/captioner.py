"""A small CoCa: causal text layers, then layers that also look at the encoder's grid. One model for p(x|y) and p(x).

The condition is removed by looking at one learned null cell instead of the grid. Pictures and sound share all weights
but the projection of their grid, so rows of both kinds, with and without their condition, go through one batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.transformer import Attention, Block, KeysValues, causal_mask, init_weights


@dataclass(frozen=True)
class CaptionerConfig:
    """The size of the decoder. Its text side has the shape of `CausalLM`, so that it can start from one."""

    vocab: int = 4096
    dim: int = 256
    text_layers: int = 2
    cross_layers: int = 2
    heads: int = 4
    max_tokens: int = 64
    media_dim: int = 512
    image_cells: int = 49
    audio_cells: int = 20
    bottleneck: bool = False  # the text looks at one token, the mean of all cells, instead of at every cell
    dropout: float = 0.15


@dataclass(frozen=True)
class Condition:
    """What the cross-attention looks at: keys and values of every cross layer, computed once per caption."""

    keys_values: list[KeysValues]  # each (b, heads, nulls + cells, d); the null cells come first
    mask: Tensor  # (b, 1, 1, nulls + cells)
    nulls: int = 1  # cells that stand for no input

    def __getitem__(self, rows: Tensor) -> Condition:
        return Condition([(k[rows], v[rows]) for k, v in self.keys_values], self.mask[rows], self.nulls)

    def removed(self, rows: Tensor | None = None) -> Condition:
        """The same rows without their condition (all, or those where `rows` (b,) is True): they see the null cells
        alone.
        """
        null = torch.arange(self.mask.shape[-1], device=self.mask.device) < self.nulls
        gone = torch.ones_like(self.mask[:, :1, :1, :1]) if rows is None else rows[:, None, None, None]
        return Condition(self.keys_values, torch.where(gone, null, self.mask), self.nulls)

    def without(self, hidden: Tensor) -> Condition:
        """The same rows, blind to some cells: hidden (b, cells), True where a cell is not seen."""
        visible = F.pad(~hidden, (self.mask.shape[-1] - hidden.shape[1], 0), value=True)
        return Condition(self.keys_values, self.mask & visible[:, None, None], self.nulls)

    def joined(self, other: Condition) -> Condition:
        """Both sets of rows, one behind the other."""
        pairs = zip(self.keys_values, other.keys_values, strict=True)
        keys_values = [(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in pairs]
        return Condition(keys_values, torch.cat([self.mask, other.mask]), self.nulls)


class CaptionDecoder(nn.Module):
    """p(next token | tokens so far, grid or nothing), with a cache of keys and values."""

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        self.config = config
        dim = config.dim
        self.tokens = nn.Embedding(config.vocab, dim)  # also the output layer
        self.positions = nn.Parameter(torch.zeros(config.max_tokens, dim))
        self.enter = nn.ModuleDict(
            {
                kind: nn.Sequential(nn.LayerNorm(config.media_dim), nn.Linear(config.media_dim, dim))
                for kind in ("image", "audio")
            }
        )
        self.cells = nn.ParameterDict(
            {"image": torch.zeros(config.image_cells, dim), "audio": torch.zeros(config.audio_cells, dim)}
        )
        self.null = nn.Parameter(torch.zeros(dim))
        self.context_norm = nn.LayerNorm(dim)
        plain = [Block(dim, config.heads, dropout=config.dropout) for _ in range(config.text_layers)]
        crossed = [Block(dim, config.heads, dim, config.dropout) for _ in range(config.cross_layers)]
        self.blocks = nn.ModuleList(plain + crossed)
        self.norm = nn.LayerNorm(dim)
        self.drop = nn.Dropout(config.dropout)
        init_weights(self)

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> Condition:
        """{kind: (n, cells, c)} of all kinds → keys and values of every cross layer, rows put into `order`; a row
        sees its own cells.
        """
        cells = {kind: self.enter[kind](grid) + self.cells[kind] for kind, grid in grids.items()}
        if self.config.bottleneck:
            cells = {kind: x.mean(1, keepdim=True) for kind, x in cells.items()}
        x, present = side_by_side(cells, order)
        x = self.context_norm(torch.cat([self.null.expand(len(x), 1, -1), x], dim=1))
        return Condition(
            [b.cross.keys_values(x) for b in self.blocks if isinstance(b.cross, Attention)],
            F.pad(present, (1, 0))[:, None, None],
        )

    def forward(
        self, ids: Tensor, condition: Condition, past: list[KeysValues] | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache, which now covers past + t tokens."""
        start = past[0][0].shape[2] if past else 0
        mask = causal_mask(ids.shape[1], start, ids.device)
        x = self.drop(self.tokens(ids) + self.positions[start : start + ids.shape[1]])
        cache, crossed = [], iter(condition.keys_values)
        for i, block in enumerate(self.blocks):
            context = next(crossed) if block.cross is not None else None
            x, kv = block(x, mask=mask, past=past[i] if past else None, context=context, context_mask=condition.mask)
            cache.append(kv)
        return F.linear(self.norm(x), self.tokens.weight), cache


def side_by_side(rows: dict[str, Tensor], order: Tensor) -> tuple[Tensor, Tensor]:
    """{kind: (n, cells, dim)} → (b, most cells, dim), short grids padded and rows put into `order`, and which cells
    are there (b, most).
    """
    most = max(x.shape[1] for x in rows.values())
    lengths = torch.cat([torch.full((len(x),), x.shape[1], device=x.device) for x in rows.values()])[order]
    x = torch.cat([F.pad(x, (0, 0, 0, most - x.shape[1])) for x in rows.values()])[order]
    return x, torch.arange(most, device=x.device) < lengths[:, None]
