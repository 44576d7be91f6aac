"""Our small CLIP and CLAP: a text tower and a media tower that meet in one space of unit vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.transformer import Block, init_weights


@dataclass(frozen=True)
class MatcherConfig:
    """The size of a matcher."""

    vocab: int = 4096
    dim: int = 256  # width of the text tower
    layers: int = 3  # of the text tower
    heads: int = 4
    max_tokens: int = 64
    media_dim: int = 512  # channels of the encoder's grid
    media_width: int = 384
    cells: int = 49  # the most cells a grid may have
    embed: int = 256  # dimension of the shared space
    pooling: Literal["mean", "attention"] = "mean"
    dropout: float = 0.1
    word_dropout: float = 0.0  # share of tokens that the text tower does not see in training
    pad: int = 0


class AttentionPool(nn.Module):
    """Each head has a learned query and pools its own share of the channels: (b, t, c) → (b, c)."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.score = nn.Linear(dim, heads)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.score(x)  # (b, t, heads)
        if mask is not None:
            scores = scores.masked_fill(~mask[..., None], -torch.inf)
        weights = scores.softmax(1)
        return torch.einsum("bth,bthd->bhd", weights, x.unflatten(-1, (weights.shape[-1], -1))).flatten(1)


class MeanPool(nn.Module):
    """(b, t, c) → (b, c), padding left out."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return x.mean(1)
        weights = mask[..., None].to(x.dtype)
        return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


def _pool(config: MatcherConfig, dim: int) -> nn.Module:
    return AttentionPool(dim, config.heads) if config.pooling == "attention" else MeanPool()


class TextTower(nn.Module):
    """Token ids (b, t) → unit vectors (b, embed). Takes soft tokens too, so that a gradient can reach them."""

    def __init__(self, config: MatcherConfig):
        super().__init__()
        self.pad, self.word_dropout = config.pad, config.word_dropout
        self.tokens = nn.Embedding(config.vocab, config.dim)
        self.positions = nn.Parameter(torch.zeros(config.max_tokens, config.dim))
        self.blocks = nn.ModuleList(
            Block(config.dim, config.heads, dropout=config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        self.pool = _pool(config, config.dim)
        self.project = nn.Linear(config.dim, config.embed, bias=False)
        self.drop = nn.Dropout(config.dropout)
        init_weights(self)

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids[:, : len(self.positions)]
        return self.from_embeddings(self.tokens(ids), ids != self.pad)

    def from_embeddings(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (b, t, dim): rows of the token embedding or mixtures of them; mask (b, t), True where there is a token."""
        if self.training:
            mask = mask & (torch.rand_like(mask, dtype=torch.float) >= self.word_dropout)
        # an empty caption is pooled over its first position
        mask = mask | F.one_hot(torch.zeros_like(mask[:, 0], dtype=torch.long), mask.shape[1]).bool()
        x = self.drop(x + self.positions[: x.shape[1]])
        for block in self.blocks:
            x, _ = block(x, mask=mask[:, None, None])
        return F.normalize(self.project(self.pool(self.norm(x), mask)), dim=-1)


class MediaTower(nn.Module):
    """An encoder's grid (b, cells, c) → unit vectors (b, embed)."""

    def __init__(self, config: MatcherConfig):
        super().__init__()
        width = config.media_width
        self.norm = nn.LayerNorm(config.media_dim)
        self.cell_drop = nn.Dropout1d(config.dropout)
        self.enter = nn.Linear(config.media_dim, width)
        self.pool = _pool(config, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(2 * width, width),
        )
        self.project = nn.Linear(width, config.embed, bias=False)

    def forward(self, grid: Tensor, seen: Tensor | None = None) -> Tensor:
        """`seen` (b, cells) is False where a cell is hidden."""
        x = F.gelu(self.enter(self.cell_drop(self.norm(grid))))
        x = self.pool(x, seen)
        return F.normalize(self.project(x + self.mlp(x)), dim=-1)


class MatcherNet(nn.Module):
    """Both towers and the temperature of their similarity."""

    def __init__(self, config: MatcherConfig):
        super().__init__()
        self.config = config
        self.text = TextTower(config)
        self.media = MediaTower(config)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    @property
    def scale(self) -> Tensor:
        """Inverse temperature, kept below 100 as in CLIP."""
        return self.log_scale.exp().clamp(max=100)


def contrastive_loss(
    a: Tensor, b: Tensor, scale: Tensor, same: Tensor | None = None, strangers: Tensor | None = None
) -> Tensor:
    """Symmetric InfoNCE between unit vectors a (n, d) and b (m, d); `same` (n, m) marks the positive pairs.

    Every positive of a row gets an equal share of the target. `strangers` (k, d) stand beside a and match nothing in b.
    """
    logits = scale * a @ b.T
    same = torch.eye(len(a), len(b), device=a.device) if same is None else same.to(a.dtype)
    rows = -(logits.log_softmax(1) * same).sum(1) / same.sum(1)
    everyone = logits if strangers is None else torch.cat([logits, scale * strangers @ b.T])
    columns = -(everyone.log_softmax(0)[: len(a)] * same).sum(0) / same.sum(0)
    return (rows.mean() + columns.mean()) / 2
