"""Part `mc-diffusion`: the denoiser of method 3, for pictures and sound, trained with the masked condition strategy.

It starts from method 1's decoder. A part of the captions it learns are that decoder's own, guided, one for each view of a picture: several
people's captions of one picture disagree at every position, and a model that fills many positions at once would mix them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners.metrics.base import Rows
from captioners.metrics.ngram import cider
from captioners.nets.captioner import CaptionDecoder
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig, warm_start
from captioners.profiles.store import file_hash, save_part
from captioners.sound_classes import named
from captioners.text import CaptionTokenizer
from captioners.training import Job, corpus
from captioners.training.captioner import greedy
from captioners.training.features import image_features
from captioners.training.loop import fit
from captioners.training.sound_pairs import sound_pairs
from captioners.training.tokenizer import load_tokenizer
from captioners.training.vq import load_decoder, load_vq, media_codes

EPOCHS, BATCH, LR = 8, 64, 8e-4
PER_PICTURE = 2  # captions of each picture in one epoch
VIEWS = 3  # of each picture: as it is, its mirror image, and a random crop
TAUGHT = 0.5  # share of picture captions that are the guided teacher's
TEACHER_SCALE = 1.5
MASKED = 0.3  # share of examples with a masked condition (the paper: 0.1, each token with 0.1)
REMOVED = 0.35  # share of those whose condition is masked whole; the others have a rate of their own from U(0, 1)
SOUNDS, TEXTS = 2000, 1500  # examples an epoch beside the 12,000 of pictures; texts have no media
TEXT_DOMAINS = {"multi30k": "image", "coco": "image", "audiocaps": "audio", "clotho": "audio"}  # which codes they do not see
VARIATIONAL = 0.1  # weight of the bound T · L_{t−1}, beside the auxiliary loss's 1
KEPT = 0.2  # share of the positions without noise that are learned from, for five: what is plain to see teaches little
BOUNDED = 0.25  # share of positions that the bound is computed on: it costs as much as the rest of the loss
LENGTH = 0.1
CHECK_STEPS = 10


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
    features, sounds = image_features(job), sound_pairs(job)
    features["train"] = features["train"][:VIEWS]
    vq, decoder = {kind: load_vq(job, f"{kind}-vq") for kind in ("image", "audio")}, load_decoder(job)
    shown = {split: media_codes(vq["image"], grids.flatten(0, 1)).unflatten(0, grids.shape[:2]) for split, grids in features.items()}
    heard, heard_dev = (media_codes(vq["audio"], grids) for grids in (sounds.grids, sounds.dev_grids))
    config = MaskDenoiserConfig(
        **{k: getattr(decoder.config, k) for k in ("vocab", "dim", "text_layers", "cross_layers", "heads", "max_tokens")},
        **{f"{kind}_codes": net.config.codes for kind, net in vq.items()},
        **{f"{kind}_cells": getattr(decoder.config, f"{kind}_cells") for kind in ("image", "audio")},
    )
    config = job.sized(config)
    model = MaskDenoiser(config)
    warm_start(model, decoder, {kind: net.codebook for kind, net in vq.items()}, tokenizer.mask, tokenizer.eos)

    pictures = {s: corpus.pictures(job.data, s) for s in ("train", "dev")}
    rows = [tokenizer.encode_all(p.captions) for p in pictures["train"]]
    taught = [tokenizer.encode_all(view) for view in guided_captions(job, decoder, tokenizer, features["train"])]
    texts = [(d, row) for d in TEXT_DOMAINS for row in tokenizer.encode_all(corpus.half(job.data, d, 0))]
    del features
    steps = (PER_PICTURE * len(rows) + SOUNDS + TEXTS) // BATCH - 4

    def examples(rng: random.Random) -> Iterator[Example]:
        tag = tokenizer.start("image")
        for i, some in enumerate(rows):
            for row in rng.sample(some, PER_PICTURE):
                view = rng.randrange(len(taught))
                yield Example("image", tag, taught[view][i] if rng.random() < TAUGHT else row, shown["train"][view, i])
        for i in rng.choices(range(len(heard)), k=SOUNDS):
            yield Example("audio", tokenizer.start("audio"), tokenizer.encode(sounds.caption(i, rng)), heard[i])
        for domain, row in rng.sample(texts, TEXTS):
            yield Example(TEXT_DOMAINS[domain], tokenizer.tags[domain], row, None)

    def batches(epoch: int) -> Iterator[Batch]:
        rng = random.Random(job.seed * 1000 + epoch)
        for some in bucketed([e for e in examples(rng) if e.ids], rng)[:steps]:
            yield noisy_batch(model, some, rng)

    dev = slice(0, 250)  # enough to follow a training; the whole split is for `evaluate`
    references = [list(p.captions) for p in pictures["dev"][dev]]

    def evaluate(model: MaskDenoiser) -> dict[str, float]:
        texts = drafts(model, tokenizer, "image", shown["dev"][0][dev])
        heard_texts = drafts(model, tokenizer, "audio", heard_dev[::4])
        right = [named(c[0], text) for c, text in zip(sounds.dev_heard[::4], heard_texts, strict=True)]
        (score,) = cider(Rows([p.path.name for p in pictures["dev"][dev]], texts, references))
        if not job.quiet:
            print(*texts[:12], sep="\n")
        return {"cider": score.mean, "distinct": len(set(texts)) / len(texts), "sounds_named": sum(right) / len(right)}

    def save(model: MaskDenoiser) -> None:
        save_part(job.out, name, model, asdict(config))

    _, report = fit(job, name, model, batches, steps, denoising_loss, evaluate, EPOCHS, LR, "cider", save=save)
    return report


def denoising_loss(model: MaskDenoiser, batch: Batch) -> Tensor:
    """Auxiliary cross-entropy of x0, the variational bound and the length's, on one batch with its times and noise."""
    device = model.positions.device
    start, x0, lengths, t = (x.to(device) for x in (batch.start, batch.x0, batch.lengths, batch.t))
    condition = model.condition({batch.kind: batch.codes.to(device)}, torch.arange(len(x0), device=device))
    x_t = model.diffusion.q_sample(x0, t)
    there = torch.arange(x0.shape[1], device=device) < lengths[:, None]
    noisy = x_t != x0
    some = there & (noisy | (torch.rand(x0.shape, device=device) < KEPT))
    log_x0 = model.words(model.vectors(start, x_t, t, condition, lengths)[some]).log_softmax(-1)  # (m, vocab)
    weights = torch.where(noisy, 1.0, 1 / KEPT)[some] / there.sum()
    auxiliary = -(weights * log_x0.gather(-1, x0[some][:, None])[:, 0]).sum()
    few = slice(0, round(BOUNDED * len(log_x0)))  # the first rows: as random as any
    at = [x[some][few, None] for x in (x0, x_t)]
    bound = model.diffusion.bound(log_x0[few, None], *at, t[:, None].expand_as(x0)[some][few])[:, 0]
    bound = (weights[few] * bound).sum() / BOUNDED
    length = F.cross_entropy(model.length_logits(start, condition), lengths - 1)
    return auxiliary + VARIATIONAL * model.config.steps * bound + LENGTH * length


# -------------------------------------------------------------------------------------------------------- the teacher


def guided_captions(job: Job, teacher: CaptionDecoder, tokenizer: CaptionTokenizer, grids: Tensor) -> list[list[str]]:
    """The teacher's caption of every view of every picture, grids (views, n, cells, c); cached by its weights."""
    path = job.cache / f"guided-captions-{file_hash(job.find('cfg'))}-{TEACHER_SCALE}.json"
    if not path.exists():
        path.write_text(json.dumps([greedy(teacher, tokenizer, "image", view, TEACHER_SCALE) for view in grids]))
    return json.loads(path.read_text())


# -------------------------------------------------------------------------------------------------------- batches


def bucketed(examples: list[Example], rng: random.Random) -> list[list[Example]]:
    """Batches of one modality and of like length, in random order."""
    found = []
    for kind in ("image", "audio"):
        some = sorted((e for e in examples if e.kind == kind), key=lambda e: (len(e.ids), rng.random()))
        found += [some[s : s + BATCH] for s in range(0, len(some) - BATCH + 1, BATCH)]
    rng.shuffle(found)
    return found


def noisy_batch(model: MaskDenoiser, some: list[Example], rng: random.Random) -> Batch:
    kind, longest, source = some[0].kind, model.config.longest, torch.Generator().manual_seed(rng.getrandbits(32))
    lengths = torch.tensor([min(len(e.ids), longest) for e in some])
    x0 = torch.zeros(len(some), int(lengths.max()), dtype=torch.long)
    for row, e in enumerate(some):
        x0[row, : lengths[row]] = torch.tensor(e.ids[:longest])
    cells = len(model.cells[kind])
    codes = torch.stack([torch.zeros(cells, dtype=torch.long) if e.codes is None else e.codes for e in some])
    rates = [1.0 if e.codes is None or (d := rng.random()) < MASKED * REMOVED else rng.random() if d < MASKED else 0.0 for e in some]
    hidden = torch.rand(codes.shape, generator=source) < torch.tensor(rates)[:, None]
    # times are spread evenly over a batch: less variance than independent ones
    t = ((torch.arange(len(some)) + rng.random()) / len(some) * model.config.steps).long()[torch.randperm(len(some), generator=source)] + 1
    return Batch(kind, torch.tensor([e.start for e in some]), x0, lengths, t, model.masked(kind, codes, hidden))


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
        there = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        for k in range(CHECK_STEPS, 0, -1):
            t = torch.full_like(start, round(k * model.config.steps / CHECK_STEPS))
            logits = model(start, x, t, condition, lengths)
            logits[..., specials] = -torch.inf
            sure, words = logits.softmax(-1).max(-1)
            hidden = x == model.mask
            sure = torch.where(hidden & there, sure, -1.0)
            left = (lengths * (k - 1) / CHECK_STEPS).floor().long()
            rank = sure.argsort(1, descending=True).argsort(1)
            x = torch.where(hidden & there & (rank < ((hidden & there).sum(1) - left)[:, None]), words, x)
        texts += [tokenizer.decode(row[:n]) for row, n in zip(x.tolist(), lengths.tolist(), strict=True)]
    return texts
