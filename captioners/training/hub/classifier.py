"""Parts `audibility` and `visibility` of the hub profile: DistilBERT on the sentences that the embedded classifiers
learn from.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from captioners.profiles.hub.fetching import fetch
from captioners.profiles.hub.roles import CLASSIFIER_BASE
from captioners.training import Job
from captioners.training.classifier import HELD_OUT, ClassifierRecipe, captions_too, sentences
from captioners.training.hub.pairs import library_of
from captioners.training.loop import fit

RECIPE = ClassifierRecipe(epochs=3, batch=64, lr=5e-5, weight_decay=0.01, ema=0.99, captions=0)
SMOOTHING = 0.05  # a classifier that is sure of everything has no gradient to guide with


class SentenceLoss(nn.Module):
    """Cross-entropy of no and yes."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(**inputs).logits.float(), labels, label_smoothing=SMOOTHING)


def train(name: str, job: Job) -> dict[str, Any]:
    (recipe,) = job.configured(RECIPE)
    size, library = recipe.batch, library_of(job)
    path = fetch(name, library.sources.get(name, CLASSIFIER_BASE))
    tokenizer = AutoTokenizer.from_pretrained(path)
    net = AutoModelForSequenceClassification.from_pretrained(path, num_labels=2, dtype=torch.float32)
    labelled = sentences(name, job)
    dev, learned = labelled[::HELD_OUT], [s for i, s in enumerate(labelled) if i % HELD_OUT]
    learned += captions_too(name, job, recipe.captions)
    steps = max(1, len(learned) // size)

    def inputs(texts: list[str]) -> dict[str, Tensor]:
        return dict(
            tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt").to(library.device)
        )

    def batches(epoch: int) -> Iterator[tuple[list[str], Tensor]]:
        rng = random.Random(job.seed * 1000 + epoch)
        order = rng.sample(learned, len(learned))
        for step in range(steps):
            chosen = order[step * size : (step + 1) * size]
            yield [_cut(text, recipe.cut, rng) for text, _ in chosen], torch.tensor([int(label) for _, label in chosen])

    def loss(model: nn.Module, batch: tuple[list[str], Tensor]) -> Tensor:
        return model(batch[1].to(library.device), **inputs(batch[0]))

    def evaluate(model: SentenceLoss) -> dict[str, float]:
        right = []
        for start in range(0, len(dev), size):
            chosen = dev[start : start + size]
            answers = model.net(**inputs([text for text, _ in chosen])).logits.argmax(-1).tolist()
            right += [bool(yes) == (label > 0.5) for yes, (_, label) in zip(answers, chosen, strict=True)]
        return {"accuracy": sum(right) / len(right)}

    def save(model: SentenceLoss) -> None:
        model.net.save_pretrained(job.out / name)
        tokenizer.save_pretrained(job.out / name)

    _, report = fit(
        job, f"hub-{name}", SentenceLoss(net), batches, steps, loss, evaluate, recipe, "accuracy", save=save
    )
    return {**report, "sentences": len(labelled)} if report else {}


def _cut(text: str, share: float, rng: random.Random) -> str:
    """A share of the sentences is cut off, because a guide judges beginnings of sentences."""
    words = text.split()
    return " ".join(words[: rng.randint(2, len(words))]) if len(words) > 2 and rng.random() < share else text
