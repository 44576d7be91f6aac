"""Part `prefix-diffusion` of the hub profile: continuous diffusion behind a prefix made of CLIP's picture vector (arXiv
2309.04965).

The ranker's CLIP, never the judge's. Embeddings of 48, five prefix vectors, captions of 24 and the truncated linear
schedule of T = 1000 are the paper's; the body has BERT-base's size. The loss is the embedded part's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.nets.rounding import TokenKinds
from captioners.profiles.hub.matchers import ClipMatcher
from captioners.profiles.store import save_part
from captioners.text import CaptionTokenizer
from captioners.training import Job
from captioners.training.hub.pairs import Pairs, library_of
from captioners.training.loop import fit
from captioners.training.prefix_denoiser import Examples, PrefixRecipe, prefix_loss
from captioners.training.tokenizer import load_tokenizer
from captioners.types import CaptionLabError, Media

RECIPE = PrefixRecipe(epochs=30, batch=64, lr=1e-4, removed=0.1)
SIZES = {
    "embed": 48,
    "dim": 768,
    "layers": 12,
    "heads": 12,
    "prefix": 5,
    "hidden": 768,
    "canvas": 25,
    "schedule": "truncated-linear",
}

Batch = tuple[Tensor, Tensor, Tensor, Tensor]  # ids (b, t) padded with ends, pooled (b, 1, c), keep (b,), words (b,)


class PrefixLoss(nn.Module):
    """The loss as a module: what accelerate shares out between processes is a call."""

    def __init__(self, net: PrefixDenoiser, tag: int, recipe: PrefixRecipe):
        super().__init__()
        self.net, self.tag, self.recipe = net, tag, recipe

    def forward(self, ids: Tensor, pooled: Tensor, keep: Tensor, words: Tensor) -> Tensor:
        return prefix_loss(
            self.net, Examples("image", ids, torch.full_like(words, self.tag), pooled, keep, words), self.recipe
        )


def train(name: str, job: Job) -> dict[str, Any]:
    pairs, library, tokenizer = Pairs.load(job), library_of(job), load_tokenizer(job)
    clip, kinds = ClipMatcher("image-ranker", library), TokenKinds.of(tokenizer)
    width = clip.embed_text(["a"]).shape[-1]
    recipe, config = job.configured(RECIPE, PrefixDenoiserConfig(vocab=len(tokenizer), image_dim=width, **SIZES))
    if config.regions != 1:
        raise CaptionLabError(
            f"regions={config.regions} is not possible: CLIP gives one vector of a picture, so leave it at 1."
        )
    learner = PrefixLoss(PrefixDenoiser(config), tokenizer.start("image"), recipe)

    def batch(media: list[Media], captions: list[str], keep: list[bool]) -> Batch:
        ids = padded(tokenizer, captions, config.canvas)
        return ids, clip.embed_media(media)[:, None], torch.tensor(keep), kinds.words(ids).clamp(1, config.words)

    def batches(epoch: int) -> Iterator[Batch]:
        for media, captions, rng in pairs.batches(epoch, recipe.batch):
            yield batch(media, captions, [rng.random() >= recipe.removed for _ in captions])

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(*(x.to(library.device) for x in batch))

    def evaluate(model: PrefixLoss) -> dict[str, float]:
        """The loss on the development pictures, always with the same noise."""
        values = []
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for media, captions in pairs.held_out(recipe.batch):
                values.append(loss(model, batch(media, captions, [True] * len(captions))).item())
        return {"dev_loss": sum(values) / len(values)}

    def save(model: PrefixLoss) -> None:
        save_part(job.out, name, model.net, asdict(config), limit=None)

    return fit(
        job, f"hub-{name}", learner, batches, pairs.steps(recipe.batch), loss, evaluate, recipe, "-dev_loss", save=save
    )[1]


def padded(tokenizer: CaptionTokenizer, captions: list[str], canvas: int) -> Tensor:
    """(b, canvas): captions cut to fit, with ends behind them."""
    rows = [tokenizer.encode(c)[: canvas - 1] for c in captions]
    return torch.tensor([row + [tokenizer.eos] * (canvas - len(row)) for row in rows])
