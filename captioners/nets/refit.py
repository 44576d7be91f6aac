"""Models of other libraries, made ready for decoding a few rows on a CPU (`few_rows`), and for reading pictures with
the same products; names, shapes and values stay.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.few_rows import laid_out, linear

Model = TypeVar("Model", bound=nn.Module)


class FewRowsLinear(nn.Linear):
    """A linear layer for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FewRowsAttention(nn.MultiheadAttention):
    """Attention whose projections are such layers too: those of a picture's cells take a third of its encoding."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Of x to itself where nothing else is asked for, as encoders have it; all else as PyTorch has it."""
        asked = {name: x for name, x in kwargs.items() if x is not None}
        to_itself = query is key and key is value and query.ndim == 3 and self.batch_first
        usual = self.in_proj_weight is not None and self.bias_k is None and not self.add_zero_attn
        if torch.is_grad_enabled() or args or asked != {"need_weights": False} or not (to_itself and usual):
            return super().forward(query, key, value, *args, **kwargs)
        projected = linear(query, self.in_proj_weight, self.in_proj_bias)
        q, k, v = projected.unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return linear(y.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias), None


def for_few_rows(model: Model, encoder: nn.Module | None = None) -> Model:
    """Layers are exchanged, and matrices stored as they are read fastest; those of an encoder within the model are read
    by many rows.
    """
    of_encoder = set(encoder.modules()) if encoder is not None else set()
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FewRowsLinear
        elif type(module) is nn.MultiheadAttention:
            module.__class__ = FewRowsAttention
        many = module in of_encoder
        if isinstance(module, nn.Linear):
            module.weight.data = laid_out(module.weight.data, many)
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            module.in_proj_weight.data = laid_out(module.in_proj_weight.data, many)
    return model
