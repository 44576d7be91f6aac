"""A few rows times a large matrix on a CPU: bound by reading the matrix, so every thread should read a part of it.

Whether PyTorch's `linear` does that by itself depends on the processor. All matrices of a GPT-2 but the last one, with
MKL: on two AVX2 cores 20 ms for one row and 40 ms for two, with one of the threads; on two AVX-512 cores 14 and 14 ms,
with both, where in parts it is 15 and 14. So the two ways are raced once in a process. And two or three rows may take
longer than four, for which there is a better kernel (one AVX-512 thread: 9, 16, 20 and 13 ms for one to four rows):
where that is so, they are padded to four. Matrices are best read along their inputs (`refit`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
    rows = x.numel() // max(1, x.shape[-1])
    if not 1 <= rows <= FEW or weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.numel() < LARGE:
        return F.linear(x, weight, bias)
    product = in_parts if parts_are_faster() else F.linear
    if 1 < rows < FEW and padding_is_faster():
        padded = F.pad(x.reshape(rows, -1), (0, 0, 0, FEW - rows))
        return product(padded, weight, bias)[:rows].reshape(*x.shape[:-1], -1)
    return product(x, weight, bias)


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
def parts_are_faster() -> bool:
    """One row times some matrices either way: some 50 ms, once in a process."""
    x = torch.ones(1, TRACK[-1])
    return _seconds(lambda matrix: in_parts(x, matrix)) < _seconds(lambda matrix: F.linear(x, matrix))


@cache
def padding_is_faster() -> bool:
    """Two rows as they are, or as two of four."""
    product, two, four = (
        in_parts if parts_are_faster() else F.linear,
        torch.ones(2, TRACK[-1]),
        torch.ones(FEW, TRACK[-1]),
    )
    return _seconds(lambda matrix: product(four, matrix)) < _seconds(lambda matrix: product(two, matrix))


@torch.no_grad()
def _seconds(way: Callable[[Tensor], Tensor]) -> float:
    """The best of three rounds over matrices that no cache holds."""
    matrices, seconds = torch.ones(TRACK), []
    for _ in range(3):
        began = time.perf_counter()
        for matrix in matrices:
            way(matrix)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
