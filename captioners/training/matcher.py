"""Parts `image-ranker`, `image-judge`, `audio-ranker`, `audio-judge`: text–media matchers, trained apart.

Two captions of one picture are to lie near each other, with their picture or, in the text corpora, without one. Ranker
and judge have image encoders, pooling and sizes of their own. An audio matcher starts from the text tower of the image
matcher of the same role.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from captioners.metrics.recall import recall_at
from captioners.nets.matcher import MatcherConfig, MatcherNet, contrastive_loss
from captioners.profiles.store import load_into, save_part
from captioners.sound_classes import SOUND_CLASSES
from captioners.text import CaptionTokenizer
from captioners.training import Job, Recipe, corpus
from captioners.training.audio_encoder import told_apart
from captioners.training.features import image_features, random_views
from captioners.training.loop import fit
from captioners.training.sound_pairs import SoundPairs, sound_pairs
from captioners.training.tokenizer import load_tokenizer

ROLES = {
    "ranker": MatcherConfig(dim=256, layers=2, heads=4, embed=256, pooling="mean"),
    "judge": MatcherConfig(
        dim=320, layers=2, heads=5, embed=320, media_width=400, pooling="attention", dropout=0.2, word_dropout=0.1
    ),
}
ENCODERS = {"ranker": "image-encoder", "judge": "judge-encoder"}
MAX_TOKENS = 28  # of a caption in training; 99 % are shorter
CLASSES = list(SOUND_CLASSES)


@dataclass(frozen=True)
class PairRecipe(Recipe):
    """How a matcher learns from pictures and their captions."""

    captions: int = 2  # of each picture in a batch
    paraphrases: float = 0.3  # weight of two captions of one picture meaning the same
    groups: int = 48  # pictures of the text corpora beside each batch, two captions each
    beginnings: float = 0.0  # share of captions that are cut off: a ranker is asked about beginnings of sentences
    views: int = 2  # of each picture


@dataclass(frozen=True)
class SoundRecipe(Recipe):
    """How a matcher learns from clips and the captions of their classes."""

    beginnings: float = 0.0
    # captions of pictures beside each batch, cut off as often: method 2 asks about sentences that are of no sound
    strangers: int = 0


PAIRS = {
    "ranker": PairRecipe(epochs=8, batch=256, lr=8e-4, weight_decay=0.2, beginnings=0.3),
    "judge": PairRecipe(epochs=10, batch=256, lr=8e-4, weight_decay=0.2),
}
SOUND_PAIRS = {
    "ranker": SoundRecipe(epochs=3, batch=128, lr=5e-4, weight_decay=0.1, beginnings=0.5, strangers=128),
    "judge": SoundRecipe(epochs=3, batch=128, lr=5e-4, weight_decay=0.1),
}


def train(name: str, job: Job) -> dict[str, Any]:
    kind, role = name.split("-")
    return {"image": _train_image, "audio": _train_audio}[kind](name, role, job)


def embed_rows(tower: nn.Module, tokenizer: CaptionTokenizer, rows: list[list[int]], chunk: int = 128) -> Tensor:
    """Unit vectors of token rows, computed in chunks of like length: half the padding of one big batch."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    device = next(tower.parameters()).device
    parts = [
        tower(tokenizer.batch([rows[i][:MAX_TOKENS] for i in order[s : s + chunk]]).to(device))
        for s in range(0, len(order), chunk)
    ]
    back = torch.empty(len(rows), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(rows))
    return torch.cat(parts)[back.to(device)]


def cut(row: list[int], share: float, rng: random.Random) -> list[int]:
    """A token row, or with probability `share` a beginning of it."""
    return row[: rng.randint(1, len(row))] if row and rng.random() < share else row


# ------------------------------------------------------------------------------------------------------- pictures


def _train_image(name: str, role: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    recipe, config = job.configured(PAIRS[role], ROLES[role])
    torch.manual_seed(job.seed)
    model = MatcherNet(config)
    features = image_features(job, ENCODERS[role], recipe.views)
    pictures = {split: corpus.pictures(job.data, split) for split in ("train", "dev")}
    captions = {split: [tokenizer.encode_all(p.captions) for p in of_split] for split, of_split in pictures.items()}
    groups = [g for text in corpus.texts(job.data).values() if text.of == "image" for g in text.groups if len(g) > 1]
    count = len(captions["train"])
    steps = max(1, count // recipe.batch)

    def batches(epoch: int) -> Iterator[tuple[Tensor, list[list[int]], list[list[int]]]]:
        rng = random.Random(job.seed * 1000 + epoch)
        order = rng.sample(range(count), count)
        for step in range(steps):
            chosen = order[step * recipe.batch : (step + 1) * recipe.batch]
            picked = [rng.sample(captions["train"][i], recipe.captions) for i in chosen]
            rows = [cut(sampled[k], recipe.beginnings, rng) for k in range(recipe.captions) for sampled in picked]
            paraphrased = [rng.sample(group, 2) for group in rng.sample(groups, min(recipe.groups, len(groups)))]
            paraphrases = tokenizer.encode_all([pair[k] for k in range(2) for pair in paraphrased])
            yield random_views(features["train"], chosen, rng), rows, paraphrases

    def loss(model: MatcherNet, batch: tuple[Tensor, list[list[int]], list[list[int]]]) -> Tensor:
        grids, rows, paraphrase_rows = batch
        media = model.media(grids.to(model.log_scale.device))
        text, alone = embed_rows(model.text, tokenizer, rows + paraphrase_rows).split([len(rows), len(paraphrase_rows)])
        matches = torch.eye(len(media), device=text.device).repeat(recipe.captions, 1)
        first, second = text[: len(media)], text[len(media) : 2 * len(media)]
        a, b = alone.chunk(2)
        paraphrases = contrastive_loss(torch.cat([first, a]), torch.cat([second, b]), model.scale)
        return contrastive_loss(text, media, model.scale, matches) + recipe.paraphrases * paraphrases

    def evaluate(model: MatcherNet) -> dict[str, float]:
        return measure(
            model, tokenizer, features["dev"][0].float(), captions["dev"], [p.source for p in pictures["dev"]]
        )

    def save(model: MatcherNet) -> None:
        save_matcher(job, name, model, config, evaluate(model))

    return fit(job, name, model, batches, steps, loss, evaluate, recipe, "recall@10", save=save)[1]


def measure(
    model: MatcherNet, tokenizer: CaptionTokenizer, grids: Tensor, captions: list[list[list[int]]], source: list[str]
) -> dict[str, float]:
    """Caption→picture recall within each data set and its mean; the calibration: CLIPScores of a picture's captions
    and of others'.
    """
    device = model.log_scale.device
    media = torch.cat([model.media(chunk.to(device)) for chunk in grids.split(100)])
    recalls: dict[str, float] = {}
    own, others = [], []
    for name in dict.fromkeys(source):
        rows = [i for i, s in enumerate(source) if s == name]
        owner = [k for k, i in enumerate(rows) for _ in captions[i]]
        similarity = embed_rows(model.text, tokenizer, [row for i in rows for row in captions[i]]) @ media[rows].T
        recalls |= {f"{name}_recall@{k}": recall_at(similarity, owner, k) for k in (1, 5, 10)}
        scores = 2.5 * similarity.clamp(min=0)
        human = scores[torch.arange(len(owner)), torch.tensor(owner)]
        own.append(human.mean().item())
        others.append(((scores.sum() - human.sum()) / (scores.numel() - len(human))).item())
    names = list(dict.fromkeys(source))
    mean = {f"recall@{k}": sum(recalls[f"{name}_recall@{k}"] for name in names) / len(names) for k in (1, 5, 10)}
    return mean | recalls | {"human": sum(own) / len(own), "random": sum(others) / len(others)}


def save_matcher(job: Job, name: str, model: MatcherNet, config: MatcherConfig, measured: dict[str, float]) -> None:
    """Weights, with the encoder whose grids it reads, and where random and human captions lie on its scale."""
    kind, role = name.split("-")
    header = {"encoder": ENCODERS[role] if kind == "image" else "audio-encoder"}
    save_part(
        job.out, name, model, {**asdict(config), **header, "calibration": {k: measured[k] for k in ("random", "human")}}
    )


# ---------------------------------------------------------------------------------------------------------- sounds


def _train_audio(name: str, role: str, job: Job) -> dict[str, Any]:
    """Captions belong to classes, so a clip matches every caption of what is heard in it; half of two sounds, half a
    match.
    """
    tokenizer, sounds = load_tokenizer(job), sound_pairs(job)
    recipe, config = job.configured(SOUND_PAIRS[role], ROLES[role])
    torch.manual_seed(job.seed)
    model = MatcherNet(config)
    model.text.load_state_dict(load_into(MatcherNet(config), job.find(f"image-{role}")).text.state_dict())
    heard = torch.zeros(len(sounds.heard), len(SOUND_CLASSES))
    for row, names in enumerate(sounds.heard):
        heard[row, [CLASSES.index(n) for n in names]] = 1
    size = recipe.batch
    steps = max(1, len(heard) // size)
    unheard = [c for p in corpus.pictures(job.data, "train") for c in p.captions] if recipe.strangers else []

    def batches(epoch: int) -> Iterator[tuple[Tensor, list[list[int]], Tensor]]:
        rng = random.Random(job.seed * 1000 + epoch)
        order = rng.sample(range(len(heard)), len(heard))
        for step in range(steps):
            rows = order[step * size : (step + 1) * size]
            texts = [sounds.caption(i, rng) for i in rows] + rng.sample(unheard, recipe.strangers)
            yield (
                sounds.grids[rows].float(),
                [cut(row, recipe.beginnings, rng) for row in tokenizer.encode_all(texts)],
                heard[rows],
            )

    def loss(model: MatcherNet, batch: tuple[Tensor, list[list[int]], Tensor]) -> Tensor:
        grids, rows, labels = batch
        device = model.log_scale.device
        shared = labels @ labels.T
        union = labels.sum(1)[:, None] + labels.sum(1) - shared
        text = embed_rows(model.text, tokenizer, rows)
        own, strangers = text.split([len(grids), len(text) - len(grids)])
        return contrastive_loss(own, model.media(grids.to(device)), model.scale, (shared / union).to(device), strangers)

    def evaluate(model: MatcherNet) -> dict[str, float]:
        return measure_sounds(model, tokenizer, sounds)

    def save(model: MatcherNet) -> None:
        save_matcher(job, name, model, config, evaluate(model))

    _, report = fit(job, name, model, batches, steps, loss, evaluate, recipe, "accuracy", save=save)
    return {**report, "held_out_clips": "trained on too" if job.final else "held out"}


def measure_sounds(model: MatcherNet, tokenizer: CaptionTokenizer, sounds: SoundPairs) -> dict[str, float]:
    """On the held-out clips: the right class by the nearest class prompt, and the calibration."""
    device = model.log_scale.device
    prompts = embed_rows(model.text, tokenizer, [tokenizer.encode(s.captions[0]) for s in SOUND_CLASSES.values()])
    media = torch.cat([model.media(chunk.float().to(device)) for chunk in sounds.dev_grids.split(100)])
    similarity, truth = (media @ prompts.T).cpu(), [names[0] for names in sounds.dev_heard]
    scores = 2.5 * similarity.clamp(min=0)
    right = torch.tensor([[name == t for name in CLASSES] for t in truth])
    figures = told_apart(similarity, CLASSES, truth, sounds.dev_source)
    return figures | {"human": scores[right].mean().item(), "random": scores[~right].mean().item()}
