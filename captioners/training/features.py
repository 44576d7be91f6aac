"""Frozen encoders run once: what training needs of every picture, cached on disk.

Pictures are seen in two views: as the product sees them (a squeezed picture stretched back), and a random part of them
with other proportions and colours. The first, frozen stages of an encoder are run once (`stem_maps`), the taught ones
above them when an encoder is trained, and the finished encoder's grids (`image_features`) are made from the same maps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from tqdm import tqdm

from captioners.nets.encoders import BATCH, ImageEncoder, image_pixels
from captioners.profiles.store import file_hash, load_into, read_config
from captioners.training import Job, corpus
from captioners.training.imagenet import load_imagenet

WINDOW = 256  # pictures that are read before those of one shape are encoded together
VIEWS = {"train": 2, "dev": 1}
STRETCH = 4 / 3  # a squeezed picture of unknown shape was at most so much wider or higher than a square, nearly always


@dataclass(frozen=True)
class Maps:
    """The stem's maps of one view of a split's pictures, of different shapes, one behind the other in one file."""

    values: np.ndarray  # (total,) fp16, on disk
    shapes: np.ndarray  # (n, 3): channels, rows, columns

    def __len__(self) -> int:
        return len(self.shapes)

    def batches(self, size: int, order: Sequence[int] | None = None) -> list[list[int]]:
        """Pictures of one shape, at most `size` of them together."""
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for i in range(len(self)) if order is None else order:
            by_shape.setdefault(tuple(self.shapes[i]), []).append(i)
        return [indices[s : s + size] for indices in by_shape.values() for s in range(0, len(indices), size)]

    def read(self, pictures: Sequence[int]) -> Tensor:
        """(b, c, rows, columns) of pictures of one shape."""
        sizes = self.shapes.prod(1)
        starts = np.concatenate([[0], sizes.cumsum()])
        rows = np.stack([self.values[starts[i] : starts[i] + sizes[i]] for i in pictures])
        return torch.from_numpy(rows).float().view(len(pictures), *self.shapes[pictures[0]].tolist())


def stem_maps(job: Job, backbone: str, size: int) -> dict[str, list[Maps]]:
    """{"train": [view 0, …], "dev": [view 0]} of an ImageNet backbone at a size, in the order of `corpus.pictures`."""
    folder = job.cache / f"stem-maps-{backbone}-{size}"
    folder.mkdir(parents=True, exist_ok=True)
    encoder: ImageEncoder | None = None
    by_split: dict[str, list[Maps]] = {}
    for split, views in VIEWS.items():
        for view in range(views):
            values, shapes = folder / f"{split}-{view}.bin", folder / f"{split}-{view}.npy"
            if not shapes.exists():
                if encoder is None:
                    encoder = ImageEncoder(backbone=backbone, size=size).eval()
                    load_imagenet(encoder.backbone, backbone)
                with torch.autocast("cpu", torch.bfloat16, enabled=job.precision == "bf16"):
                    _write(encoder, corpus.pictures(job.data, split), view, values, shapes, job.quiet)
            by_split.setdefault(split, []).append(Maps(np.memmap(values, np.float16, "r"), np.load(shapes)))
    return by_split


@torch.no_grad()
def _write(
    encoder: ImageEncoder,
    pictures: list[corpus.Picture],
    view: int,
    values: Path,
    shapes: Path,
    quiet: bool,
) -> None:
    """Maps into `values`, their shapes, last of all, into `shapes`."""
    map_shapes = []
    bar = tqdm(total=len(pictures), desc=f"stem, view {view}", disable=quiet, mininterval=10)
    with ThreadPoolExecutor(2) as pool, values.open("wb") as file, bar:
        for start in range(0, len(pictures), WINDOW):
            window = range(start, min(start + WINDOW, len(pictures)))
            pixels = list(pool.map(lambda i: view_pixels(pictures[i], view, i, encoder.size), window))
            stems: dict[int, Tensor] = {}
            for shape in dict.fromkeys(p.shape for p in pixels):
                alike = [i for i, p in enumerate(pixels) if p.shape == shape]
                for at in range(0, len(alike), BATCH):
                    rows = alike[at : at + BATCH]
                    stems |= zip(rows, encoder.stem(torch.stack([pixels[i] for i in rows])).half(), strict=True)
            for i in range(len(pixels)):
                file.write(stems[i].contiguous().numpy().tobytes())
                map_shapes.append(stems[i].shape)
            bar.update(len(pixels))
    np.save(shapes, np.array(map_shapes))


def view_pixels(picture: corpus.Picture, view: int, seed: int, size: int) -> Tensor:
    """View 0 is what the product sees; view 1 a random part, stretched and mirrored at random, with shifted colours."""
    image = torch.from_numpy(np.array(Image.open(picture.path).convert("RGB")))
    rng = np.random.default_rng([seed, view])
    h, w = image.shape[:2]
    ratio = w / h
    if picture.size:
        ratio = picture.size[0] / picture.size[1]
    elif picture.squeezed:
        ratio = float(STRETCH ** rng.uniform(-1, 1))
    if view == 0:
        return image_pixels(image, ratio, size)
    share = rng.uniform(0.65, 1.0, size=2)  # of height and width
    rows, columns = (np.array([h, w]) * share).astype(int)
    top, left = rng.integers(0, h - rows + 1), rng.integers(0, w - columns + 1)
    ratio *= float(1.15 ** rng.uniform(-1, 1)) * columns * h / (rows * w)
    pixels = image_pixels(image[top : top + rows, left : left + columns], ratio, size)
    pixels = pixels.flip(-1) if rng.random() < 0.5 else pixels
    pixels = v2.functional.adjust_brightness(pixels, float(rng.uniform(0.7, 1.3)))
    return v2.functional.adjust_saturation(pixels, float(rng.uniform(0.6, 1.4)))


def image_features(job: Job, part: str = "image-encoder", views: int = VIEWS["train"]) -> dict[str, Tensor]:
    """{"train": (views, n, cells, c), "dev": (1, n, cells, c)} fp16 of all pictures, in the order of
    `corpus.pictures`.
    """
    weights = job.find(part)
    folder = job.cache / f"image-features-{file_hash(weights)}"
    folder.mkdir(parents=True, exist_ok=True)
    config, encoder = read_config(weights), None
    by_split = {}
    for split, most in VIEWS.items():
        grids = []
        for view in range(min(views, most)):
            path = folder / f"{split}-{view}.npy"
            if not path.exists():
                encoder = encoder or load_into(ImageEncoder(**config), weights).eval()
                maps = stem_maps(job, config["backbone"], encoder.size)[split][view]
                with path.with_suffix(".partial").open("wb") as file:
                    np.save(file, torch.cat([*upper_grids(encoder, maps, job.quiet)]).numpy())
                path.with_suffix(".partial").rename(path)
            grids.append(torch.from_numpy(np.load(path)))
        by_split[split] = torch.stack(grids)
    return by_split


@torch.no_grad()
def upper_grids(encoder: ImageEncoder, maps: Maps, quiet: bool = False) -> Iterator[Tensor]:
    """The grids (1, cells, c) fp16 of a view, in its order, through the encoder's upper stages and projection."""
    grids: dict[int, Tensor] = {}
    for indices in tqdm(maps.batches(32), desc="features", disable=quiet, mininterval=10):
        grids |= zip(indices, encoder.features(encoder.upper(maps.read(indices))).grid.half(), strict=True)
    yield from (grids[i][None] for i in range(len(maps)))


def random_views(features: Tensor, pictures: list[int], rng: random.Random) -> Tensor:
    """(b, cells, c): a random view of each picture, mirrored half of the time.

    features: (views, n, cells, c), cells in a square.
    """
    grids = features[[rng.randrange(len(features)) for _ in pictures], pictures].float()
    side = round(grids.shape[1] ** 0.5)
    mirrored = grids.unflatten(1, (side, side)).flip(2).flatten(1, 2)
    return torch.where(torch.tensor([rng.random() < 0.5 for _ in pictures])[:, None, None], mirrored, grids)
