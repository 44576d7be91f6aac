"""Models of other libraries, made ready for decoding a few rows on a CPU (`few_rows`); names, shapes and values stay."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from captioners.nets.few_rows import linear


class FewRowsLinear(nn.Linear):
    """A linear layer for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FewRowsConv1D(Conv1D):
    """GPT-2's kind of linear layer, whose weight is (in, out)."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.t(), self.bias)


def for_few_rows(model: nn.Module) -> nn.Module:
    """Linear layers are exchanged, their longer side made contiguous, what is also an embedding aside; GELU becomes one operation."""
    kept = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    for module in list(model.modules()):
        weight = None
        if type(module) in LAYERS:
            module.__class__ = LAYERS[type(module)]
            weight = module.weight
        elif isinstance(module, nn.MultiheadAttention):
            weight = module.in_proj_weight
        if weight is not None and id(weight) not in kept:
            _longer_side_contiguous(weight)
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


LAYERS = {nn.Linear: FewRowsLinear, Conv1D: FewRowsConv1D}


def _longer_side_contiguous(weight: nn.Parameter) -> None:
    tall = weight.shape[0] > weight.shape[1]
    weight.data = weight.data.t().contiguous().t() if tall else weight.data.contiguous()
