"""A few rows times a large matrix on a CPU: bound by reading the matrix, so every thread should read a part of it.

Measured on two AVX2 cores with MKL, all matrices of a GPT-2 but the last one: PyTorch's `linear` takes 20 ms for one row and 40 ms for
two, with one of the threads. Asked for as below, both work: about 14 and 22 ms. The longer side of a matrix is best contiguous.
"""

from __future__ import annotations

from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

FEW = 4  # rows; for more of them `linear` uses all threads by itself
LARGE = 2**18  # weights; smaller matrices stay in the cache


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: x (…, in), weight (out, in) in either order in memory."""
    rows, (out, into) = x.numel() // x.shape[-1], weight.shape
    if not 1 <= rows <= FEW or weight.numel() < LARGE or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return F.linear(x, weight, bias)
    parts = gcd(out, into, torch.get_num_threads())
    flat = x.reshape(rows, into).contiguous()
    if weight.stride(0) == 1:  # each thread has some of the inputs
        y = torch.bmm(flat.view(rows, parts, -1).transpose(0, 1), _in_parts(weight.t(), parts)).sum(0)
    elif rows == 1:  # each thread has some of the outputs
        column = flat.as_strided((parts, into, 1), (0, 1, into))
        if bias is not None:
            return torch.baddbmm(bias.view(parts, -1, 1), _in_parts(weight, parts), column).view(*x.shape[:-1], out)
        y = torch.bmm(_in_parts(weight, parts), column)
    else:
        y = torch.mm(weight, flat.t()).t()
    y = y.reshape(*x.shape[:-1], out)
    return y if bias is None else y + bias


def _in_parts(matrix: Tensor, parts: int) -> Tensor:
    """(n, m) → (parts, n / parts, m)."""
    size, (row, column) = matrix.shape[0] // parts, matrix.stride()
    return matrix.as_strided((parts, size, matrix.shape[1]), (size * row, row, column))
