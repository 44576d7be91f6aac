"""Models of other libraries, made ready for decoding a few rows on a CPU (`few_rows`); names, shapes and values
stay.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from captioners.nets.few_rows import laid_out, linear

Model = TypeVar("Model", bound=nn.Module)


class FewRowsLinear(nn.Linear):
    """A linear layer for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def for_few_rows(model: Model) -> Model:
    """Linear layers are exchanged, and matrices stored as they are read fastest."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FewRowsLinear
        if isinstance(module, nn.Linear):
            module.weight.data = laid_out(module.weight.data)
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            module.in_proj_weight.data = laid_out(module.in_proj_weight.data)
    return model
