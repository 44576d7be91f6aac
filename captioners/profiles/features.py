"""Features of frozen encoders on disk: one file for each picture or clip, by what made it and what it shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from captioners.types import Media

Encode = Callable[[list[Media]], Sequence[Tensor]]


class FeatureStore:
    """`FOLDER/ENCODER/MEDIA HASH.npy`, in full precision: a run from disk gives the same numbers."""

    def __init__(self, folder: Path):
        self.folder = folder

    def around(self, encode: Encode, encoder: str, device: str) -> Encode:
        """`encode`, asked only for what is not there yet."""
        folder = self.folder / encoder

        def known_or_encoded(media: list[Media]) -> list[Tensor]:
            folder.mkdir(parents=True, exist_ok=True)
            paths = {m.hash: folder / f"{m.hash}.npy" for m in media}
            new = [m for m in media if not paths[m.hash].exists()]
            encoded = dict(zip((m.hash for m in new), encode(new), strict=True)) if new else {}
            for name, grid in encoded.items():
                # another process may be writing the same one
                partial = paths[name].with_suffix(f".{os.getpid()}.partial")
                with partial.open("wb") as file:
                    np.save(file, grid.cpu().numpy())
                partial.replace(paths[name])
            return [
                encoded[m.hash] if m.hash in encoded else torch.from_numpy(np.load(paths[m.hash])).to(device)
                for m in media
            ]

        return known_or_encoded
