"""Caption→media retrieval: how often the right picture or clip is among the k nearest to its caption."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def ranks(similarity: Tensor, owner: Sequence[int]) -> Tensor:
    """similarity (captions, media) and the column each caption belongs to → its rank, 0 for the nearest.

    A tie counts against the caption, so that a constant scorer gets no credit.
    """
    right = similarity[torch.arange(len(owner)), torch.as_tensor(owner)]
    return (similarity >= right[:, None]).sum(1) - 1


def recall_at(similarity: Tensor, owner: Sequence[int], k: int) -> float:
    """The share of captions whose own media is among the k nearest."""
    return (ranks(similarity, owner) < k).float().mean().item()
