"""Rows of different lengths as one tensor, padded on the left so that the next token of every row is the last
column.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def left_padded(rows: Sequence[Sequence[int]], pad: int, device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Rows of ids → ids (b, t) and a mask (b, t) that is False on padding."""
    longest = max(map(len, rows))
    ids = [[pad] * (longest - len(row)) + [*row] for row in rows]
    mask = [[False] * (longest - len(row)) + [True] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
