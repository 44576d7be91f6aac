"""What method 4's prefix is made of: the mean of an encoder's cells, and the means of a few regions of them.

A picture's regions are its four quarters, a sound's the four quarters of its time. Neighbours share the cells between
them where a grid has no middle to be cut at.
"""

from __future__ import annotations

import torch
from torch import Tensor

GRIDS = {"image": (7, 7), "audio": (2, 10)}  # rows and columns of the encoders' cells; a sound's: frequency and time
CUTS = {"image": (2, 2), "audio": (1, 4)}  # into how many parts rows and columns are cut
REGIONS = (1, 5)  # the whole, and the whole with its quarters


def region_cells(kind: str) -> Tensor:
    """(5, cells): which cells the whole and each of its quarters have."""
    down, across = (_spans(size, parts) for size, parts in zip(GRIDS[kind], CUTS[kind], strict=True))
    quarters = (down[:, None, :, None] & across[None, :, None, :]).flatten(2).flatten(0, 1)
    return torch.cat([torch.ones_like(quarters[:1]), quarters])


def _spans(size: int, parts: int) -> Tensor:
    """(parts, size): a row of cells in overlapping parts of one length, as `adaptive_avg_pool2d` cuts it."""
    at, part = torch.arange(size), torch.arange(parts)[:, None]
    return (at >= part * size // parts) & (at < -((part + 1) * -size // parts))


def pooled_regions(grid: Tensor, kind: str, regions: int = 1) -> Tensor:
    """Grids (…, cells, c) → means (…, regions, c): that of all cells, and with 5 regions those of the four quarters."""
    whole = grid.mean(-2, keepdim=True)
    if regions == 1:
        return whole
    quarters = region_cells(kind)[1:].to(grid)
    return torch.cat([whole, quarters @ grid / quarters.sum(1, keepdim=True)], -2)


def seen_regions(grid: Tensor, kind: str, seen: Tensor, regions: int = 1) -> Tensor:
    """One grid (cells, c), of which each row of `seen` (m, cells) shows some cells → means (m, regions, c) of those.

    A quarter of which nothing is seen is the mean of all that is.
    """
    shown = seen.to(grid.device)[:, None]  # (m, 1, cells)
    if regions > 1:
        shown = shown & region_cells(kind).to(grid.device)
        shown = torch.where(shown.any(-1, keepdim=True), shown, shown[:, :1])
    weights = shown.to(grid.dtype)
    return weights @ grid / weights.sum(-1, keepdim=True)
