"""Text decoders of other libraries, token by token: their weights, packed, with a cache, a picture's keys and values
made once.

BLIP, GIT, ViT-GPT2 and Whisper differ in where they normalise, and in whether the picture is looked at by layers of its
own (cross) or stands before the text (prefix). The interface is that of `CaptionDecoder`: rows with and without their
input share a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.captioner import Condition
from captioners.nets.few_rows import laid_out, linear
from captioners.nets.key_value_cache import GrowingCache, KeyValueCache, StaticCache
from captioners.nets.transformer import KeysValues, causal_mask

Affine = tuple[Tensor, Tensor | None]  # weight (out, in) and bias of a linear layer


class Packed(nn.Module):
    """Linear layers that read the same input, as one: (…, in) → (…, the sum of their outs)."""

    def __init__(self, layers: Sequence[Affine]):
        super().__init__()
        weights = [weight.detach() for weight, _ in layers]
        biases = [weight.new_zeros(len(weight)) if bias is None else bias.detach() for weight, bias in layers]
        self.weight = nn.Parameter(laid_out(torch.cat(weights)))
        self.bias = nn.Parameter(torch.cat(biases))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Attention(nn.Module):
    """Self-attention, or attention to an input whose keys and values were made before."""

    def __init__(
        self,
        heads: int,
        query: Affine,
        key: Affine,
        value: Affine,
        out: Affine,
        norm: nn.LayerNorm,
        cross: bool = False,
    ):
        super().__init__()
        self.heads, self.norm = heads, norm
        self.entering = Packed([query] if cross else [query, key, value])
        self.given = Packed([key, value]) if cross else None
        self.out = Packed([out])

    def split(self, x: Tensor, rows: int) -> tuple[Tensor, ...]:
        """(rows · t, n · width) → n tensors (rows, heads, t, width / heads)."""
        size = self.out.weight.shape[1] // self.heads
        return x.view(rows, -1, x.shape[-1] // (self.heads * size), self.heads, size).permute(2, 0, 3, 1, 4).unbind()

    def attend(self, q: Tensor, pair: KeysValues, mask: Tensor | None) -> Tensor:
        """q (rows, heads, t, d) → (rows · t, width)."""
        y = F.scaled_dot_product_attention(q, *pair, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(-1, self.out.weight.shape[1]))


class Layer(nn.Module):
    """Self-attention, attention to the input where there are layers for it, and a feed-forward part."""

    def __init__(
        self,
        attention: Attention,
        cross: Attention | None,
        up: Affine,
        act: Callable[[Tensor], Tensor],
        down: Affine,
        norm: nn.LayerNorm,
        norm_first: bool,
    ):
        super().__init__()
        self.attention, self.cross, self.norm, self.norm_first = attention, cross, norm, norm_first
        self.up, self.act, self.down = Packed([up]), act, Packed([down])

    def forward(
        self,
        x: Tensor,
        rows: int,
        cache: KeyValueCache,
        mask: Tensor | None,
        pair: KeysValues | None,
        shown: Tensor | None,
    ) -> Tensor:
        """x (rows · t, width) → the same; keys and values go through the cache."""
        q, k, v = self.attention.split(self.attention.entering(self._before(x, self.attention.norm)), rows)
        x = self._after(x, self.attention.attend(q, cache.extend(k, v), mask), self.attention.norm)
        if self.cross is not None:
            (q,) = self.cross.split(self.cross.entering(self._before(x, self.cross.norm)), rows)
            x = self._after(x, self.cross.attend(q, pair, shown), self.cross.norm)
        y = self.down(self.act(self.up(self._before(x, self.norm))))
        return self._after(x, y, self.norm)

    def _before(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        return norm(x) if self.norm_first else x

    def _after(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        return x + y if self.norm_first else norm(x + y)


class TextDecoder(nn.Module):
    """p(next token | tokens so far, cells of the input or nothing).

    With cross layers, a row without its input sees the null cells, `null` (width,) or (cells, width). With a prefix it
    sees nothing: the text stands alone.
    """

    def __init__(
        self,
        tokens: Tensor,  # (vocab, width)
        positions: Tensor,  # (most, width)
        entry: nn.Module,  # between embeddings and layers
        layers: Sequence[Layer],
        end: nn.Module,  # between layers and head
        head: Affine,  # (vocab, width)
        null: Tensor,  # (width of the input,) or (cells, width)
        opening: Sequence[int] = (),  # read before the first token, for models whose captions begin with several
    ):
        super().__init__()
        tied = head[0].data_ptr() == tokens.data_ptr()
        self.tokens = nn.Parameter(laid_out(tokens.detach()) if tied else tokens.detach())
        self.positions = nn.Parameter(positions.detach())
        self.entry, self.layers, self.end = entry, nn.ModuleList(layers), end
        self.head = None if tied else nn.Parameter(laid_out(head[0].detach()))
        self.head_bias = None if head[1] is None else nn.Parameter(head[1].detach())
        self.null, self.opening = nn.Parameter(null.clone()), tuple(opening)

    @property
    def prefixed(self) -> bool:
        """Whether the input stands before the text, instead of being looked at by layers of its own."""
        return self.layers[0].cross is None

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> Condition:
        """{kind: (n, cells, width)}, rows put into `order` → what every layer sees of the input; the first cells
        stand for none.
        """
        (grid,) = grids.values()
        grid = grid[order].to(self.tokens.dtype)
        null = self.null.to(grid.dtype).reshape(-1, grid.shape[-1])
        if self.prefixed:
            pairs = self._read_prefix(grid)
        else:
            x = torch.cat([null.expand(len(grid), -1, -1), grid], dim=1)
            pairs = [layer.cross.split(layer.cross.given(x.flatten(0, 1)), len(x)) for layer in self.layers]
        visible = torch.arange(len(null) + grid.shape[1], device=grid.device) >= len(null)
        return Condition(pairs, visible.expand(len(grid), 1, 1, -1), len(null))

    def _read_prefix(self, grid: Tensor) -> list[KeysValues]:
        """Keys and values of cells that see each other, layer by layer."""
        x, cache = grid.flatten(0, 1), GrowingCache(None)
        for layer in self.layers:
            x = layer(x, len(grid), cache, None, None, None)
        return cache.pairs

    def forward(
        self, ids: Tensor, condition: Condition, past: list[KeysValues] | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache, which now covers past + t tokens (and the prefix)."""
        new_tokens = ids.shape[1]
        if self.opening and past is None:
            ids = torch.cat([ids.new_tensor(self.opening).expand(len(ids), -1), ids], dim=1)
        length = ids.shape[1]
        start = past[0][0].shape[2] - self._cells(condition) if past else 0
        mask = causal_mask(length, start, ids.device) if length > 1 or self.prefixed else None
        cache = GrowingCache(past or (condition.keys_values if self.prefixed else None))
        return self._read(ids, slice(start, start + length), mask, condition, cache, new_tokens), cache.pairs

    def step(self, ids: Tensor, place: Tensor, condition: Condition, room: list[KeysValues]) -> Tensor:
        """ids (b, 1), which stand at `place` (1,) of a cache with room (`StaticCache`) → logits (b, 1, vocab)."""
        cells = self._cells(condition)
        seen = torch.arange(room[0][0].shape[2] - cells, device=ids.device) <= place - cells
        return self._read(ids, place - cells, seen[None, None, None], condition, StaticCache(room, place), 1)

    def _cells(self, condition: Condition) -> int:
        """How many places of the cache the input takes, which stand before the text."""
        return condition.mask.shape[-1] - 1 if self.prefixed else 0

    def _read(
        self,
        ids: Tensor,
        places: slice | Tensor,
        mask: Tensor | None,
        condition: Condition,
        cache: KeyValueCache,
        new_tokens: int,
    ) -> Tensor:
        """Tokens (b, t) at some places of the text, of which each sees what `mask` allows: logits of the last ones, (b,
        new_tokens, vocab).
        """
        rows, length = ids.shape
        x = self.entry(self.tokens[ids] + self.positions[places]).flatten(0, 1)
        pairs: list[KeysValues | None] = [None] * len(self.layers)
        shown = None
        if self.prefixed:
            before = condition.mask[..., 1:].expand(-1, -1, length, -1)
            mask = torch.cat([before, mask.expand(rows, -1, -1, -1)], dim=-1)
        else:
            pairs, shown = condition.keys_values, additive(condition.mask, x.dtype)
        for layer, pair in zip(self.layers, pairs, strict=True):
            x = layer(x, rows, cache, mask, pair, shown)
        x = x.unflatten(0, (rows, length))[:, -new_tokens:].flatten(0, 1)
        logits = linear(self.end(x), self.tokens if self.head is None else self.head, self.head_bias)
        return logits.unflatten(0, (rows, new_tokens)).float()


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a mask allows attention, −inf elsewhere: added to the scores once, instead of by every layer anew."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)
