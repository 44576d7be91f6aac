"""Incremental decoding for open_clip's CoCa: its own weights, a cache of keys and values, pictures attended to once.

open_clip's `generate` runs the whole prefix, and every picture token through every cross-attention, again for each new
token. Here a token is computed once. The interface is that of `CaptionDecoder`: rows with and without their picture
share a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.captioner import Condition
from captioners.nets.few_rows import linear
from captioners.nets.key_value_cache import GrowingCache, KeyValueCache, StaticCache
from captioners.nets.transformer import KeysValues, causal_mask


class CocaDecoder(nn.Module):
    """p(next token | tokens so far, picture tokens or nothing) by a CoCa's text tower and multimodal decoder.

    Without its condition a row sees the null cells instead, `null` (width,) or (cells, width): zeros, the mean of some
    pictures, or what fine-tuning with the condition removed has learned.
    """

    def __init__(self, model: nn.Module, null: Tensor | None = None, normalised: bool = False):
        """`normalised` if the null cells are means of normalised cells: no norm may blow them up again."""
        super().__init__()
        self.normalised = normalised
        self.text, self.multimodal = model.text, model.text_decoder
        width = self.multimodal.text_projection.shape[0]
        self.null = nn.Parameter(torch.zeros(width) if null is None else null.clone())

    @cached_property
    def layers(self) -> tuple[list[Layer], list[Layer], list[Layer]]:
        """Of the text tower, of the multimodal decoder, and those that look at the picture."""
        stacks = (self.text.transformer.resblocks, self.multimodal.resblocks, self.multimodal.cross_attn)
        return tuple([Layer.of(block) for block in stack] for stack in stacks)

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> Condition:
        """{"image": (n, cells, width)}, rows put into `order` → keys and values of every cross layer, the null cells
        first.
        """
        grid = grids["image"][order]
        null = self.null.to(grid.dtype).reshape(-1, grid.shape[-1])
        visible = torch.arange(len(null) + grid.shape[1], device=grid.device) >= len(null)
        pairs = []
        for layer, block in zip(self.layers[2], self.multimodal.cross_attn, strict=True):
            norm = block.ln_1_kv
            cells = (null * norm.weight + norm.bias).to(grid.dtype) if self.normalised else norm(null)
            x = torch.cat([cells.expand(len(grid), -1, -1), norm(grid)], dim=1)
            pairs.append(layer.project(x.flatten(0, 1), len(x), KEYS, VALUES))
        return Condition(pairs, visible.expand(len(grid), 1, 1, -1), len(null))

    def forward(
        self, ids: Tensor, condition: Condition, past: list[KeysValues] | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache of both decoders, which now covers past + t tokens."""
        start, length = past[0][0].shape[2] if past else 0, ids.shape[1]
        causal = causal_mask(length, start, ids.device) if length > 1 else None
        cache = GrowingCache(past)
        return self._read(ids, slice(start, start + length), causal, condition, cache), cache.pairs

    def step(self, ids: Tensor, place: Tensor, condition: Condition, room: list[KeysValues]) -> Tensor:
        """ids (b, 1), which stand at `place` (1,) of a cache with room (`StaticCache`) → logits (b, 1, vocab)."""
        seen = torch.arange(room[0][0].shape[2], device=ids.device) <= place
        return self._read(ids, place, seen[None, None, None], condition, StaticCache(room, place))

    def _read(
        self, ids: Tensor, places: slice | Tensor, seen: Tensor | None, condition: Condition, cache: KeyValueCache
    ) -> Tensor:
        """Both decoders on tokens (b, t) at some places, each sees what `seen` allows: logits (b, t, vocab)."""
        rows, length = ids.shape
        dtype = self.text.transformer.get_cast_dtype()
        x = self.text.token_embedding(ids).to(dtype) + self.text.positional_embedding[places].to(dtype)
        x = x.flatten(0, 1)
        shown = torch.zeros(condition.mask.shape, dtype=dtype, device=x.device).masked_fill(~condition.mask, -torch.inf)

        def grow(layer: Layer, x: Tensor) -> Tensor:
            q, k, v = layer.project(normed(x, layer.norm1), rows, QUERIES, VALUES)
            return layer.feed_forward(layer.attend(x, q, cache.extend(k, v), seen))

        text, multimodal, crossing = self.layers
        for layer in text:
            x = grow(layer, x)
        for layer, cross, pair in zip(multimodal, crossing, condition.keys_values, strict=True):
            x = grow(layer, x)
            (q,) = cross.project(normed(x, cross.norm1), rows, QUERIES, QUERIES)
            x = cross.feed_forward(cross.attend(x, q, pair, shown))
        logits = linear(self.multimodal.ln_final(x), self.multimodal.text_projection.t())
        return logits.unflatten(0, (rows, length)).float()


def normalised(cells: Tensor) -> Tensor:
    """What the norm of any layer makes of a picture's cells, but for the layer's own scale and shift."""
    return torch.layer_norm(cells.float(), cells.shape[-1:])


QUERIES, KEYS, VALUES = range(3)  # their order in a packed projection
Norm = tuple[nn.Parameter, nn.Parameter, float]  # weight, bias and what keeps it from dividing by zero
Function = Callable[[Tensor], Tensor]


def normed(x: Tensor, norm: Norm) -> Tensor:
    """Layer normalisation in the precision of its weights, as open_clip has it."""
    weight, bias, eps = norm
    if x.dtype != weight.dtype:
        return normed(x.to(weight.dtype), norm).to(x.dtype)
    return torch.layer_norm(x, weight.shape, weight, bias, eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """A residual attention block of open_clip with what it computes at hand, for positions (rows · t, width) one behind
    the other.

    Between two matrices that go through the cache of a CPU, every line of Python has to be fetched from memory again:
    modules within modules, called one by one, take a tenth of the time that a token does.
    """

    heads: int
    norm1: Norm
    packed: tuple[nn.Parameter, nn.Parameter]  # weight and bias of queries, keys and values
    out: tuple[nn.Parameter, nn.Parameter]
    scale1: Function | None
    norm2: Norm
    up: tuple[nn.Parameter, nn.Parameter]
    act: Function
    down: tuple[nn.Parameter, nn.Parameter]
    scale2: Function | None

    @classmethod
    def of(cls, block: nn.Module) -> Layer:
        attention, mlp = block.attn, block.mlp
        out, up, down = ((m.weight, m.bias) for m in (attention.out_proj, mlp.c_fc, mlp.c_proj))
        scale1, scale2 = (None if isinstance(s, nn.Identity) else s.forward for s in (block.ls_1, block.ls_2))
        packed = attention.in_proj_weight, attention.in_proj_bias
        norm1, norm2 = ((m.weight, m.bias, m.eps) for m in (block.ln_1, block.ln_2))
        return cls(attention.num_heads, norm1, packed, out, scale1, norm2, up, mlp.gelu.forward, down, scale2)

    def project(self, x: Tensor, rows: int, first: int, last: int) -> tuple[Tensor, ...]:
        """x (rows · t, width) → some of queries, keys and values, each (rows, heads, t, width / heads)."""
        width, count = x.shape[-1], last - first + 1
        weight, bias = self.packed if count == 3 else (p[first * width : (last + 1) * width] for p in self.packed)
        return (
            linear(x, weight, bias)
            .view(rows, -1, count, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind()
        )

    def attend(self, x: Tensor, q: Tensor, pair: KeysValues, mask: Tensor | None) -> Tensor:
        y = F.scaled_dot_product_attention(q, *pair, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        y = linear(y, *self.out)
        return x + (y if self.scale1 is None else self.scale1(y))

    def feed_forward(self, x: Tensor) -> Tensor:
        y = linear(self.act(linear(normed(x, self.norm2), *self.up)), *self.down)
        return x + (y if self.scale2 is None else self.scale2(y))
