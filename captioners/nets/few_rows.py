"""Rows times a large matrix on a CPU. A few rows are bound by reading the matrix, so it should be stored as it is read
fastest, and every thread should read a part of it; many rows are bound by arithmetic.

What is fastest depends on the processor, so it is raced once in a process:

- By what. PyTorch's `linear` calls a BLAS, which may leave all of a few rows to one of its threads, and does not know
  every processor's vector units. `in_parts` hands each thread some of the outputs. `one_dnn` is the other library
  within PyTorch, the one that its compiler calls: on plain tensors, in float32, it computes the same.
- Stored output by output or input by input (`laid_out`).
- As they are or padded to four rows, for which BLAS may have a better kernel.

GB/s of weights read by one and two rows on two AVX-512 cores of AMD, one thread | two threads:

    output by output   linear 17, 13   one_dnn 25, 27 | linear 17, 11   in_parts 29, 22   one_dnn 33, 35
    input by input     linear 24, 17   one_dnn 24, 20 | linear 17, 12   in_parts 25, 17   one_dnn 34, 26

and fifty rows take `one_dnn` half of the time that they take `linear`, or less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

FEW = 4  # rows; for more of them every library uses all threads by itself
LARGE = 2**18  # weights; smaller matrices stay in the cache
TRACK = (6, 3072, 768)  # matrices that are read in the race of few rows: more than a core's cache holds
MANY, MANY_TRACK = 64, (2, 3072, 768)  # rows and matrices of the other race

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: x (…, in), weight (out, in)."""
    rows = x.numel() // max(1, x.shape[-1])
    if rows == 0 or not _large(weight):
        return F.linear(x, weight, bias)
    product = (_fastest if rows <= FEW else _fastest_of_many)()[1]
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


def one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same by oneDNN, with a gradient for x alone; `F.linear` where more is asked for."""
    if x.dtype != weight.dtype or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        if weight.requires_grad or (bias is not None and bias.requires_grad):
            return F.linear(x, weight, bias)
        if x.requires_grad:
            graded: Tensor = _OneDnnOfInput.apply(x, weight, bias)  # type: ignore[no-untyped-call]
            return graded
    y: Tensor = _one_dnn()(x, weight, bias, "none", [], "")
    return y


class _OneDnnOfInput(torch.autograd.Function):
    """A frozen matrix: what flows back is a product with the same matrix, read the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        """x (…, in) → (…, out)."""
        ctx.weight = weight
        return _one_dnn()(x, weight, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """(…, out) → (…, in)."""
        return _one_dnn()(gradient, ctx.weight.t(), None, "none", [], ""), None, None


@cache
def _one_dnn() -> Any:
    """PyTorch's own call of it, None where this build has none."""
    found = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return torch.ops.mkldnn._linear_pointwise.default if found else None


def laid_out(weight: Tensor, many: bool = False) -> Tensor:
    """The same matrix (out, in), stored as `linear` reads it fastest for few rows, or for many."""
    by_input = _large(weight) and (_fastest_of_many if many else _fastest)()[0]
    return weight.t().contiguous().t() if by_input else weight.contiguous()


def _large(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LARGE


@cache
def _fastest() -> tuple[bool, Product]:
    """One row and two, as guidance has them, times some matrices, in every way: some 200 ms, once in a process."""
    products: list[Product] = [F.linear]
    if torch.get_num_threads() > 1:
        products.append(in_parts)
    if _one_dnn() is not None:
        products.append(one_dnn)
    ways = [(by_input, product) for product in products for by_input in (False, True)]
    return min(ways, key=lambda way: _seconds(1, *way) + _seconds(2, *way))


@cache
def padding_is_faster() -> bool:
    """Two rows as they are, or as two of four."""
    return _seconds(FEW, *_fastest()) < _seconds(2, *_fastest())


@cache
def _fastest_of_many() -> tuple[bool, Product]:
    """The same for many rows, as encoders have them."""
    products: list[Product] = [F.linear] if _one_dnn() is None else [F.linear, one_dnn]
    ways = [(by_input, product) for product in products for by_input in (False, True)]
    return min(ways, key=lambda way: _seconds(MANY, way[0], way[1], MANY_TRACK))


@torch.no_grad()
def _seconds(rows: int, by_input: bool, product: Product, track: tuple[int, int, int] = TRACK) -> float:
    """Rows times some matrices that no cache holds together, the best of three rounds for each of them, without the
    time in which this thread was not run: what else the machine does should not decide.
    """
    count, out, into = track
    matrices = torch.ones(count, into, out).transpose(1, 2) if by_input else torch.ones(count, out, into)
    x, rounds = torch.ones(rows, into), list[list[float]]()
    for _ in range(3):
        seconds = []
        for matrix in matrices:
            began = time.thread_time()
            product(x, matrix, None)
            seconds.append(time.thread_time() - began)
        rounds.append(seconds)
    return sum(min(seconds[i] for seconds in rounds) for i in range(count))
