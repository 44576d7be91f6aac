"""Frozen encoders run once: the features of every training picture, in several augmented views, cached on disk."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from tqdm import tqdm

from captioners.nets.encoders import SEEN, ImageEncoder, image_pixels, picture_grids, square_pixels
from captioners.profiles.store import file_hash, load_into, read_config
from captioners.training import Job, corpus

WINDOW = 128  # pictures that are read before those of one shape are encoded together
VIEWS = 3  # the picture, its mirror image, and a random square


def encode_pictures(encoder: ImageEncoder, paths: Sequence[Path], view: int = 0, seed: int = 0, quiet: bool = False) -> Tensor:
    """(n, cells, c) fp16."""
    out = []
    with ThreadPoolExecutor(2) as pool, tqdm(total=len(paths), desc=f"encode view {view}", disable=quiet, mininterval=10) as bar:
        for start in range(0, len(paths), WINDOW):
            some = range(start, min(start + WINDOW, len(paths)))
            pixels = list(pool.map(lambda i: _pixels(paths[i], view, seed + i), some))
            out.append(picture_grids(encoder, pixels).half())
            bar.update(len(some))
    return torch.cat(out)


def image_features(job: Job) -> dict[str, Tensor]:
    """{"train": (views, n, cells, c), "dev": (1, n, cells, c)} of Flickr8k, in the order of `corpus.pictures`."""
    weights = job.find("image-encoder")
    folder = job.cache / f"image-features-{SEEN['image']}-{file_hash(weights)}"
    folder.mkdir(parents=True, exist_ok=True)
    encoder = None
    found = {}
    for split, views in (("train", VIEWS), ("dev", 1)):
        grids = []
        for view in range(views):
            path = folder / f"{split}-{view}.npy"
            if not path.exists():
                encoder = encoder or load_into(ImageEncoder(**read_config(weights)), weights).eval()
                paths = [p.path for p in corpus.pictures(job.data, split)]
                with path.with_suffix(".partial").open("wb") as file:
                    np.save(file, encode_pictures(encoder, paths, view, quiet=job.quiet).numpy())
                path.with_suffix(".partial").rename(path)
            grids.append(torch.from_numpy(np.load(path)))
        found[split] = torch.stack(grids)
    return found


def _pixels(path: Path, view: int, seed: int) -> Tensor:
    """View 0 is what the product sees, 1 its mirror image, the others are random squares with shifted colours."""
    image = torch.from_numpy(np.array(Image.open(path).convert("RGB")))
    if view < 2:
        pixels = image_pixels(image)
        return pixels.flip(-1) if view else pixels
    rng = np.random.default_rng([seed, view])
    h, w = image.shape[:2]
    size = int(min(h, w) * rng.uniform(0.7, 1.0))
    top, left = rng.integers(0, h - size + 1), rng.integers(0, w - size + 1)
    pixels = square_pixels(image[top : top + size, left : left + size])
    pixels = pixels.flip(-1) if rng.random() < 0.5 else pixels
    pixels = v2.functional.adjust_brightness(pixels, float(rng.uniform(0.7, 1.3)))
    return v2.functional.adjust_saturation(pixels, float(rng.uniform(0.6, 1.4)))
