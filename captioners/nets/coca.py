"""Incremental decoding for open_clip's CoCa: its own weights, a cache of keys and values, pictures attended to once.

open_clip's `generate` runs the whole prefix, and every picture token through every cross-attention, again for each new token.
Here a token is computed once. The interface is that of `CaptionDecoder`: rows with and without their picture share a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.captioner import Condition
from captioners.nets.few_rows import linear
from captioners.nets.transformer import KeysValues, causal_mask


class CocaDecoder(nn.Module):
    """p(next token | tokens so far, picture tokens or nothing) by a CoCa's text tower and multimodal decoder.

    Without its condition a row sees one null cell, `null` (width,): zeros, the mean picture token of a reference set, or what
    fine-tuning with the condition removed has learned.
    """

    def __init__(self, model: nn.Module, null: Tensor | None = None):
        super().__init__()
        self.text, self.multimodal = model.text, model.text_decoder
        width = self.multimodal.text_projection.shape[0]
        self.null = nn.Parameter(torch.zeros(width) if null is None else null.clone())

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> Condition:
        """{"image": (n, cells, width)}, rows put into `order` → keys and values of every cross layer, the null cell first."""
        grid = grids["image"][order]
        x = torch.cat([self.null.to(grid.dtype).expand(len(grid), 1, -1), grid], dim=1)
        seen = torch.arange(x.shape[1], device=x.device) > 0
        pairs = [_keys_values(block.attn, block.ln_1_kv(x)) for block in self.multimodal.cross_attn]
        return Condition(pairs, seen.expand(len(x), 1, 1, -1))

    def forward(self, ids: Tensor, condition: Condition, past: list[KeysValues] | None = None) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache of both decoders, which now covers past + t tokens."""
        start, length = past[0][0].shape[2] if past else 0, ids.shape[1]
        dtype = self.text.transformer.get_cast_dtype()
        x = self.text.token_embedding(ids).to(dtype) + self.text.positional_embedding[start : start + length].to(dtype)
        seen = causal_mask(length, start, ids.device) if length > 1 else None
        cache: list[KeysValues] = []

        def grow(block: nn.Module, x: Tensor) -> Tensor:
            x, pair = _self_attend(block, x, past[len(cache)] if past else None, seen)
            cache.append(pair)
            return _feed_forward(block, x)

        for block in self.text.transformer.resblocks:
            x = grow(block, x)
        for block, cross, pair in zip(self.multimodal.resblocks, self.multimodal.cross_attn, condition.keys_values, strict=True):
            x = grow(block, x)
            q = linear(cross.ln_1(x), *_part(cross.attn, 0, 1))
            x = _feed_forward(cross, x + cross.ls_1(_attend(cross.attn, q, pair, condition.mask)))
        return linear(self.multimodal.ln_final(x), self.multimodal.text_projection.t()), cache


def _part(attention: nn.MultiheadAttention, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of some of the packed projections: queries are 0, keys 1, values 2."""
    width = attention.embed_dim
    return attention.in_proj_weight[first * width : last * width], attention.in_proj_bias[first * width : last * width]


def _split(x: Tensor, heads: int) -> Tensor:
    """(b, t, c) → (b, heads, t, c / heads)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def _keys_values(attention: nn.MultiheadAttention, x: Tensor) -> KeysValues:
    k, v = linear(x, *_part(attention, 1, 3)).chunk(2, dim=-1)
    return _split(k, attention.num_heads), _split(v, attention.num_heads)


def _attend(attention: nn.MultiheadAttention, q: Tensor, pair: KeysValues, mask: Tensor | None) -> Tensor:
    y = F.scaled_dot_product_attention(_split(q, attention.num_heads), *pair, attn_mask=mask)
    return attention.out_proj(y.transpose(1, 2).flatten(2))


def _self_attend(block: nn.Module, x: Tensor, past: KeysValues | None, mask: Tensor | None) -> tuple[Tensor, KeysValues]:
    heads = block.attn.num_heads
    q, k, v = linear(block.ln_1(x), *_part(block.attn, 0, 3)).chunk(3, dim=-1)
    k, v = _split(k, heads), _split(v, heads)
    if past is not None:
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
    return x + block.ls_1(_attend(block.attn, q, (k, v), mask)), (k, v)


def _feed_forward(block: nn.Module, x: Tensor) -> Tensor:
    return x + block.ls_2(block.mlp(block.ln_2(x)))
