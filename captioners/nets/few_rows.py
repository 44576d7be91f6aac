"""A few rows times a large matrix on a CPU: bound by reading the matrix, so every thread should read a part of it.

Whether PyTorch's `linear` does that by itself depends on the processor. All matrices of a GPT-2 but the last one, with MKL: on two
AVX2 cores 20 ms for one row and 40 ms for two, with one of the threads; on two AVX-512 cores 14 and 14 ms, with both, where in parts
it is 15 and 14. So the two ways are raced once in a process. Matrices are best read along their inputs (`refit`).
"""

from __future__ import annotations

import time
from functools import cache
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

FEW = 4  # rows; for more of them `linear` uses all threads by itself
LARGE = 2**18  # weights; smaller matrices stay in the cache
TRACK = (6, 3072, 768)  # matrices that are read in the race: more than a core's cache holds


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: x (…, in), weight (out, in)."""
    if not parts_are_faster() or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return F.linear(x, weight, bias)
    few = 1 <= x.numel() // x.shape[-1] <= FEW and weight.numel() >= LARGE
    return in_parts(x, weight, bias) if few else F.linear(x, weight, bias)


def in_parts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same, each thread having some of the outputs."""
    rows, (out, into), (row, column) = x.numel() // x.shape[-1], weight.shape, weight.stride()
    parts = gcd(out, torch.get_num_threads())
    size = out // parts
    flat = x.reshape(rows, into).expand(parts, rows, into)
    matrices = weight.as_strided((parts, into, size), (size * row, column, row))
    y = torch.bmm(flat, matrices) if bias is None else torch.baddbmm(bias.view(parts, 1, size), flat, matrices)
    return y.transpose(0, 1).reshape(*x.shape[:-1], out)


@cache
@torch.no_grad()
def parts_are_faster() -> bool:
    """One row times some matrices either way, the best of three: some 50 ms, once in a process."""
    matrices, x = torch.ones(TRACK), torch.ones(1, TRACK[-1])

    def seconds(way) -> float:
        began = time.perf_counter()
        for matrix in matrices:
            way(x, matrix)
        return time.perf_counter() - began

    return min(seconds(in_parts) for _ in range(3)) < min(seconds(F.linear) for _ in range(3))
