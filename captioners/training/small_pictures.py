"""Pictures squeezed to small squares: what codes of pixels are made from, and what the painter learns to paint."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from captioners.training import Job, corpus


def small_pictures(job: Job, split: str, side: int) -> Tensor:
    """All pictures of a split, squeezed to squares: (n, 3, side, side) uint8; read once and cached."""
    cached = job.cache / f"small-pictures-{split}-{side}.npy"
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(2) as pool:
            paths = [picture.path for picture in corpus.pictures(job.data, split)]
            squares = np.stack(list(pool.map(lambda path: _squeezed(path, side), paths)))
        with cached.with_suffix(".partial").open("wb") as file:
            np.save(file, squares)
        cached.with_suffix(".partial").rename(cached)
    return torch.from_numpy(np.load(cached)).permute(0, 3, 1, 2)


def _squeezed(path: Path, side: int) -> np.ndarray:
    """A picture file as (side, side, 3) uint8."""
    return np.array(Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BOX))
