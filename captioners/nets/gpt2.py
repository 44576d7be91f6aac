"""GPT-2 behind the call of `CausalLM`: a cache that is plain (k, v) pairs, left padding, gradients into the cache.

Method 2 moves the cache by gradient descent and method 1 reads behind prompts of different lengths; both see GPT-2 as
they see our own small model. The layers are those of `text_decoder`, with the weights of transformers' model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from captioners.nets.few_rows import laid_out, linear
from captioners.nets.from_transformers import gpt2_layer
from captioners.nets.key_value_cache import GrowingCache
from captioners.nets.text_decoder import additive
from captioners.nets.transformer import KeysValues, causal_mask


@dataclass(frozen=True)
class Gpt2Context:
    """What callers ask of a language model's configuration."""

    vocab: int
    context: int  # how many positions may be used


class Gpt2(nn.Module):
    """p(next token | tokens so far)."""

    def __init__(self, model: GPT2LMHeadModel):
        super().__init__()
        gpt2 = model.transformer
        if model.lm_head.weight.data_ptr() != gpt2.wte.weight.data_ptr():
            raise ValueError("its output layer is not its embedding.")
        self.config = Gpt2Context(model.config.vocab_size, model.config.n_positions)
        self.tokens = nn.Parameter(laid_out(gpt2.wte.weight.detach()))  # also the output layer
        self.positions = nn.Parameter(gpt2.wpe.weight.detach())
        self.layers, self.norm = nn.ModuleList(gpt2_layer(block) for block in gpt2.h), gpt2.ln_f

    def forward(
        self, ids: Tensor, past: list[KeysValues] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache, which now covers past + t tokens.

        `mask` (b, past + t) is False where a row is padded on the left; positions count from a row's first real token.
        """
        start, length = past[0][0].shape[2] if past else 0, ids.shape[1]
        if mask is None:
            mask = torch.ones(len(ids), start + length, dtype=torch.bool, device=ids.device)
        positions = (mask.long().cumsum(1) - 1)[:, start:]
        seen = causal_mask(length, start, ids.device) & mask[:, None, None]
        return self._read(ids, positions, _and_itself(seen), past)

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
        seen = torch.cat([mask[:, None, :].expand(-1, length, -1), own], dim=2)[:, None]
        return self._read(ids, mask.sum(1, keepdim=True) + place, seen, past)[0]

    def _read(
        self, ids: Tensor, positions: Tensor, seen: Tensor, past: list[KeysValues] | None
    ) -> tuple[Tensor, list[KeysValues]]:
        """Tokens (b, t) at their positions (b, t), of which each sees what `seen` (b, 1, t, past + t) allows."""
        x = (self.tokens[ids] + self.positions[positions.clamp(0, self.config.context - 1)]).flatten(0, 1)
        cache, shown = GrowingCache(past), additive(seen, x.dtype)
        for layer in self.layers:
            x = layer(x, len(ids), cache, shown, None, None)
        return linear(self.norm(x), self.tokens).unflatten(0, ids.shape), cache.pairs


def _and_itself(seen: Tensor) -> Tensor:
    """seen (b, 1, t, past + t): a token that is padding sees itself, because a mean over nothing is not a number."""
    seen.diagonal(seen.shape[-1] - seen.shape[-2], -2, -1).fill_(True)
    return seen
