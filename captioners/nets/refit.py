"""Models of other libraries, made ready for decoding a few rows on a CPU (`few_rows`); names, shapes and values
stay.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from captioners.nets.few_rows import linear

Model = TypeVar("Model", bound=nn.Module)


class FewRowsLinear(nn.Linear):
    """A linear layer for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FewRowsConv1D(Conv1D):
    """GPT-2's kind of linear layer, whose weight is (in, out)."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.t(), self.bias)


def for_few_rows(model: Model) -> Model:
    """Linear layers are exchanged, their weights laid out output by output; GELU becomes one operation."""
    for module in list(model.modules()):
        module.__class__ = LAYERS.get(type(module), type(module))
        if isinstance(module, Conv1D):
            module.weight.data = module.weight.data.t().contiguous().t()
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


LAYERS = {nn.Linear: FewRowsLinear, Conv1D: FewRowsConv1D}
