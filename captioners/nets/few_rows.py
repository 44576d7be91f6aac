"""A few rows times a large matrix on a CPU: bound by reading the matrix, so it should be stored as it is read fastest,
and every thread should read a part of it.

What is fastest depends on the processor, so it is raced once in a process:

- Stored output by output or input by input (`laid_out`). One AVX-512 thread reads 18 GB/s of the first and 26 of the
  second for one row, 12 and 18 for two.
- Whole or in parts. PyTorch's `linear` may leave all to one of its threads: on two AVX2 cores all matrices of a GPT-2
  but the last one took 20 ms for one row and 40 for two; on two AVX-512 cores 14 and 14, and 15 and 14 in parts.
- As they are or padded to four rows, for which there is a better kernel (one AVX-512 thread, output by output: 9, 16,
  20 and 13 ms for one to four rows).
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
    rows = x.numel() // max(1, x.shape[-1])
    if not 1 <= rows <= FEW or not _large(weight):
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


def laid_out(weight: Tensor) -> Tensor:
    """The same matrix (out, in), stored as `linear` reads it fastest."""
    return weight.t().contiguous().t() if _large(weight) and columns_are_faster() else weight.contiguous()


def _large(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LARGE


def columns_are_faster() -> bool:
    """Whether matrices are best stored input by input."""
    return _fastest()[0]


def parts_are_faster() -> bool:
    """Whether threads are best handed parts of a matrix."""
    return _fastest()[1]


@cache
def _fastest() -> tuple[bool, bool]:
    """One row times some matrices, in every way: some 100 ms, once in a process."""
    threads = torch.get_num_threads()
    ways = [(by_input, parts) for parts in ((False, True) if threads > 1 else (False,)) for by_input in (False, True)]
    return min(ways, key=lambda way: _seconds(1, *way))


@cache
def padding_is_faster() -> bool:
    """Two rows as they are, or as two of four."""
    return _seconds(FEW, *_fastest()) < _seconds(2, *_fastest())


@torch.no_grad()
def _seconds(rows: int, by_input: bool, parts: bool) -> float:
    """Rows times some matrices that no cache holds together, the best of three rounds for each of them, without the
    time in which this thread was not run: what else the machine does should not decide.
    """
    count, out, into = TRACK
    matrices = torch.ones(count, into, out).transpose(1, 2) if by_input else torch.ones(count, out, into)
    x, product, rounds = torch.ones(rows, into), in_parts if parts else F.linear, list[list[float]]()
    for _ in range(3):
        seconds = []
        for matrix in matrices:
            began = time.thread_time()
            product(x, matrix)
            seconds.append(time.thread_time() - began)
        rounds.append(seconds)
    return sum(min(seconds[i] for seconds in rounds) for i in range(count))
