"""Part `image-painter`: a decoder from the codes of `image-vq` to small pictures. Captions do not depend on it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners.nets.painter import CodePainter, PainterConfig
from captioners.profiles.store import save_part
from captioners.training import Job, Recipe
from captioners.training.features import image_features
from captioners.training.loop import fit
from captioners.training.small_pictures import small_pictures
from captioners.training.vq import load_vq, media_codes
from captioners.types import CaptionLabError

RECIPE = Recipe(epochs=4, batch=64, lr=2e-3, weight_decay=0.01, ema=0.995)


def train(name: str, job: Job) -> dict[str, Any]:
    vq = load_vq(job, "image-vq")
    if vq.config.pixels:
        raise CaptionLabError(
            "The painter shows codes of the encoder's features, and this image-vq has codes of pixels and paints them "
            "itself: train image-vq without `--set pixels`."
        )
    recipe, config = job.configured(RECIPE, PainterConfig(codes=vq.config.codes, rows=vq.config.rows))
    codes = {split: media_codes(vq, grids[0]) for split, grids in image_features(job).items()}
    pictures = {split: small_pictures(job, split, config.side) for split in ("train", "dev")}
    steps = len(pictures["train"]) // recipe.batch
    mean = pictures["train"].float().div(255).mean((0, 2, 3), keepdim=True)  # of each colour

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = random.Random(job.seed * 1000 + epoch).sample(range(len(pictures["train"])), len(pictures["train"]))
        for step in range(steps):
            rows = order[step * recipe.batch : (step + 1) * recipe.batch]
            yield codes["train"][rows], pictures["train"][rows].float() / 255

    def loss(model: CodePainter, batch: tuple[Tensor, Tensor]) -> Tensor:
        device = model.cells.weight.device
        return F.mse_loss(model(batch[0].to(device)).float(), batch[1].to(device))

    def evaluate(model: CodePainter) -> dict[str, float]:
        truth = pictures["dev"].float() / 255
        painted = torch.cat([model(rows.to(model.cells.weight.device)).cpu() for rows in codes["dev"].split(250)])
        lost = F.mse_loss(painted, truth) / (truth - mean).square().mean()
        return {"pixel_variance_lost": lost.item()}

    def save(model: CodePainter) -> None:
        save_part(job.out, name, model, asdict(config))

    return fit(
        job, name, CodePainter(config), batches, steps, loss, evaluate, recipe, "-pixel_variance_lost", save=save
    )[1]
