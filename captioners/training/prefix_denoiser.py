"""Part `prefix-diffusion`: method 4's denoiser, for pictures and sound, with its prefix removed now and then.

It starts from method 1's decoder (its layers without the causal mask; its token embeddings, reduced to their principal
components, are the word embeddings, frozen for the first half). It learns people's captions alone, and text corpora as
examples without a prefix.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.language_model import CausalLM, CausalLMConfig
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig, noised
from captioners.nets.regions import REGIONS, pooled_regions
from captioners.nets.rounding import TokenKinds, best_sequences, settled
from captioners.nets.schedules import alpha_bars, sampler
from captioners.profiles.store import load_into, read_config, save_part
from captioners.text import PAIRS, CaptionTokenizer
from captioners.training import Job, Recipe, corpus
from captioners.training.captioner import bucketed, caption_figures, mean_figures, sound_figures
from captioners.training.features import image_features
from captioners.training.loop import fit
from captioners.training.sound_pairs import SoundPairs, sound_pairs
from captioners.training.tokenizer import load_tokenizer
from captioners.types import CaptionLabError

LONGEST = 18  # tokens; 94 % of the captions are not longer, and the rest would cost a fifth of the time
SLACK = 2  # up to this many ends behind the longest caption of a batch
CHECKED_SOUNDS, CHECKED_PICTURES = 6, 80  # every sixth held-out clip, and so many pictures of each set


@dataclass(frozen=True)
class PrefixRecipe(Recipe):
    """How the denoiser learns. An epoch has some captions of every picture."""

    per_picture: int = 2
    sounds: int = 5000  # further examples of an epoch
    texts: int = 3000  # and captions without a prefix
    removed: float = 0.15  # share of examples whose prefix is removed
    uncounted: float = 0.2  # share of examples whose number of words is not told
    settled: float = 0.95  # share of examples in which some words are clean already, a share of their own from U(0, 1)
    believed: float = 0.25  # share of batches that see their own first guess (self-conditioning)
    noisy: float = 0.7  # exponent < 1: fewer of the times at which every word can be read
    # share of the examples without clean words whose noise is of the levels at which something can be read; two thirds
    # of all times are beyond them, and teach nothing but what is likely without having read a word
    readable: float = 0.0
    jitter: float = 0.2  # noise on the pooled vectors, as a share of their spread
    frozen: float = 0.5  # share of the epochs in which the word embeddings stay as they are
    finish: float = 0.6  # a second stage, from the best weights of the first, of this share of its epochs; 0: none


RECIPE = PrefixRecipe(epochs=10, batch=64, lr=8e-4, ema=0.999)
# in the second stage most examples have no clean words, as the published sampler meets them, and half the batches see
# their own first guess; from the beginning that teaches more slowly
FINISH = (("settled", "0.4"), ("readable", "0.9"), ("believed", "0.5"), ("lr", "0.0004"), ("frozen", "0"))


@dataclass(frozen=True)
class Examples:
    """One batch: captions of one modality or of no picture at all."""

    kind: str  # image, audio or text
    ids: Tensor  # (b, t), padded with ends
    tags: Tensor  # (b,) start tokens
    pooled: Tensor | None  # (b, regions, c)
    keep: Tensor  # (b,) False where the prefix is removed
    count: Tensor  # (b,) words, 0 where the number is not told
    learn_words: bool = True


def warm_start(model: PrefixDenoiser, decoder: CaptionDecoder) -> None:
    """Word embeddings by principal components, and every layer's self-attention and feed-forward weights."""
    tokens = decoder.tokens.weight.detach()
    if len(tokens) < model.config.embed:
        raise CaptionLabError(
            f"{len(tokens)} tokens cannot start {model.config.embed} dimensions of word embeddings: "
            "train the tokenizer on more text, or take fewer with --set embed=48."
        )
    centre = tokens.mean(0)
    basis = torch.linalg.svd(tokens - centre, full_matrices=False).Vh[: model.config.embed]  # (embed, dim)
    with torch.no_grad():
        model.directions.copy_((tokens - centre) @ basis.T)
        length = model.directions.norm(dim=1).mean() / model.config.embed**0.5
        for layer in (model.noisy, model.tag):
            layer.weight.copy_(basis.T * length)
            layer.bias.copy_(centre)
        model.leave.weight.copy_(basis * length)
        model.positions.copy_(decoder.positions[1 : 1 + model.config.canvas])
    model.norm.load_state_dict(decoder.norm.state_dict())
    for own_block, decoder_block in zip(model.blocks, decoder.blocks, strict=True):
        own_block.load_state_dict({k: v for k, v in decoder_block.state_dict().items() if not k.startswith("cross")})


def pooled_vectors(grids: Tensor, kind: str, regions: int) -> Tensor:
    """What the prefix is made of: grids (n, cells, c) fp16 → (n, regions, c).

    Beside it the ranker's vector made the words of unseen pictures harder to guess: it knows the training pictures by
    heart.
    """
    return torch.cat([pooled_regions(chunk.float(), kind, regions) for chunk in grids.split(500)])


@dataclass(frozen=True)
class Material:
    """Everything an epoch draws from: token rows and pooled vectors."""

    written: list[list[list[int]]]  # of each picture
    pictures: Tensor  # (views, n, regions, c)
    sounds: SoundPairs
    heard: Tensor  # (n, regions, c)
    texts: dict[str, list[list[int]]]  # by corpus


def load_material(job: Job, tokenizer: CaptionTokenizer, regions: int) -> Material:
    """Everything to learn from, encoded and tokenized once."""
    sounds = sound_pairs(job)
    return Material(
        written=[_short(tokenizer.encode_all(p.captions)) for p in corpus.pictures(job.data, "train")],
        pictures=torch.stack([pooled_vectors(view, "image", regions) for view in image_features(job)["train"]]),
        sounds=sounds,
        heard=pooled_vectors(sounds.grids, "audio", regions),
        texts={name: _short(tokenizer.encode_all(text.captions)) for name, text in corpus.texts(job.data).items()},
    )


def _short(rows: Sequence[list[int]]) -> list[list[int]]:
    return [row for row in rows if 0 < len(row) <= LONGEST]


def examples(
    material: Material, tokenizer: CaptionTokenizer, recipe: PrefixRecipe, rng: random.Random
) -> list[tuple[str, list[tuple[list[int], str, int]]]]:
    """An epoch's batches, each of one kind and of like length, in random order: (token row, domain, index into the
    vectors).
    """
    picture, sound = PAIRS["image"], PAIRS["audio"]
    shown = [
        (row, picture, i)
        for i, rows in enumerate(material.written)
        for row in rng.sample(rows, min(recipe.per_picture, len(rows)))
    ]
    chosen = rng.choices(range(len(material.heard)), k=recipe.sounds)
    heard = [(tokenizer.encode(material.sounds.caption(i, rng))[:LONGEST], sound, i) for i in chosen]
    text_only = [(rng.choice(material.texts[d]), d, 0) for d in rng.choices([*material.texts], k=recipe.texts)]
    return bucketed({"image": shown, "audio": heard, "text": text_only}, recipe.batch, rng)


def train(name: str, job: Job) -> dict[str, Any]:
    """Two stages, the second one like `--from` the weights of the first; `--from` has none of its own."""
    first, recipe = train_stage(name, job)
    if job.start or not recipe.finish:
        return first
    settings = (*job.settings, *FINISH)
    last, _ = train_stage(name, replace(job, start=job.out, epochs=recipe.finish * recipe.epochs, settings=settings))
    return last | {"minutes": first["minutes"] + last["minutes"], "history": first["history"] + last["history"]}


def train_stage(name: str, job: Job) -> tuple[dict[str, Any], PrefixRecipe]:
    """From new weights, or those that the job starts from, to the best ones of its epochs."""
    tokenizer = load_tokenizer(job)
    kinds = TokenKinds.of(tokenizer)
    weights = job.find("cfg")
    decoder = load_into(CaptionDecoder(CaptionerConfig(**read_config(weights))), weights).eval()
    recipe, config = job.configured(RECIPE, PrefixDenoiserConfig(vocab=len(tokenizer)))
    if config.regions not in REGIONS:
        raise CaptionLabError(f"regions={config.regions} is not possible: give {' or '.join(map(str, REGIONS))}.")
    material = load_material(job, tokenizer, config.regions)
    config = replace(config, image_dim=material.pictures.shape[-1], audio_dim=material.heard.shape[-1])
    torch.manual_seed(job.seed)
    model = PrefixDenoiser(config)
    warm_start(model, decoder)
    steps = len(examples(material, tokenizer, recipe, random.Random(0)))

    def batches(epoch: int) -> Iterator[Examples]:
        rng = random.Random(job.seed * 1000 + epoch)
        for kind, batch in examples(material, tokenizer, recipe, rng):
            rows = [row[: config.canvas - 2] for row, _, _ in batch]
            size = min(config.canvas, max(map(len, rows)) + 1 + rng.randrange(SLACK + 1))
            ids = torch.tensor([row + [tokenizer.eos] * (size - len(row)) for row in rows])
            where = torch.tensor([i for _, _, i in batch])
            view = torch.tensor([rng.randrange(len(material.pictures)) for _ in batch])
            pooled = {"image": lambda v, w: material.pictures[v, w], "audio": lambda v, w: material.heard[w]}.get(kind)
            yield Examples(
                kind,
                ids,
                torch.tensor([tokenizer.tags[domain] for _, domain, _ in batch]),
                jittered(pooled(view, where), recipe.jitter) if pooled else None,
                torch.tensor([rng.random() >= recipe.removed for _ in batch]),
                torch.tensor([0 if rng.random() < recipe.uncounted else 1 for _ in batch])
                * kinds.words(ids).clamp(max=config.words),
                learn_words=epoch >= round(recipe.frozen * recipe.epochs),
            )

    def loss(model: nn.Module, batch: Examples) -> Tensor:
        model.directions.requires_grad_(batch.learn_words)
        return prefix_loss(model, batch, recipe)

    dev = Development(job, tokenizer, kinds, recipe, config.regions)

    def save(model: PrefixDenoiser) -> None:
        save_part(job.out, name, model, asdict(config))

    return fit(job, name, model, batches, steps, loss, dev.measure, recipe, "-nats", save=save)[1], recipe


def prefix_loss(model: PrefixDenoiser, batch: Examples, recipe: PrefixRecipe) -> Tensor:
    """Rounding of what is not clean, distance to x0 and the length's, each row at a noise level of its own."""
    device, levels = model.bias.device, alpha_bars(model.config.schedule)
    ids, b = batch.ids.to(device), len(batch.ids)
    pooled = {} if batch.pooled is None else {batch.kind: batch.pooled.to(device)}
    prefix = model.prefix(pooled, torch.arange(b, device=device), batch.tags.to(device), batch.keep.to(device))
    x0 = model.embed(ids)
    partly_clean = torch.rand(b) < recipe.settled
    readable = ~partly_clean & (torch.rand(b) < recipe.readable)
    level = levels[drawn_times(readable, int((model.legible(levels) > 0).sum()), len(levels), recipe.noisy)]
    clean = torch.rand(ids.shape) < torch.rand(b, 1) * partly_clean[:, None]
    clean[:, 0] &= ~clean.all(1)  # something must be left to learn
    clean = clean.to(device)
    level = torch.where(clean, 1.0, level.to(device)[:, None])
    x = noised(x0, level, torch.randn_like(x0))
    count, believed = batch.count.to(device), None
    if torch.rand(()) < recipe.believed:
        with torch.no_grad():
            believed = model.expected(model(x, level, prefix, count))
    hidden = model.vectors(x, level, prefix, count, believed, asked=~clean)[~clean]
    logits = model.logits(hidden)
    rounding = F.cross_entropy(logits, ids[~clean])
    quarter = slice(None, None, 4)  # rounding does most of the teaching; this keeps x0 honest at a quarter of the cost
    distance = (model.expected(logits[quarter]) - x0[~clean][quarter].detach()).square().mean()
    counted = count > 0
    length = F.nll_loss(prefix.lengths[counted], count[counted] - 1) if counted.any() else rounding.new_zeros(())
    return rounding + distance + 0.1 * length


def drawn_times(readable: Tensor, legible: int, steps: int, exponent: float) -> Tensor:
    """A time of the noise schedule for every row (b,): one of the first `legible` ones, all alike, where readable is
    asked, else one of all.

    Every batch sees times from all over its range.
    """
    b = len(readable)
    spread = ((torch.arange(b) + torch.rand(())) / b)[torch.randperm(b)]
    times = torch.where(readable, spread * legible, spread**exponent * steps)
    return times.long().clamp(max=steps - 1)


def jittered(pooled: Tensor, share: float) -> Tensor:
    """Pooled vectors (…, c) with noise, its size told as a share of their own spread."""
    return pooled + share * pooled.std(-1, keepdim=True) * torch.randn_like(pooled)


def parameters_against_clipcap(config: PrefixDenoiserConfig) -> tuple[int, int]:
    """Trainable parameters of ours and of an autoregressive captioner with the same prefix MLPs before a language model
    of the same body.

    The difference is what a language model needs at full width: a word table of `dim` instead of `embed` columns.
    """
    denoiser = PrefixDenoiser(config)
    makers = [part for part in (denoiser.enter, denoiser.mlp, denoiser.quarter) if part is not None]
    prefix = sum(p.numel() for part in makers for p in part.parameters())
    longest = config.prefix_length + config.canvas
    shape = CausalLMConfig(config.vocab, config.dim, config.layers, config.heads, max_tokens=longest)
    clipcap_parameters = prefix + sum(p.numel() for p in CausalLM(shape).parameters())
    return sum(p.numel() for p in denoiser.parameters()), clipcap_parameters


class Development:
    """What is followed during a training: the loss on people's captions, rounding at some levels of noise, captions,
    sounds named.
    """

    def __init__(self, job: Job, tokenizer: CaptionTokenizer, kinds: TokenKinds, recipe: PrefixRecipe, regions: int):
        self.tokenizer, self.kinds, self.recipe = tokenizer, kinds, recipe
        dev_pictures = corpus.pictures(job.data, "dev")
        self.sources = corpus.picture_sets(job.data)
        rows = [
            i
            for source in self.sources
            for i in [i for i, p in enumerate(dev_pictures) if p.source == source][:CHECKED_PICTURES]
        ]
        self.pictures = [dev_pictures[i] for i in rows]
        self.seen = pooled_vectors(image_features(job)["dev"][0][rows], "image", regions)
        self.sounds = sound_pairs(job)
        self.heard = pooled_vectors(self.sounds.dev_grids[::CHECKED_SOUNDS], "audio", regions)

    def measure(self, model: PrefixDenoiser) -> dict[str, float]:
        texts = self.captions(model, "image", self.seen)
        heard = self.captions(model, "audio", self.heard)
        figures: dict[str, float] = {}
        for source in self.sources:
            rows = [i for i, p in enumerate(self.pictures) if p.source == source]
            figures |= caption_figures(source, [texts[i] for i in rows], [self.pictures[i] for i in rows])
        losses = {"nats": self.nats(model)} | {
            f"rounding@{share:g}": self.rounding(model, share) for share in (0.1, 0.25, 0.5)
        }
        return losses | mean_figures(figures) | figures | sound_figures(self.sounds, heard, CHECKED_SOUNDS)

    @torch.no_grad()
    def nats(self, model: PrefixDenoiser) -> float:
        """The loss on all captions of the pictures, always with the same noise."""
        rows = [(row, i) for i, p in enumerate(self.pictures) for row in _short(self.tokenizer.encode_all(p.captions))]
        rows.sort(key=lambda pair: len(pair[0]))
        values = []
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for start in range(0, len(rows), 2 * RECIPE.batch):
                chosen = rows[start : start + 2 * RECIPE.batch]
                size = len(chosen[-1][0]) + 1
                ids = torch.tensor([row + [self.kinds.end] * (size - len(row)) for row, _ in chosen])
                tags = torch.full((len(chosen),), self.tokenizer.start("image"))
                where = torch.tensor([i for _, i in chosen])
                batch = Examples(
                    "image",
                    ids,
                    tags,
                    self.seen[where],
                    torch.ones(len(chosen), dtype=torch.bool),
                    self.kinds.words(ids),
                    False,
                )
                values.append(prefix_loss(model, batch, self.recipe).item() * len(chosen))
        return sum(values) / len(rows)

    @torch.no_grad()
    def rounding(self, model: PrefixDenoiser, share: float) -> float:
        """The share of a dev caption's tokens that are right in one pass from noise of time `share` · T."""
        device, source = model.bias.device, torch.Generator().manual_seed(0)
        rows = self.tokenizer.encode_all(p.captions[0] for p in self.pictures)
        ids = torch.tensor([(row + [self.kinds.end] * model.config.canvas)[:16] for row in rows])
        levels = alpha_bars(model.config.schedule)
        level = levels[round(share * len(levels)) - 1].expand(len(ids)).to(device)
        x0 = model.embed(ids.to(device))
        x = noised(x0, level, torch.randn(x0.shape, generator=source).to(device))
        tags = torch.full((len(ids),), self.tokenizer.start("image"), device=device)
        prefix = model.prefix({"image": self.seen.to(device)}, torch.arange(len(ids), device=device), tags)
        right = model(x, level, prefix, self.kinds.words(ids).to(device)).argmax(-1).cpu() == ids
        return right[ids != self.kinds.end].float().mean().item()

    @torch.no_grad()
    def captions(self, model: PrefixDenoiser, kind: str, pooled: Tensor, num_steps: int = 20) -> list[str]:
        """One caption each, as long as the length head finds likeliest: by DDIM, the surest words settled first."""
        device, source = model.bias.device, torch.Generator().manual_seed(0)
        levels, steps = alpha_bars("truncated-linear"), sampler("ddim", "truncated-linear", num_steps)
        tags = torch.full((len(pooled),), self.tokenizer.start(kind), device=device)
        prefix = model.prefix({kind: pooled.to(device)}, torch.arange(len(pooled), device=device), tags)
        count, believed = prefix.lengths.argmax(-1) + 1, None
        n = int(count.max()) + 1 + SLACK
        x = torch.randn((len(pooled), n, model.config.embed), generator=source).to(device)
        words = torch.full((len(pooled), n), -1, device=device)
        for k, time in enumerate(steps.timesteps):
            is_settled = words >= 0
            x = torch.where(is_settled[..., None], model.embed(words.clamp(min=0)), x)
            logits = model(x, torch.where(is_settled, 1.0, levels[time].to(device)), prefix, count, believed)
            believed = torch.where(is_settled[..., None], model.embed(words.clamp(min=0)), model.expected(logits))
            x = steps.step(believed, time, x).prev_sample
            sure, best = logits.log_softmax(-1).max(-1)
            words = settled(words, best, sure, torch.full_like(count, n * (k + 1) // num_steps))
        logp = logits.log_softmax(-1).scatter(-1, words[..., None], 0.0)
        rows = best_sequences(logp, self.kinds, count)
        return [self.tokenizer.decode(row) for row in rows.tolist()]
