"""Parts `audibility`, `visibility` (they guide method 2) and `audibility-judge` (it only measures).

Audible against not audible: the published sentence set, and in training captions of sounds against captions of
pictures. Visible against not visible: picture captions against sentences about sounds and the set's abstract ones. Half
of the examples are cut off, because a guide judges beginnings of sentences. The judge is a bag of words and has the
other half of everything: of the set, and of the captions of sounds and of pictures.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from captioners.nets.classifier import (
    BagClassifier,
    BagClassifierConfig,
    TextClassifier,
    TextClassifierConfig,
    accuracy,
    binary_loss,
)
from captioners.profiles.store import save_part
from captioners.text import clean
from captioners.training import Job, Recipe, corpus
from captioners.training.loop import fit
from captioners.training.tokenizer import load_tokenizer


@dataclass(frozen=True)
class ClassifierRecipe(Recipe):
    """How a classifier learns."""

    cut: float = 0.5  # share of training sentences that are cut off
    captions: int = 6000  # of sounds, and of pictures, that `audibility` learns from beside its sentences


GUIDE = ClassifierRecipe(epochs=4, batch=64, lr=1e-3, ema=0.995)
JUDGE = ClassifierRecipe(epochs=16, batch=64, lr=1e-3, ema=0.995)  # a bag of words: an epoch takes seconds
HELD_OUT = 10  # every tenth sentence is for development
EACH = 9000  # sentences of each side of `visibility` and of the judge

Sentences = list[tuple[str, float]]  # text, 1 for yes


def sentences(name: str, job: Job) -> Sentences:
    """What a classifier learns from and is measured on, in a fixed random order.

    The judge's half of the published set is its own.
    """
    audible, silent = corpus.sentences(job.data)
    rng = random.Random(0)
    pictures, sounds = ([], []) if name == "audibility" else captions(job, 1 if name == "audibility-judge" else 0)

    def some(texts: list[str], count: int) -> list[str]:
        return rng.sample(texts, min(count, len(texts)))

    judges = set() if name == "audibility-judge" else judges_texts(job)
    heard, not_heard = ([t for t in texts[0::2] if clean(t) not in judges] for texts in (audible, silent))
    if name == "audibility":
        yes, no = heard, not_heard
    elif name == "visibility":
        yes, no = some(pictures, EACH), some(sounds, EACH // 2) + some(heard + not_heard, EACH // 2)
    else:
        yes, no = some(sounds, EACH) + audible[1::2], some(pictures, EACH) + silent[1::2]
    labelled = [(text, 1.0) for text in yes] + [(text, 0.0) for text in no]
    rng.shuffle(labelled)
    return list(dict.fromkeys((clean(text), label) for text, label in labelled))


def captions(job: Job, half: int) -> tuple[list[str], list[str]]:
    """Half 0 (the guides') or 1 (the judge's) of what is said of pictures, and of sounds, in the text corpora; what is
    said in both, or in the judge's half of the published set, is the judge's.
    """
    judges = judges_texts(job) if half == 0 else set()
    by_kind: dict[str, list[str]] = {"image": [], "audio": []}
    for text in corpus.texts(job.data).values():
        by_kind[text.of] += [t for t in text.half(half) if clean(t) not in judges]
    return by_kind["image"], by_kind["audio"]


def judges_texts(job: Job) -> set[str]:
    """All that the judge may learn from: no guide reads it, wherever else it stands."""
    published = [text for side in corpus.sentences(job.data) for text in side[1::2]]
    try:
        said = [t for text in corpus.texts(job.data).values() for t in text.half(1)]
    except FileNotFoundError:  # a folder with the published set alone, which is enough for `--profile hub`
        said = []
    return {clean(t) for t in published + said}


def captions_too(name: str, job: Job, count: int) -> Sentences:
    """What the guide of sound learns from beside the sentence set: `count` captions of sounds, as many of pictures."""
    if name != "audibility" or not count:
        return []
    pictures, sounds = captions(job, 0)
    rng = random.Random(0)
    return [
        (clean(t), label)
        for texts, label in ((sounds, 1.0), (pictures, 0.0))
        for t in rng.sample(texts, min(count, len(texts)))
    ]


def train(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    rows = [(tokenizer.encode(text), label) for text, label in sentences(name, job)]
    dev = rows[::HELD_OUT]
    learned = [row for i, row in enumerate(rows) if i % HELD_OUT]
    make, config = (
        (BagClassifier, BagClassifierConfig) if name == "audibility-judge" else (TextClassifier, TextClassifierConfig)
    )
    recipe, config = job.configured(JUDGE if name == "audibility-judge" else GUIDE, config(vocab=len(tokenizer)))
    learned += [(tokenizer.encode(text), label) for text, label in captions_too(name, job, recipe.captions)]
    size = recipe.batch
    steps = len(learned) // size

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        rng = random.Random(job.seed * 1000 + epoch)
        order = rng.sample(learned, len(learned))
        for step in range(steps):
            chosen = order[step * size : (step + 1) * size]
            ids = [
                row[: rng.randint(2, len(row))] if len(row) > 2 and rng.random() < recipe.cut else row
                for row, _ in chosen
            ]
            yield tokenizer.batch(ids), torch.tensor([label for _, label in chosen])

    def loss(model: nn.Module, batch) -> Tensor:
        device = next(model.parameters()).device
        return binary_loss(model(batch[0].to(device)), batch[1].to(device))

    def evaluate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        labels = torch.tensor([label for _, label in dev])
        complete = model(tokenizer.batch([row for row, _ in dev]).to(device)).cpu()
        halves = model(tokenizer.batch([row[: max(1, len(row) // 2)] for row, _ in dev]).to(device)).cpu()
        return {
            "accuracy": accuracy(complete, labels),
            "half_accuracy": accuracy(halves, labels),
            **_real_captions(model, tokenizer, job),
        }

    def save(model: nn.Module) -> None:
        save_part(job.out, name, model, asdict(config))

    _, report = fit(job, name, make(config), batches, steps, loss, evaluate, recipe, "accuracy", save=save)
    return {**report, "sentences": len(rows), "captions": len(learned) - len(rows) + len(dev)}


def _real_captions(model: nn.Module, tokenizer, job: Job) -> dict[str, float]:
    """The share of real captions of each kind that the classifier says yes to."""
    texts = {name: text.captions[:500] for name, text in corpus.texts(job.data, "dev").items() if text.groups}
    texts |= {
        s: [p.captions[0] for p in corpus.pictures(job.data, "dev", s)[:500]] for s in corpus.picture_sets(job.data)
    }
    device = next(model.parameters()).device
    return {
        f"yes_to_{kind}": (model(tokenizer.batch(tokenizer.encode_all(captions)).to(device)) > 0).float().mean().item()
        for kind, captions in texts.items()
    }
