"""A causal LM of transformers behind the call of `CausalLM`: a cache that is plain (k, v) pairs, left padding,
gradients into the cache.

Method 2 moves the cache by gradient descent and method 1 reads behind prompts of different lengths; both see GPT-2 as
they see our own small model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GPT2LMHeadModel
from transformers.cache_utils import DynamicLayer

from captioners.nets.transformer import KeysValues


@dataclass(frozen=True)
class Gpt2Context:
    """What callers ask of a language model's configuration."""

    vocab: int
    context: int  # how many positions may be used


class Gpt2(nn.Module):
    """p(next token | tokens so far), with transformers' cache inside."""

    def __init__(self, model: GPT2LMHeadModel):
        super().__init__()
        self.model = model
        self.config = Gpt2Context(model.config.vocab_size, model.config.n_positions)

    def forward(
        self, ids: Tensor, past: list[KeysValues] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache, which now covers past + t tokens.

        `mask` (b, past + t) is False where a row is padded on the left; positions count from a row's first real token.
        """
        start = past[0][0].shape[2] if past else 0
        if mask is None:
            mask = torch.ones(len(ids), start + ids.shape[1], dtype=torch.bool, device=ids.device)
        positions = (mask.long().cumsum(1) - 1).clamp(0, self.config.context - 1)[:, start:]
        cache = _cache(past or [])
        out = self.model(ids, attention_mask=mask.long(), position_ids=positions, past_key_values=cache, use_cache=True)
        return out.logits, [(layer.keys, layer.values) for layer in cache.layers]

    def branches(self, ids: Tensor, past: list[KeysValues], mask: Tensor, sizes: Sequence[Sequence[int]]) -> Tensor:
        """Several continuations of each row, which share the row's cache instead of having a copy each: logits (b, t,
        vocab).

        ids (b, t) holds a row's continuations one behind the other, `sizes` how long each is; what is left over is
        padding. A continuation sees of the cache what `mask` (b, past) allows, and its own tokens.
        """
        rows, length = ids.shape
        owner = torch.full((rows, length), -1)
        place = torch.arange(length).expand(rows, length).clone()
        for row, row_sizes in enumerate(sizes):
            start = 0
            for number, size in enumerate(row_sizes):
                owner[row, start : start + size] = number
                place[row, start : start + size] = torch.arange(size)
                start += size
        owner, place = owner.to(ids.device), place.to(ids.device)
        own = (owner[:, :, None] == owner[:, None, :]) & (place[:, None, :] <= place[:, :, None])
        visible = torch.cat([mask[:, None, :].expand(-1, length, -1), own], dim=2)[:, None]
        added = torch.zeros(visible.shape, dtype=past[0][0].dtype, device=ids.device).masked_fill(
            ~visible, torch.finfo(past[0][0].dtype).min
        )
        positions = (mask.sum(1, keepdim=True) + place).clamp(max=self.config.context - 1)
        logits: Tensor = self.model(
            ids, attention_mask=added, position_ids=positions, past_key_values=_cache(past), use_cache=True
        ).logits
        return logits


def _cache(past: list[KeysValues]) -> DynamicCache:
    """Keys and values as they are: `update` would copy all that is kept for every token."""
    cache = DynamicCache()
    for k, v in past:
        layer = DynamicLayer()
        layer.lazy_initialization(k, v)
        layer.keys, layer.values = k, v
        cache.layers.append(layer)
    return cache
