"""Part `mc-diffusion`: the denoiser of method 3, for pictures and sound, trained with the masked condition strategy
(MCS).

It starts from method 1's decoder and learns people's captions alone, and text corpora as examples without a condition.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig, warm_start
from captioners.nets.vq import Quantiser
from captioners.profiles.store import load_into, read_config, save_part
from captioners.text import CaptionTokenizer
from captioners.training import Job, Recipe, corpus
from captioners.training.captioner import FOLLOWED, bucketed, caption_figures, mean_figures, sound_figures
from captioners.training.loop import fit
from captioners.training.sound_pairs import sound_pairs
from captioners.training.tokenizer import load_tokenizer
from captioners.training.vq import load_vq, media_codes, picture_codes

CHECK_STEPS = 10
CHECKED_SOUNDS = 4  # every fourth held-out clip


@dataclass(frozen=True)
class DenoiserRecipe(Recipe):
    """How the denoiser learns. An epoch has some captions of every picture.

    The paper's masking is masked = 0.1, removed = 0, rate = 0.1 and its auxiliary weight 5e-4 beside a bound of weight
    1.
    """

    per_picture: int = 2  # captions of each picture in an epoch
    sounds: int = 5000  # further examples of an epoch
    texts: int = 2000  # and captions without media
    masked: float = 0.3  # share of examples with a masked condition
    removed: float = 0.35  # share of those whose condition is masked whole
    rate: float = (
        0.0  # with which each token of the others is masked; 0: a rate of its own for each example, from U(0, 1)
    )
    auxiliary: float = 1.0  # weight of −log p(x0 | x_t, y)
    variational: float = 0.1  # weight of the bound T · L_{t−1}
    bounded: float = 0.15  # share of positions that the bound is computed on: it costs as much as the rest of the loss
    # share of the positions without noise that are learned from, for all of them: what is plain to see teaches little
    kept: float = 0.2
    length: float = 0.1  # weight of the length's loss


RECIPE = DenoiserRecipe(epochs=9, batch=64, lr=8e-4)


@dataclass(frozen=True)
class Example:
    """One caption with its codes."""

    kind: str
    start: int
    ids: list[int]
    codes: Tensor | None  # (cells,), None for a text without media


@dataclass(frozen=True)
class Batch:
    """Captions of one modality."""

    kind: str
    start: Tensor  # (b,)
    x0: Tensor  # (b, n), padded with 0
    lengths: Tensor  # (b,)
    t: Tensor  # (b,)
    codes: Tensor  # (b, cells), [MASK]s put in


def train(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    vq, decoder = {kind: load_vq(job, f"{kind}-vq") for kind in ("image", "audio")}, load_decoder(job)
    shown = picture_codes(job, vq["image"])
    config = MaskDenoiserConfig(
        **{
            k: getattr(decoder.config, k)
            for k in ("vocab", "dim", "text_layers", "cross_layers", "heads", "max_tokens")
        },
        **{f"{kind}_codes": net.config.codes for kind, net in vq.items()},
        **{f"{kind}_rows": net.config.rows for kind, net in vq.items()},
        image_cells=shown["train"].shape[-1],
        audio_cells=decoder.config.audio_cells,
        image_pixels=vq["image"].config.pixels,
    )
    recipe, config = job.configured(RECIPE, config)
    model = MaskDenoiser(config)
    warm_start(model, decoder, code_embeddings(vq, decoder), tokenizer.mask, tokenizer.eos)
    sounds = sound_pairs(job)
    heard, heard_dev = (media_codes(vq["audio"], grids) for grids in (sounds.grids, sounds.dev_grids))
    pictures = {s: corpus.pictures(job.data, s) for s in ("train", "dev")}
    rows = [tokenizer.encode_all(p.captions) for p in pictures["train"]]
    texts = [(text, row) for text in corpus.texts(job.data).values() for row in tokenizer.encode_all(text.half(0))]
    steps = (recipe.per_picture * len(rows) + recipe.sounds + recipe.texts) // recipe.batch - 4

    def examples(rng: random.Random) -> Iterator[Example]:
        tag = tokenizer.start("image")
        for i, picture_rows in enumerate(rows):
            for row in rng.sample(picture_rows, recipe.per_picture):
                yield Example("image", tag, row, shown["train"][rng.randrange(len(shown["train"])), i])
        for i in rng.choices(range(len(heard)), k=recipe.sounds):
            yield Example("audio", tokenizer.start("audio"), tokenizer.encode(sounds.caption(i, rng)), heard[i])
        for text, row in rng.sample(texts, min(recipe.texts, len(texts))):
            yield Example(text.of, tokenizer.tags[text.name], row, None)

    def batches(epoch: int) -> Iterator[Batch]:
        rng = random.Random(job.seed * 1000 + epoch)
        by_kind: dict[str, list[tuple[list[int], Example]]] = {}
        for example in examples(rng):
            if example.ids:
                by_kind.setdefault(example.kind, []).append((example.ids, example))
        for _, batch in bucketed(by_kind, recipe.batch, rng):
            yield noisy_batch(model, [example for _, example in batch], rng, recipe)

    def loss(model: MaskDenoiser, batch: Batch) -> Tensor:
        return denoising_loss(model, batch, recipe)

    def evaluate(model: MaskDenoiser) -> dict[str, float]:
        figures = {}
        for source in corpus.picture_sets(job.data):
            indices = [i for i, p in enumerate(pictures["dev"]) if p.source == source][:FOLLOWED]
            captions = drafts(model, tokenizer, "image", shown["dev"][0][indices])
            figures |= caption_figures(source, captions, [pictures["dev"][i] for i in indices])
        captions = drafts(model, tokenizer, "audio", heard_dev[::CHECKED_SOUNDS])
        return mean_figures(figures) | figures | sound_figures(sounds, captions, CHECKED_SOUNDS)

    def save(model: MaskDenoiser) -> None:
        save_part(job.out, name, model, asdict(config))

    return fit(job, name, model, batches, steps, loss, evaluate, recipe, "cider", save=save)[1]


def load_decoder(job: Job) -> CaptionDecoder:
    """Method 1's decoder, frozen."""
    path = job.find("cfg")
    return load_into(CaptionDecoder(CaptionerConfig(**read_config(path))), path).eval().requires_grad_(False)


@torch.no_grad()
def code_embeddings(vq: dict[str, Quantiser], decoder: CaptionDecoder) -> dict[str, Tensor]:
    """{kind: (codes, dim)}: what the decoder makes of each code's features, as they come back where every cell has
    that code. Codes of pixels have none: they get features at random.
    """
    by_kind = {}
    for kind, net in vq.items():
        if net.config.pixels:
            by_kind[kind] = decoder.enter[kind](random_features(net.codebook, decoder.config.media_dim))
            continue
        cells = getattr(decoder.config, f"{kind}_cells")
        codes = torch.arange(net.config.codes)[:, None].expand(-1, cells)
        by_kind[kind] = torch.cat([decoder.enter[kind](net.decode(chunk)).mean(1) for chunk in codes.split(128)])
    return by_kind


def random_features(codebook: Tensor, width: int) -> Tensor:
    """Codes (n, dim) → (n, width): turned at random, so that codes that are alike stay alike."""
    centred = codebook - codebook.mean(0)
    return centred @ torch.randn(codebook.shape[1], width)


def denoising_loss(model: MaskDenoiser, batch: Batch, recipe: DenoiserRecipe = RECIPE) -> Tensor:
    """Auxiliary cross-entropy of x0, the variational bound and the length's, on one batch with its times and noise."""
    device = model.positions.device
    start, x0, lengths, t = (x.to(device) for x in (batch.start, batch.x0, batch.lengths, batch.t))
    condition = model.condition({batch.kind: batch.codes.to(device)}, torch.arange(len(x0), device=device))
    x_t = model.diffusion.q_sample(x0, t)
    present = torch.arange(x0.shape[1], device=device) < lengths[:, None]
    noisy = x_t != x0
    scored = present & (noisy | (torch.rand(x0.shape, device=device) < recipe.kept))
    log_x0 = model.words(model.vectors(start, x_t, t, condition, lengths)[scored]).log_softmax(-1)  # (m, vocab)
    weights = torch.where(noisy, 1.0, 1 / recipe.kept)[scored] / present.sum()
    auxiliary = -(weights * log_x0.gather(-1, x0[scored][:, None])[:, 0]).sum()
    bounded = slice(0, round(recipe.bounded * len(log_x0)))  # the first rows: as random as any
    at = [x[scored][bounded, None] for x in (x0, x_t)]
    bound = model.diffusion.bound(log_x0[bounded, None], *at, t[:, None].expand_as(x0)[scored][bounded])[:, 0]
    bound = (weights[bounded] * bound).sum() / recipe.bounded
    length = F.cross_entropy(model.length_logits(start, condition), lengths - 1)
    return recipe.auxiliary * auxiliary + recipe.variational * model.config.steps * bound + recipe.length * length


# -------------------------------------------------------------------------------------------------------- batches


def noisy_batch(
    model: MaskDenoiser, examples: list[Example], rng: random.Random, recipe: DenoiserRecipe = RECIPE
) -> Batch:
    """Captions of one modality at times of their own, with conditions masked by the recipe."""
    kind, longest, source = examples[0].kind, model.config.longest, torch.Generator().manual_seed(rng.getrandbits(32))
    lengths = torch.tensor([min(len(e.ids), longest) for e in examples])
    x0 = torch.zeros(len(examples), int(lengths.max()), dtype=torch.long)
    for row, e in enumerate(examples):
        x0[row, : lengths[row]] = torch.tensor(e.ids[:longest])
    cells = len(model.cells[kind])
    codes = torch.stack([torch.zeros(cells, dtype=torch.long) if e.codes is None else e.codes for e in examples])
    rates = [1.0 if e.codes is None else masking_rate(recipe, rng) for e in examples]
    hidden = torch.rand(codes.shape, generator=source) < torch.tensor(rates)[:, None]
    # times are spread evenly over a batch: less variance than independent ones
    t = ((torch.arange(len(examples)) + rng.random()) / len(examples) * model.config.steps).long()[
        torch.randperm(len(examples), generator=source)
    ] + 1
    return Batch(kind, torch.tensor([e.start for e in examples]), x0, lengths, t, model.masked(kind, codes, hidden))


def masking_rate(recipe: DenoiserRecipe, rng: random.Random) -> float:
    """The share of an example's condition that is masked: mostly nothing, sometimes all of it, sometimes a part."""
    drawn = rng.random()
    if drawn >= recipe.masked:
        return 0.0
    return 1.0 if drawn < recipe.masked * recipe.removed else recipe.rate or rng.random()


@torch.no_grad()
def drafts(model: MaskDenoiser, tokenizer: CaptionTokenizer, kind: str, codes: Tensor) -> list[str]:
    """Unguided captions in a few steps, to follow a training: at each the surest words are uncovered."""
    texts = []
    specials = list(tokenizer.special_ids)
    for chunk in codes.to(model.positions.device).split(125):
        condition = model.condition({kind: chunk}, torch.arange(len(chunk), device=chunk.device))
        start = torch.full((len(chunk),), tokenizer.start(kind), device=chunk.device)
        lengths = model.length_logits(start, condition).argmax(-1) + 1
        x = torch.full((len(chunk), int(lengths.max())), model.mask, device=chunk.device)
        present = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        for k in range(CHECK_STEPS, 0, -1):
            t = torch.full_like(start, round(k * model.config.steps / CHECK_STEPS))
            logits = model(start, x, t, condition, lengths)
            logits[..., specials] = -torch.inf
            sure, words = logits.softmax(-1).max(-1)
            hidden = x == model.mask
            sure = torch.where(hidden & present, sure, -1.0)
            still_hidden = (lengths * (k - 1) / CHECK_STEPS).floor().long()
            rank = sure.argsort(1, descending=True).argsort(1)
            x = torch.where(hidden & present & (rank < ((hidden & present).sum(1) - still_hidden)[:, None]), words, x)
        texts += [tokenizer.decode(row[:n]) for row, n in zip(x.tolist(), lengths.tolist(), strict=True)]
    return texts
