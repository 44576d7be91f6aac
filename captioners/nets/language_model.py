"""Two causal language models over the shared tokenizer, of different families so that one can judge the other.

`CausalLM`, a transformer, guides (method 1) and is steered (method 2); `RecurrentLM`, an LSTM, only judges fluency.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.transformer import Block, KeysValues, causal_mask, init_weights


@dataclass(frozen=True)
class CausalLMConfig:
    """The size of the transformer."""

    vocab: int = 4096
    dim: int = 256
    layers: int = 4
    heads: int = 4
    max_tokens: int = 128
    context: int = 128  # how many positions training reached; what stands beyond is not to be trusted
    dropout: float = 0.1


class CausalLM(nn.Module):
    """p(next token | tokens so far), with a cache of keys and values."""

    def __init__(self, config: CausalLMConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.dim)  # also the output layer
        self.positions = nn.Parameter(torch.zeros(config.max_tokens, config.dim))
        self.blocks = nn.ModuleList(
            Block(config.dim, config.heads, dropout=config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        self.drop = nn.Dropout(config.dropout)
        init_weights(self)

    def forward(
        self, ids: Tensor, past: list[KeysValues] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache, which now covers past + t tokens.

        `mask` (b, past + t) is False where a row is padded on the left; positions count from a row's first real token.
        """
        start = past[0][0].shape[2] if past else 0
        visible = causal_mask(ids.shape[1], start, ids.device)
        index = torch.arange(start, start + ids.shape[1], device=ids.device)
        if mask is not None:
            visible = visible & mask[:, None, None]
            index = (mask.long().cumsum(1) - 1).clamp(min=0)[:, start:]
        x = self.drop(self.tokens(ids) + self.positions[index.clamp(max=len(self.positions) - 1)])
        cache = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, mask=visible, past=past[i] if past else None)
            cache.append(kv)
        return F.linear(self.norm(x), self.tokens.weight), cache


@dataclass(frozen=True)
class RecurrentLMConfig:
    """The size of the LSTM."""

    vocab: int = 4096
    dim: int = 256
    hidden: int = 512
    dropout: float = 0.2


class RecurrentLM(nn.Module):
    """p(next token | tokens so far) by an LSTM whose output layer is tied to its embedding."""

    def __init__(self, config: RecurrentLMConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.dim)
        self.lstm = nn.LSTM(config.dim, config.hidden, batch_first=True)
        self.out = nn.Linear(config.hidden, config.dim)
        self.bias = nn.Parameter(torch.zeros(config.vocab))
        self.drop = nn.Dropout(config.dropout)
        nn.init.normal_(self.tokens.weight, std=0.05)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (b, t) → logits (b, t, vocab)."""
        hidden, _ = self.lstm(self.drop(self.tokens(ids)))
        logits: Tensor = self.out(self.drop(hidden)) @ self.tokens.weight.T + self.bias
        return logits


def sequence_log_likelihood(logits: Tensor, targets: Tensor, pad: int) -> Tensor:
    """Σ log p of the targets that are not padding: logits (b, t, v), targets (b, t) → (b,)."""
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=pad)
    return -losses.sum(1)
