"""Part `cfg`: the small CoCa decoder of method 1, for pictures and sound, with its condition removed now and then.

It starts from the caption LM (same tokens, same layers; cross-attention is new), so that it is fluent from the first
step, and learns people's captions by likelihood.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners import guidance
from captioners.metrics.base import CaptionSet
from captioners.metrics.ngram import cider
from captioners.metrics.sound_words import names_sound
from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.language_model import CausalLM, CausalLMConfig
from captioners.profiles.store import load_into, read_config, save_part
from captioners.text import CaptionTokenizer
from captioners.training import Job, Recipe, corpus
from captioners.training.features import image_features, random_views
from captioners.training.loop import fit
from captioners.training.sound_pairs import SoundPairs, sound_pairs
from captioners.training.tokenizer import load_tokenizer
from captioners.types import CaptionLabError

MAX_TOKENS = 26
FOLLOWED = (
    200  # development pictures of each data set that a training is followed on; the whole split is for `evaluate`
)


@dataclass(frozen=True)
class CaptionerRecipe(Recipe):
    """How the decoder learns. An epoch has some captions of every picture."""

    removed: float = 0.25  # share of examples whose condition is removed (the paper: 0.5, with far more data)
    smoothing: float = 0.0  # of the labels: it would draw p(x|y) and p(x) together
    per_picture: int = 2  # captions of each picture in an epoch
    sounds: int = 5000  # examples of an epoch that are sounds
    pictures: str = ""  # sets that are learned from, separated by +, "coco:0.1" is a tenth of one; empty: all


RECIPE = CaptionerRecipe(epochs=24, batch=64, lr=1e-3)


@dataclass(frozen=True)
class Examples:
    """One batch: captions of one modality with their grids."""

    kind: str
    ids: Tensor  # (b, t) with start and end
    grids: Tensor  # (b, cells, c)
    keep: Tensor  # (b,) False where the condition is removed


def warm_start(decoder: CaptionDecoder, lm: CausalLM) -> None:
    """Take over embeddings and every layer's weights from the language model; cross-attention begins as no-op."""
    decoder.tokens.load_state_dict(lm.tokens.state_dict())
    decoder.norm.load_state_dict(lm.norm.state_dict())
    with torch.no_grad():
        decoder.positions.copy_(lm.positions[: len(decoder.positions)])
    for own_block, lm_block in zip(decoder.blocks, lm.blocks, strict=True):
        own_block.load_state_dict(lm_block.state_dict(), strict=False)
        if own_block.cross is not None:
            nn.init.zeros_(own_block.cross.out.weight)


@dataclass(frozen=True)
class Pairs:
    """Everything the decoder is trained and followed on: pictures and sounds with their captions."""

    job: Job
    recipe: CaptionerRecipe
    tokenizer: CaptionTokenizer
    features: dict[str, Tensor]  # "train" | "dev" → (views, n, cells, c)
    pictures: dict[str, list[corpus.Picture]]
    rows: dict[int, list[list[int]]]  # picture that is learned from → its captions' ids
    sounds: SoundPairs

    @classmethod
    def load(cls, job: Job, recipe: CaptionerRecipe) -> Pairs:
        """Load everything from the data folder and the cache."""
        tokenizer = load_tokenizer(job)
        pictures = {s: corpus.pictures(job.data, s) for s in ("train", "dev")}
        learned = chosen_pictures([p.source for p in pictures["train"]], recipe.pictures)
        rows = {i: tokenizer.encode_all(pictures["train"][i].captions) for i in learned}
        return cls(job, recipe, tokenizer, image_features(job), pictures, rows, sound_pairs(job))

    @property
    def steps(self) -> int:
        """Batches of one epoch."""
        return (self.recipe.per_picture * len(self.rows) + self.recipe.sounds) // self.recipe.batch - 1

    def batches(self, epoch: int) -> Iterator[Examples]:
        """Some captions of every picture, and a sample of the sounds."""
        recipe, tokenizer, sounds = self.recipe, self.tokenizer, self.sounds
        rng = random.Random(self.job.seed * 1000 + epoch)
        shown = [(row, i) for i, rows in self.rows.items() for row in rng.sample(rows, recipe.per_picture)]
        heard = [
            (tokenizer.encode(sounds.caption(i, rng)), i)
            for i in rng.choices(range(len(sounds.grids)), k=recipe.sounds)
        ]
        for kind, batch in bucketed({"image": shown, "audio": heard}, recipe.batch, rng):
            tag = tokenizer.start(kind)
            ids = tokenizer.batch([[tag, *row[:MAX_TOKENS], tokenizer.eos] for row, _ in batch])
            where = [i for _, i in batch]
            grids = random_views(self.features["train"], where, rng) if kind == "image" else sounds.grids[where].float()
            yield Examples(kind, ids, grids, torch.tensor([rng.random() >= recipe.removed for _ in batch]))

    def likelihood(self, model: CaptionDecoder, batch: Examples) -> Tensor:
        """Cross-entropy of the captions, with the condition or, where it was removed, without."""
        device = model.null.device
        ids = batch.ids.to(device)
        condition = model.condition({batch.kind: batch.grids.to(device)}, torch.arange(len(ids), device=device))
        logits, _ = model(ids[:, :-1], condition.removed(~batch.keep.to(device)))
        return F.cross_entropy(
            logits.flatten(0, 1),
            ids[:, 1:].flatten(),
            ignore_index=self.tokenizer.pad,
            label_smoothing=self.recipe.smoothing,
        )

    def evaluate(self, model: CaptionDecoder) -> dict[str, float]:
        """How far the training is, on the first development pictures of each set and on the held-out sounds."""
        figures = {}
        for source in corpus.picture_sets(self.job.data):
            rows = [i for i, p in enumerate(self.pictures["dev"]) if p.source == source][:FOLLOWED]
            texts = greedy(model, self.tokenizer, "image", self.features["dev"][0][rows].float())
            figures |= caption_figures(source, texts, [self.pictures["dev"][i] for i in rows])
        heard = greedy(model, self.tokenizer, "audio", self.sounds.dev_grids.float())
        kl = first_token_kl(model, self.tokenizer.start("image"), self.features["dev"][0][rows].float())
        return mean_figures(figures) | figures | sound_figures(self.sounds, heard) | {"first_token_kl": kl}


def chosen_pictures(sources: list[str], wanted: str) -> list[int]:
    """Indices of the pictures of the wanted sets: "flickr8k+coco:0.1" is all of one and a tenth of another, at random
    but always the same; an empty wish is all of them.
    """
    if not wanted:
        return list(range(len(sources)))
    chosen: list[int] = []
    for name, _, share in (piece.partition(":") for piece in wanted.split("+")):
        of_set = [i for i, source in enumerate(sources) if source == name]
        if not of_set:
            known = ", ".join(dict.fromkeys(sources))
            raise CaptionLabError(f"There is no picture set called {name!r}: choose from {known}.")
        try:
            part = float(share or 1)
        except ValueError:
            part = 0.0
        if not 0 < part <= 1:
            raise CaptionLabError(f"{name}:{share} is no share of a set: give a number above 0, at most 1.")
        chosen += sorted(random.Random(0).sample(of_set, max(1, round(part * len(of_set)))))
    return chosen


def train(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    recipe, config = job.configured(RECIPE, CaptionerConfig(vocab=len(tokenizer)))
    pairs = Pairs.load(job, recipe)
    decoder = CaptionDecoder(config)
    weights = job.find("caption-lm")
    warm_start(decoder, load_into(CausalLM(CausalLMConfig(**read_config(weights))), weights))

    def save(model: CaptionDecoder) -> None:
        save_part(job.out, name, model, asdict(config))

    return fit(
        job, name, decoder, pairs.batches, pairs.steps, pairs.likelihood, pairs.evaluate, recipe, "cider", save=save
    )[1]


# ------------------------------------------------------------------------------------------- what captioners share


def bucketed(examples: dict[str, list[tuple]], size: int, rng: random.Random) -> list[tuple[str, list[tuple]]]:
    """Batches of one kind and of like length, in random order: examples are tuples that begin with a token row."""
    batches = []
    for kind, of_kind in examples.items():
        order = sorted(of_kind, key=lambda example: (len(example[0]), rng.random()))
        batches += [(kind, order[s : s + size]) for s in range(0, len(order) - size + 1, size)]
    rng.shuffle(batches)
    return batches


def caption_figures(source: str, texts: list[str], pictures: list[corpus.Picture]) -> dict[str, float]:
    """CIDEr and the share of distinct captions of one data set's pictures."""
    (score,) = cider(CaptionSet([p.path.name for p in pictures], texts, [list(p.captions) for p in pictures]))
    return {f"{source}_cider": score.mean, f"{source}_distinct": len(set(texts)) / len(texts)}


def mean_figures(figures: dict[str, float]) -> dict[str, float]:
    """The mean of each figure over the data sets."""
    kinds = {name: [v for k, v in figures.items() if k.endswith(f"_{name}")] for name in ("cider", "distinct")}
    return {name: sum(values) / len(values) for name, values in kinds.items()}


def sound_figures(sounds: SoundPairs, heard: list[str], every: int = 1) -> dict[str, float]:
    """The share of held-out clips (each `every`-th) whose sound is named, for each data set."""
    right: dict[str, list[bool]] = {}
    for source, classes, text in zip(sounds.dev_source[::every], sounds.dev_heard[::every], heard, strict=True):
        right.setdefault(f"named_{source}", []).append(names_sound(classes[0], text))
    return {name: sum(hits) / len(hits) for name, hits in right.items()}


@torch.no_grad()
def first_token_kl(model: CaptionDecoder, tag: int, grids: Tensor) -> float:
    """KL between p(first token|y) averaged over pictures and p(first token): small if p(x) is the marginal of
    p(x|y).
    """
    condition = model.condition(
        {"image": grids.to(model.null.device)}, torch.arange(len(grids), device=model.null.device)
    )
    ids = torch.full((len(grids), 1), tag, device=model.null.device)
    average = model(ids, condition)[0][:, 0].log_softmax(-1).exp().mean(0).log()
    alone = model(ids[:1], condition[torch.zeros(1, dtype=torch.long)].removed())[0][0, 0].log_softmax(-1)
    return guidance.kl(average, alone).item()


@torch.no_grad()
def greedy(model: CaptionDecoder, tokenizer: CaptionTokenizer, kind: str, grids: Tensor) -> list[str]:
    """Greedy captions, to follow a training."""
    texts = []
    for chunk in grids.to(model.null.device).split(125):
        condition = model.condition({kind: chunk.float()}, torch.arange(len(chunk), device=chunk.device))
        ids = torch.full((len(chunk), 1), tokenizer.start(kind), device=chunk.device)
        past, columns = None, []
        for _ in range(MAX_TOKENS):
            logits, past = model(ids, condition, past)
            ids = logits[:, -1:].argmax(-1)
            columns.append(ids[:, 0])
            if (torch.stack(columns) == tokenizer.eos).any(0).all():
                break
        texts += [tokenizer.decode(row) for row in torch.stack(columns, 1).tolist()]
    return texts
