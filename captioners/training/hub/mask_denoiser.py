"""Part `mc-diffusion` of the hub profile: the paper's denoiser (18 blocks, 512 wide) over a pretrained VQ-VAE's
codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig
from captioners.profiles.hub.codes import PictureCodes
from captioners.profiles.store import save_part
from captioners.training import Job
from captioners.training.hub.pairs import Pairs, library_of
from captioners.training.loop import fit
from captioners.training.mask_denoiser import Batch, DenoiserRecipe, Example, denoising_loss, drafts, noisy_batch
from captioners.training.tokenizer import load_tokenizer

RECIPE = DenoiserRecipe(epochs=30, batch=64, lr=3e-4)
SIZES = {"dim": 512, "text_layers": 0, "cross_layers": 18, "heads": 8}  # the paper's


class DenoisingLoss(nn.Module):
    """Method 3's loss as a forward pass."""

    def __init__(self, net: MaskDenoiser, recipe: DenoiserRecipe):
        super().__init__()
        self.net, self.recipe = net, recipe

    def forward(self, batch: Batch) -> Tensor:
        return denoising_loss(self.net, batch, self.recipe)


def train(name: str, job: Job) -> dict[str, Any]:
    pairs, library, tokenizer = Pairs.load(job), library_of(job), load_tokenizer(job)
    codes = PictureCodes(library)
    eyes = {"image_codes": codes.count, "image_cells": codes.side**2, "image_rows": codes.side}
    recipe, config = job.configured(RECIPE, MaskDenoiserConfig(vocab=len(tokenizer), **SIZES, **eyes))
    net = MaskDenoiser(config)
    tag = tokenizer.start("image")

    def batches(epoch: int) -> Iterator[Batch]:
        for media, captions, rng in pairs.batches(epoch, recipe.batch):
            picture_codes = [c.cpu() for c in codes(media)]
            rows = [Example("image", tag, tokenizer.encode(c), s) for c, s in zip(captions, picture_codes, strict=True)]
            yield noisy_batch(net, [r for r in rows if r.ids], rng, recipe)

    def evaluate(model: DenoisingLoss) -> dict[str, float]:
        return pairs.measure(lambda media: drafts(model.net, tokenizer, "image", torch.stack(codes(media))))

    def save(model: DenoisingLoss) -> None:
        save_part(job.out, name, model.net, asdict(config), limit=None)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch)

    learner, steps = DenoisingLoss(net, recipe), pairs.steps(recipe.batch)
    return fit(job, f"hub-{name}", learner, batches, steps, loss, evaluate, recipe, "cider", save=save)[1]
