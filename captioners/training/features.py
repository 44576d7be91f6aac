"""Frozen encoders run once: the features of every training picture, in several augmented views, cached on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from tqdm import tqdm

from captioners.nets.encoders import ImageEncoder, fused_grid, image_pixels
from captioners.profiles.store import file_hash, load_into, read_config
from captioners.training import Job, corpus

BATCH = 16  # the fastest on two cores, by a factor of 1.8 over 64
VIEWS = 3  # the picture, its mirror image, and a random crop


def encode_pictures(
    grid_of: Callable[[Tensor], Tensor], paths: Sequence[Path], view: int = 0, seed: int = 0, quiet: bool = False
) -> Tensor:
    """(n, cells, c) fp16. The last batch is padded, because a traced graph has one size."""
    out = []
    with torch.no_grad(), tqdm(total=len(paths), desc=f"encode view {view}", disable=quiet, mininterval=10) as bar:
        for pixels in _batches(paths, view, seed):
            count = len(pixels)
            padded = torch.cat([pixels, pixels.new_zeros(BATCH - count, *pixels.shape[1:])])
            out.append(grid_of(padded)[:count].half().clone())
            bar.update(count)
    return torch.cat(out)


def image_features(job: Job) -> dict[str, Tensor]:
    """{"train": (views, n, cells, c), "dev": (1, n, cells, c)} of Flickr8k, in the order of `corpus.pictures`."""
    weights = job.find("image-encoder")
    folder = job.cache / f"image-features-{file_hash(weights)}"
    folder.mkdir(parents=True, exist_ok=True)
    grid_of = None
    found = {}
    for split, views in (("train", VIEWS), ("dev", 1)):
        grids = []
        for view in range(views):
            path = folder / f"{split}-{view}.npy"
            if not path.exists():
                grid_of = grid_of or fused_grid(load_into(ImageEncoder(**read_config(weights)), weights), BATCH)
                paths = [p.path for p in corpus.pictures(job.data, split)]
                with path.with_suffix(".partial").open("wb") as file:
                    np.save(file, encode_pictures(grid_of, paths, view, quiet=job.quiet).numpy())
                path.with_suffix(".partial").rename(path)
            grids.append(torch.from_numpy(np.load(path)))
        found[split] = torch.stack(grids)
    return found


def _batches(paths: Sequence[Path], view: int, seed: int) -> Iterator[Tensor]:
    with ThreadPoolExecutor(2) as pool:
        yield from _stacked(pool.map(lambda i: _pixels(paths[i], view, seed + i), range(len(paths))))


def _stacked(rows: Iterator[Tensor]) -> Iterator[Tensor]:
    batch: list[Tensor] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield torch.stack(batch)
            batch = []
    if batch:
        yield torch.stack(batch)


def _pixels(path: Path, view: int, seed: int) -> Tensor:
    """View 0 is what the product sees, 1 its mirror image, the others are random crops with shifted colours."""
    image = torch.from_numpy(np.array(Image.open(path).convert("RGB")))
    if view < 2:
        pixels = image_pixels(image)
        return pixels.flip(-1) if view else pixels
    rng = np.random.default_rng([seed, view])
    h, w = image.shape[:2]
    size = int(min(h, w) * rng.uniform(0.7, 1.0))
    top, left = rng.integers(0, h - size + 1), rng.integers(0, w - size + 1)
    pixels = image_pixels(image[top : top + size, left : left + size])
    pixels = pixels.flip(-1) if rng.random() < 0.5 else pixels
    pixels = v2.functional.adjust_brightness(pixels, float(rng.uniform(0.7, 1.3)))
    return v2.functional.adjust_saturation(pixels, float(rng.uniform(0.6, 1.4)))
