"""Small text classifiers: is this sentence about something that can be heard (or seen)?

`TextClassifier`, a transformer, guides method 2; `BagClassifier`, which only knows words and pairs of words, judges.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.matcher import MatcherConfig, TextTower


@dataclass(frozen=True)
class TextClassifierConfig:
    """The size of the transformer."""

    vocab: int = 4096
    dim: int = 128
    layers: int = 2
    heads: int = 4
    dropout: float = 0.2
    word_dropout: float = 0.1


class TextClassifier(nn.Module):
    """Token ids (b, t) → the logit of "yes" (b,). A text tower with a linear layer on top."""

    def __init__(self, config: TextClassifierConfig):
        super().__init__()
        self.tower = TextTower(MatcherConfig(**vars(config), embed=config.dim))
        self.head = nn.Linear(config.dim, 1)
        self.scale = nn.Parameter(torch.tensor(8.0))  # the tower's vectors have unit length

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.tower(ids) * self.scale)[:, 0]
        return logits


@dataclass(frozen=True)
class BagClassifierConfig:
    """The size of the bag."""

    vocab: int = 4096
    dim: int = 48
    pairs: int = 16_384  # buckets that pairs of neighbouring tokens are hashed into
    dropout: float = 0.3
    pad: int = 0


class BagClassifier(nn.Module):
    """Token ids (b, t) → the logit of "yes" (b,), from the mean of word and word-pair vectors: order hardly counts."""

    def __init__(self, config: BagClassifierConfig):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab, config.dim, padding_idx=config.pad)
        self.pairs = nn.Embedding(config.pairs, config.dim)
        self.head = nn.Sequential(
            nn.Dropout(config.dropout), nn.Linear(2 * config.dim, config.dim), nn.ReLU(), nn.Linear(config.dim, 1)
        )

    def forward(self, ids: Tensor) -> Tensor:
        present = (ids != self.config.pad).float()[..., None]
        pair_present = present[:, 1:] * present[:, :-1]
        hashed = (ids[:, :-1] * 31_337 + ids[:, 1:] * 7_919) % self.config.pairs
        words = (self.words(ids) * present).sum(1) / present.sum(1).clamp(min=1)
        pairs = (self.pairs(hashed) * pair_present).sum(1) / pair_present.sum(1).clamp(min=1)
        logits: Tensor = self.head(torch.cat([words, pairs], dim=-1))[:, 0]
        return logits


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of sentences on the right side of one half."""
    return ((logits > 0) == (labels > 0.5)).float().mean().item()


def binary_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, a little smoothed: a classifier that is sure of everything has no gradient to guide with."""
    return F.binary_cross_entropy_with_logits(logits, labels * 0.9 + 0.05)
