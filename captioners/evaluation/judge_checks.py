"""Can the judge tell a right caption from a wrong one, and how much of its opinion is the ranker's?

    python -m captioners.evaluation.judge_checks DATA/coco --split dev

A person's caption of each picture meets a person's caption of another picture, and itself with the main object's name
replaced by that of an object that is not there. The last figure is the correlation of judge and ranker over captions
of one picture: its own and other pictures'.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captioners.contract import Matcher
from captioners.evaluation.check_command import add_dataset_options, chosen_dataset, exit_code, make_parser
from captioners.evaluation.dataset import Dataset, Item, load_item
from captioners.lab import Lab
from captioners.metrics.object_words import CLASSES, mentions
from captioners.metrics.objects import main_object, words_of
from captioners.types import CaptionLabError

OTHERS = 20  # captions of other pictures that judge and ranker are compared on, beside the picture's own


@dataclass(frozen=True)
class Pair:
    """A right caption of a picture and a wrong one."""

    item: int
    right: str
    wrong: str


def strangers(items: Sequence[Item], rng: random.Random) -> list[Pair]:
    """Each picture's first caption beside the first caption of another picture."""
    pairs = []
    for i, item in enumerate(items):
        other = rng.choice([k for k in range(len(items)) if k != i])
        pairs.append(Pair(i, item.references[0], items[other].references[0]))
    return pairs


def swapped(items: Sequence[Item], rng: random.Random) -> list[Pair]:
    """Each caption that names its picture's main object beside the same caption with another of the classes in its
    place.
    """
    pairs = []
    for i, item in enumerate(items):
        main = main_object(item.objects or ())
        for caption in item.references:
            words = words_of(caption)
            named = [m for m in mentions(words) if m.claims and main in m.names]
            if named:
                other = rng.choice([name for name in CLASSES if name not in (item.objects or ())])
                wrong = [*words[: named[0].start], *other.split(), *words[named[0].end :]]
                pairs.append(Pair(i, " ".join(words), " ".join(wrong)))
                break
    return pairs


def share_told(matcher: Matcher, media: Tensor, pairs: Sequence[Pair]) -> float:
    """The share of pairs whose right caption scores higher; media (items, c) unit vectors."""
    right, wrong = (matcher.embed_text([getattr(p, side) for p in pairs]) for side in ("right", "wrong"))
    pictures = media[[p.item for p in pairs]]
    return float(((right * pictures).sum(-1) > (wrong * pictures).sum(-1)).float().mean())


def agreement(one: Tensor, other: Tensor) -> float:
    """The mean over rows of the correlation between two matchers' scores (items, captions)."""
    a, b = (x - x.mean(1, keepdim=True) for x in (one, other))
    return float(((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp(min=1e-9)).mean())


def compared_captions(items: Sequence[Item], rng: random.Random) -> list[list[str]]:
    """For each picture its own captions and some of other pictures, as many for all."""
    count = min(len(item.references) for item in items)
    texts = []
    for i, item in enumerate(items):
        others = rng.sample([k for k in range(len(items)) if k != i], min(OTHERS, len(items) - 1))
        texts.append([*item.references[:count], *(items[k].references[0] for k in others)])
    return texts


def check(lab: Lab, dataset: Dataset) -> dict[str, float]:
    """All figures, by name."""
    items, rng = [item for item in dataset if item.references], random.Random(0)
    media = [load_item(item) for item in items]
    profile = lab.profile
    matchers = {"judge": profile.judges.matcher("image"), "ranker": profile.models.ranker("image")}
    vectors = {name: matcher.embed_media(media) for name, matcher in matchers.items()}
    pairs = {"stranger": strangers(items, rng), "swapped": swapped(items, rng)}
    figures = {
        f"{name}_{kind}": share_told(matcher, vectors[name], kind_pairs)
        for name, matcher in matchers.items()
        for kind, kind_pairs in pairs.items()
        if kind_pairs
    }
    texts = compared_captions(items, rng)
    scores = {}
    for name, matcher in matchers.items():
        embedded = matcher.embed_text([text for captions in texts for text in captions]).unflatten(0, (len(texts), -1))
        scores[name] = torch.einsum("ntc,nc->nt", embedded, vectors[name])
    own = min(len(item.references) for item in items)
    figures["agreement"] = agreement(scores["judge"], scores["ranker"])
    if own > 2:
        figures["agreement_own"] = agreement(scores["judge"][:, :own], scores["ranker"][:, :own])
    return {**figures, "pairs_stranger": len(pairs["stranger"]), "pairs_swapped": len(pairs["swapped"])}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; 2 on bad input, with one line that says what to do."""
    parser = make_parser("judge_checks", __doc__)
    add_dataset_options(parser, "a data set of pictures with captions")
    args = parser.parse_args(arguments)

    def print_figures() -> None:
        dataset = chosen_dataset(args)
        if dataset.kind != "image":
            raise CaptionLabError(f"{args.folder} holds sounds: give a data set of pictures.")
        for name, value in check(Lab("embedded"), dataset).items():
            print(f"{name:18} {value:.4g}")

    return exit_code(print_figures)


if __name__ == "__main__":
    sys.exit(main())
