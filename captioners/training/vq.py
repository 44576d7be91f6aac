"""Parts `image-vq` and `audio-vq`: the VQ-VAEs whose codes are method 3's picture and sound tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners.nets.pixel_vq import CELL, PixelVQAutoencoder
from captioners.nets.vq import Quantiser, VQAutoencoder, VQConfig
from captioners.profiles.store import load_into, read_config, save_part
from captioners.training import Job, Recipe
from captioners.training.features import VIEWS, image_features
from captioners.training.loop import fit
from captioners.training.small_pictures import small_pictures
from captioners.training.sound_pairs import sound_pairs
from captioners.types import CaptionLabError

MEASURED = 100  # batches over which the use of the codebook is counted


@dataclass(frozen=True)
class VQRecipe(Recipe):
    """How the autoencoder learns."""

    commitment: float = 0.25  # weight of the encoder's distance from its codes


RECIPES = {
    "image-vq": VQRecipe(epochs=8, batch=64, lr=1e-3, ema=0.99),
    "audio-vq": VQRecipe(epochs=6, batch=64, lr=1e-3, ema=0.99),
}
CONFIGS = {
    "image-vq": VQConfig(codes=2048, dim=64, hidden=384, rows=7),
    "audio-vq": VQConfig(codes=512, dim=64, hidden=384, rows=2),
}
# the net over pixels begins with nothing: its first codes are soon far from every cell, and have to be restarted early
PIXELS = VQConfig(codes=2048, dim=64, decay=0.95, dead=0.3)


def train(name: str, job: Job) -> dict[str, Any]:
    recipe, config = configured(name, job)
    learned, held_out = _media(name, job, config)
    model = build(config)
    size = recipe.batch
    steps = len(learned) // size
    with torch.no_grad():  # the first codes are cells, as the encoder sees them before it has learned anything
        cells_each = model.enter(learned[:1].float()).shape[1]
        sample = learned[torch.randperm(len(learned))[: max(1, 2 * config.codes // cells_each)]].float()
        cells = model.enter(sample).flatten(0, 1)
        model.codebook.copy_(cells[torch.randint(len(cells), (config.codes,))])

    def batches(epoch: int) -> Iterator[Tensor]:
        order = random.Random(job.seed * 1000 + epoch).sample(range(len(learned)), len(learned))
        for step in range(steps):
            yield learned[order[step * size : (step + 1) * size]].float()

    def loss(model: Quantiser, media: Tensor) -> Tensor:
        return model.loss(media.to(model.codebook.device), recipe.commitment)

    def evaluate(model: Quantiser) -> dict[str, float]:
        truth = model.target(held_out.float())
        reconstruction = torch.cat(
            [model(chunk.float().to(model.codebook.device)).reconstruction.cpu() for chunk in held_out.split(250)]
        )
        lost = F.mse_loss(reconstruction, truth) / (truth - truth.mean((0, 1))).square().mean()
        counts = (
            media_codes(model, learned[:: max(1, len(learned) // (MEASURED * size))])
            .flatten()
            .bincount(minlength=config.codes)
            .float()
        )
        share = counts / counts.sum()
        used = (counts > 0).float().mean().item()
        return {
            "variance_lost": lost.item(),
            "codes_used": used,
            "code_perplexity": torch.special.entr(share).sum().exp().item(),
        }

    def save(model: Quantiser) -> None:
        save_part(job.out, name, model, asdict(config))

    return fit(job, name, model, batches, steps, loss, evaluate, recipe, "-variance_lost", save=save)[1]


def configured(name: str, job: Job) -> tuple[VQRecipe, VQConfig]:
    """Recipe and net as asked for; pixels have constants of their own, and make the rows."""
    recipe, config = job.configured(RECIPES[name], CONFIGS[name])
    if not config.pixels:
        return recipe, config
    if name != "image-vq":
        raise CaptionLabError("Only pictures have pixels: leave `--set pixels` to image-vq.")
    if config.pixels < CELL or config.pixels % CELL:
        raise CaptionLabError(f"pixels={config.pixels} is not possible: give a multiple of {CELL}, like 112.")
    recipe, config = job.configured(recipe, PIXELS)
    return recipe, replace(config, rows=config.pixels // CELL)


def build(config: VQConfig) -> Quantiser:
    """The autoencoder over pixels or over features, as it is configured."""
    return PixelVQAutoencoder(config) if config.pixels else VQAutoencoder(config)


def _media(name: str, job: Job, config: VQConfig) -> tuple[Tensor, Tensor]:
    """What is learned from and what is held out: grids (n, cells, c), or squared pictures (n, 3, side, side)."""
    if config.pixels:
        return small_pictures(job, "train", config.pixels), small_pictures(job, "dev", config.pixels)
    if name == "image-vq":
        features = image_features(job)
        return features["train"].flatten(0, 1), features["dev"][0]
    sounds = sound_pairs(job)
    return sounds.grids, sounds.dev_grids


def load_vq(job: Job, name: str) -> Quantiser:
    """The trained part, frozen."""
    path = job.find(name)
    return load_into(build(VQConfig(**read_config(path))), path).eval().requires_grad_(False)


def media_codes(net: Quantiser, media: Tensor) -> Tensor:
    """The codes (n, cells) of what the net reads: grids (n, cells, c), or squared pictures (n, 3, side, side)."""
    device = net.codebook.device
    return torch.cat([net.encode(chunk.float().to(device)).cpu() for chunk in media.split(512)])


def picture_codes(job: Job, net: Quantiser) -> dict[str, Tensor]:
    """{"train": (views, n, cells), "dev": (1, n, cells)} of all pictures; pixels are seen in one view."""
    if net.config.pixels:
        return {split: media_codes(net, small_pictures(job, split, net.config.pixels))[None] for split in VIEWS}
    return {
        split: media_codes(net, grids.flatten(0, 1)).unflatten(0, grids.shape[:2])
        for split, grids in image_features(job).items()
    }
