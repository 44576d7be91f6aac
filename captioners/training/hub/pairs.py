"""Pictures with captions from any captions.jsonl folder, in batches that are the same for the same epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from accelerate import PartialState

from captioners.evaluation.dataset import Item, read_dataset
from captioners.media import load_media
from captioners.metrics.base import CaptionSet
from captioners.metrics.ngram import cider
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import choose
from captioners.training import Job
from captioners.types import CaptionLabError, Media

HELD_OUT = 20  # every twentieth picture is for development where no split says which
FOLLOWED = 100  # pictures of the development split that a training is followed on


@dataclass(frozen=True)
class Pairs:
    """What there is to learn from, and to measure on."""

    job: Job
    train: list[Item]
    dev: list[Item]

    @classmethod
    def load(cls, job: Job) -> Pairs:
        """Items of the split `train` and of `dev` or `val`; without splits, every twentieth is held out."""
        items = [item for item in read_dataset(job.data) if item.kind == "image" and item.references]
        train, dev = (
            [i for i in items if i.split == "train"],
            [i for i in items if i.split in ("dev", "val", "validation")],
        )
        if not train or not dev:
            train, dev = [i for n, i in enumerate(items) if n % HELD_OUT], items[::HELD_OUT]
        if not train or len(dev) < 2:  # CIDEr wants more than one
            raise CaptionLabError(
                f"{job.data} has too few captioned pictures to train on: give more than {HELD_OUT}, or two in a dev "
                "split."
            )
        return cls(job, train, dev[:FOLLOWED])

    def steps(self, size: int) -> int:
        """Batches of one epoch: each picture once, with one of its captions."""
        return max(1, len(self.train) // size)

    def batches(self, epoch: int, size: int) -> Iterator[tuple[list[Media], list[str], random.Random]]:
        """Media, one caption of each, and the randomness of the batch."""
        rng = random.Random(self.job.seed * 1000 + epoch)
        order = rng.sample(self.train, len(self.train))
        for step in range(self.steps(size)):
            chosen = order[step * size : (step + 1) * size]
            yield (
                [load_media(i.path, "image") for i in chosen],
                [rng.choice(i.references) for i in chosen],
                random.Random(rng.getrandbits(32)),
            )

    def held_out(self, size: int) -> Iterator[tuple[list[Media], list[str]]]:
        """The development pictures with their first captions."""
        for n in range(0, len(self.dev), size):
            chosen = self.dev[n : n + size]
            yield [load_media(i.path, "image") for i in chosen], [i.references[0] for i in chosen]

    def measure(self, captions: Callable[[list[Media]], list[str]]) -> dict[str, float]:
        """CIDEr and how many captions differ, on the development pictures."""
        texts = [
            t
            for n in range(0, len(self.dev), 16)
            for t in captions([load_media(i.path, "image") for i in self.dev[n : n + 16]])
        ]
        (score,) = cider(CaptionSet([i.id for i in self.dev], texts, [list(i.references) for i in self.dev]))
        return {"cider": score.mean, "distinct": len(set(texts)) / len(texts)}


def library_of(job: Job) -> ModelLoader:
    """The models of the job's profile in full precision, on this process's device."""
    device = job.device if job.device != "auto" else str(PartialState().device)
    return ModelLoader(choose(job.models, preset=job.profile), device, half=False)
