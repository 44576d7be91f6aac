"""Parts `audibility`, `visibility` (they guide method 2) and `audibility-judge` (it only measures).

Audible against not audible: the published sentence set, and in training captions of sounds against captions of pictures.
Visible against not visible: picture captions against sentences about sounds and the set's abstract ones. Half of the examples are cut off,
because a guide judges beginnings of sentences. The judge is a bag of words, and has other captions: of sounds against of pictures,
with the not-audible sentences of the other half of the set.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from captioners.nets.classifier import BagClassifier, BagClassifierConfig, TextClassifier, TextClassifierConfig, accuracy, binary_loss
from captioners.profiles.store import save_part
from captioners.text import clean
from captioners.training import Job, corpus
from captioners.training.loop import fit
from captioners.training.tokenizer import load_tokenizer

BATCH, EPOCHS, LR = 64, 5, 1e-3
HELD_OUT = 10  # every tenth sentence is for development
CUT = 0.5  # share of training sentences that are cut off
EACH = 9000  # sentences of each side of `visibility` and of the judge
CAPTIONS = 6000  # of sounds, and of pictures, that `audibility` learns from beside its sentences

Sentences = list[tuple[str, float]]  # text, 1 for yes


def sentences(name: str, job: Job) -> Sentences:
    """What a classifier learns from and is measured on, in a fixed random order."""
    audible, silent = (corpus.lines(job.data / "audibility" / f"{n}.txt") for n in ("audible", "not_audible"))
    rng = random.Random(0)
    pictures, sounds = ([], []) if name == "audibility" else _captions(job)
    if name == "audibility":
        yes, no = audible, silent
    elif name == "visibility":
        yes, no = rng.sample(pictures, EACH), rng.sample(sounds, EACH // 2) + rng.sample(audible + silent, EACH // 2)
    else:
        yes, no = rng.sample(sounds, EACH) + audible[1::2], rng.sample(pictures, EACH) + silent[1::2]
    found = [(text, 1.0) for text in yes] + [(text, 0.0) for text in no]
    rng.shuffle(found)
    return list(dict.fromkeys((clean(text), label) for text, label in found))


def _captions(job: Job) -> tuple[list[str], list[str]]:
    """What is said of pictures, and of sounds."""
    pictures = [c for p in corpus.pictures(job.data, "train") for c in p.captions] + corpus.texts(job.data, "coco")
    return pictures, corpus.texts(job.data, "audiocaps") + corpus.texts(job.data, "clotho")


def captions_too(name: str, job: Job) -> Sentences:
    """What the guide of sound learns from beside the sentence set: captions that the judge has not seen."""
    if name != "audibility":
        return []
    known = {text for text, _ in sentences("audibility-judge", job)}
    pictures = corpus.texts(job.data, "multi30k")[::4] + corpus.texts(job.data, "coco")
    sounds = corpus.texts(job.data, "audiocaps") + corpus.texts(job.data, "clotho")
    rng, found = random.Random(0), []
    for texts, label in ((sounds, 1.0), (pictures, 0.0)):
        new = [t for t in map(clean, texts) if t not in known]
        found += [(text, label) for text in rng.sample(new, min(CAPTIONS, len(new)))]
    return found


def train(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    rows = [(tokenizer.encode(text), label) for text, label in sentences(name, job)]
    dev = rows[::HELD_OUT]
    learned = [row for i, row in enumerate(rows) if i % HELD_OUT]
    learned += [(tokenizer.encode(text), label) for text, label in captions_too(name, job)]
    if name == "audibility-judge":
        config, make = job.sized(BagClassifierConfig(vocab=len(tokenizer))), BagClassifier
    else:
        config, make = job.sized(TextClassifierConfig(vocab=len(tokenizer))), TextClassifier
    steps = len(learned) // BATCH

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        rng = random.Random(job.seed * 1000 + epoch)
        order = rng.sample(learned, len(learned))
        for step in range(steps):
            some = order[step * BATCH : (step + 1) * BATCH]
            ids = [row[: rng.randint(2, len(row))] if len(row) > 2 and rng.random() < CUT else row for row, _ in some]
            yield tokenizer.batch(ids), torch.tensor([label for _, label in some])

    def loss(model: nn.Module, batch) -> Tensor:
        device = next(model.parameters()).device
        return binary_loss(model(batch[0].to(device)), batch[1].to(device))

    def evaluate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        labels = torch.tensor([label for _, label in dev])
        whole = model(tokenizer.batch([row for row, _ in dev]).to(device)).cpu()
        halves = model(tokenizer.batch([row[: max(1, len(row) // 2)] for row, _ in dev]).to(device)).cpu()
        return {"accuracy": accuracy(whole, labels), "half_accuracy": accuracy(halves, labels), **_real_captions(model, tokenizer, job)}

    def save(model: nn.Module) -> None:
        save_part(job.out, name, model, asdict(config))

    _, report = fit(job, name, make(config), batches, steps, loss, evaluate, EPOCHS, LR, "accuracy", save=save, ema=0.995)
    return {**report, "sentences": len(rows), "captions": len(learned) - len(rows) + len(dev)}


def _real_captions(model: nn.Module, tokenizer, job: Job) -> dict[str, float]:
    """The share of real captions of each kind that the classifier says yes to."""
    files = {"audiocaps": "audiocaps_val.txt", "clotho": "clotho_val.txt"}
    texts = {kind: corpus.lines(job.data / "text" / name)[:500] for kind, name in files.items()}
    texts["flickr8k"] = [p.captions[0] for p in corpus.pictures(job.data, "dev")[:500]]
    device = next(model.parameters()).device
    return {
        f"yes_to_{kind}": (model(tokenizer.batch(tokenizer.encode_all(some)).to(device)) > 0).float().mean().item()
        for kind, some in texts.items()
    }
