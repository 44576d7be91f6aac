"""Parts `image-vq` and `audio-vq`: the VQ-VAEs whose codes are method 3's picture and sound tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners.nets.vq import VQAutoencoder, VQConfig
from captioners.profiles.store import load_into, read_config, save_part
from captioners.training import Job, Recipe
from captioners.training.features import image_features
from captioners.training.loop import fit
from captioners.training.sound_pairs import sound_pairs

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


def train(name: str, job: Job) -> dict[str, Any]:
    learned, held_out = _grids(name, job)
    recipe, config = job.configured(RECIPES[name], CONFIGS[name])
    model = VQAutoencoder(config)
    size = recipe.batch
    steps = len(learned) // size
    sample = learned[torch.randperm(len(learned))[: max(1, 2 * config.codes // learned.shape[1])]].float()
    with torch.no_grad():  # the first codes are cells, as the encoder sees them before it has learned anything
        cells = model.enter(sample).flatten(0, 1)
        model.codebook.copy_(cells[torch.randint(len(cells), (config.codes,))])

    def batches(epoch: int) -> Iterator[Tensor]:
        order = random.Random(job.seed * 1000 + epoch).sample(range(len(learned)), len(learned))
        for step in range(steps):
            yield learned[order[step * size : (step + 1) * size]].float()

    def loss(model: VQAutoencoder, grid: Tensor) -> Tensor:
        return model.loss(grid.to(model.codebook.device), recipe.commitment)

    def evaluate(model: VQAutoencoder) -> dict[str, float]:
        grid = F.layer_norm(held_out.float(), held_out.shape[-1:])
        reconstruction = torch.cat(
            [model(chunk.float().to(model.codebook.device)).reconstruction.cpu() for chunk in held_out.split(250)]
        )
        lost = F.mse_loss(reconstruction, grid) / (grid - grid.mean((0, 1))).square().mean()
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

    def save(model: VQAutoencoder) -> None:
        save_part(job.out, name, model, asdict(config))

    return fit(job, name, model, batches, steps, loss, evaluate, recipe, "-variance_lost", save=save)[1]


def _grids(name: str, job: Job) -> tuple[Tensor, Tensor]:
    """What is learned from and what is held out, (n, cells, c) each."""
    if name == "image-vq":
        features = image_features(job)
        return features["train"].flatten(0, 1), features["dev"][0]
    sounds = sound_pairs(job)
    return sounds.grids, sounds.dev_grids


def load_vq(job: Job, name: str) -> VQAutoencoder:
    """The trained part, frozen."""
    path = job.find(name)
    return load_into(VQAutoencoder(VQConfig(**read_config(path))), path).eval().requires_grad_(False)


def media_codes(net: VQAutoencoder, grids: Tensor) -> Tensor:
    """The codes (n, cells) of grids (n, cells, c)."""
    device = net.codebook.device
    return torch.cat([net.encode(chunk.float().to(device)).cpu() for chunk in grids.split(512)])
