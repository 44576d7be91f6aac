"""Parts `caption-lm` and `fluency-judge`: two language models, each on its own half of the caption corpora.

The guiding LM sees packs of captions of one corpus, so that it can be prompted with a few of them; in some packs the
corpora are mixed under the neutral start token. Captions of one sound stand under the tag of sounds' own pairs. The
judge sees single captions, always under the neutral start token.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.language_model import (
    CausalLM,
    CausalLMConfig,
    RecurrentLM,
    RecurrentLMConfig,
    sequence_log_likelihood,
)
from captioners.profiles.store import save_part
from captioners.text import PAIRS, CaptionTokenizer, clean
from captioners.training import Job, Recipe, corpus
from captioners.training.loop import fit
from captioners.training.sound_captions import of_one_sound
from captioners.training.tokenizer import load_tokenizer
from captioners.types import CaptionLabError

PACK = CausalLMConfig().context  # tokens of one training sequence of the guiding LM: about ten captions


@dataclass(frozen=True)
class GuideRecipe(Recipe):
    """How the guiding LM learns."""

    neutral: float = 0.3  # share of captions that stand mixed under <bos>, whatever corpus they are of
    # those that it reads, separated by +: "picture" is captions of our pictures, "sound" those of one sound; "" is all
    corpora: str = ""


GUIDE = GuideRecipe(epochs=2, batch=16, lr=2e-3)
JUDGE = Recipe(epochs=2, batch=64, lr=3e-3)


def captions_of(job: Job, half: int) -> dict[str, list[str]]:
    """{domain: captions} of one half of everything that has text."""
    pictures = [c for p in corpus.pictures(job.data, "train")[half::2] for c in p.captions]
    return {"picture": pictures, **{name: text.half(half) for name, text in corpus.texts(job.data).items()}}


def like_pairs(by_domain: dict[str, list[str]], sound_corpora: Iterable[str]) -> dict[str, list[str]]:
    """The same captions, those of the sound corpora that speak of one sound moved to the domain of sounds' own pairs:
    so are the captions that our clips have, and the tag of the pairs is what the LM is asked under.
    """
    moved: dict[str, list[str]] = {name: list(captions) for name, captions in by_domain.items()}
    for name in sound_corpora:
        moved.setdefault(PAIRS["audio"], []).extend(filter(of_one_sound, by_domain[name]))
        moved[name] = [caption for caption in by_domain[name] if not of_one_sound(caption)]
    return moved


def chosen(by_domain: dict[str, list[str]], corpora: str) -> dict[str, list[str]]:
    """Of the domains those that are named, separated by +, or all."""
    names = corpora.split("+") if corpora else list(by_domain)
    if unknown := [name for name in names if name not in by_domain]:
        raise CaptionLabError(f"There is no corpus called {unknown[0]!r}: choose from {', '.join(by_domain)}.")
    return {name: by_domain[name] for name in names}


def dev_captions(job: Job) -> dict[str, list[str]]:
    """Captions that neither half holds: of each picture set, and of each corpus about sounds."""
    pictures = {
        s: [c for p in corpus.pictures(job.data, "dev", s) for c in p.captions][::2]
        for s in corpus.picture_sets(job.data)
    }
    sounds = {name: text.captions[::2] for name, text in corpus.texts(job.data, "dev").items() if text.groups}
    return pictures | sounds


def train(name: str, job: Job) -> dict[str, Any]:
    return {"caption-lm": _train_guide, "fluency-judge": _train_judge}[name](name, job)


# ------------------------------------------------------------------------------------------------ the guiding LM


def packs(
    tokenizer: CaptionTokenizer, rows: dict[str, list[list[int]]], neutral_share: float, rng: random.Random
) -> list[list[int]]:
    """Captions in random order, one after the other, cut into sequences of PACK + 1 tokens."""
    streams: dict[str, list[int]] = {}
    order = [(domain, i) for domain, of_domain in rows.items() for i in range(len(of_domain))]
    rng.shuffle(order)
    for domain, i in order:
        neutral = rng.random() < neutral_share
        start = tokenizer.bos if neutral else tokenizer.tags[domain]
        streams.setdefault("neutral" if neutral else domain, []).extend([start, *rows[domain][i], tokenizer.eos])
    size = PACK + 1
    sequences = [stream[i : i + size] for stream in streams.values() for i in range(0, len(stream) - size, PACK)]
    rng.shuffle(sequences)
    return sequences


def _train_guide(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    recipe, config = job.configured(GUIDE, CausalLMConfig(vocab=len(tokenizer)))
    of_sounds = [name for name, text in corpus.texts(job.data).items() if text.of == "audio"]
    by_domain = chosen(like_pairs(captions_of(job, 0), of_sounds), recipe.corpora)
    rows = {domain: tokenizer.encode_all(captions) for domain, captions in by_domain.items()}
    size = recipe.batch
    steps = sum(len(r) + 2 for of_domain in rows.values() for r in of_domain) // PACK // size - 8

    def batches(epoch: int) -> Iterator[Tensor]:
        sequences = packs(tokenizer, rows, recipe.neutral, random.Random(job.seed * 1000 + epoch))
        for step in range(steps):
            yield torch.tensor(sequences[step * size : (step + 1) * size])

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids.to(model.positions.device)
        logits, _ = model(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def logits_of(model: CausalLM, ids: Tensor) -> Tensor:
        return model(ids)[0]

    return _fit(name, job, tokenizer, CausalLM(config), asdict(config), batches, steps, loss, logits_of, recipe)


# --------------------------------------------------------------------------------------------- the fluency judge


def bucketed(rows: list[list[int]], size: int, rng: random.Random) -> list[list[list[int]]]:
    """Batches of like length in random order."""
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), rng.random()))
    batches = [[rows[i] for i in order[s : s + size]] for s in range(0, len(order) - size + 1, size)]
    rng.shuffle(batches)
    return batches


def _train_judge(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    rows = [
        [tokenizer.bos, *r, tokenizer.eos]
        for texts in captions_of(job, 1).values()
        for r in tokenizer.encode_all(texts)
    ]
    recipe, config = job.configured(JUDGE, RecurrentLMConfig(vocab=len(tokenizer)))
    size = recipe.batch

    def batches(epoch: int) -> Iterator[Tensor]:
        for batch in bucketed(rows, size, random.Random(job.seed * 1000 + epoch)):
            yield tokenizer.batch(batch)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids.to(model.bias.device)
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=tokenizer.pad)

    def logits_of(model: RecurrentLM, ids: Tensor) -> Tensor:
        return model(ids)

    return _fit(
        name, job, tokenizer, RecurrentLM(config), asdict(config), batches, len(rows) // size, loss, logits_of, recipe
    )


def _fit(
    name: str,
    job: Job,
    tokenizer: CaptionTokenizer,
    model: nn.Module,
    config: dict[str, Any],
    batches: Callable[[int], Iterator[Tensor]],
    steps: int,
    loss: Callable[[nn.Module, Tensor], Tensor],
    logits_of: Callable[[nn.Module, Tensor], Tensor],
    recipe: Recipe,
) -> dict[str, Any]:
    """Train on batches of ids; followed by the perplexity, per word, of captions under the neutral start token."""
    dev = {
        kind: [(t, [tokenizer.bos, *tokenizer.encode(t), tokenizer.eos]) for t in texts]
        for kind, texts in dev_captions(job).items()
    }

    def evaluate(model: nn.Module) -> dict[str, float]:
        nats = {kind: _nats_per_word(model, tokenizer, pairs, logits_of) for kind, pairs in dev.items()}
        of = {
            kind: [nats[k] for k in nats if (k in corpus.picture_sets(job.data)) == (kind == "pictures")]
            for kind in ("pictures", "sounds")
        }
        figures = {f"perplexity_{kind}": math.exp(sum(values) / len(values)) for kind, values in of.items()}
        figures["perplexity"] = (figures["perplexity_pictures"] * figures["perplexity_sounds"]) ** 0.5
        return figures | {f"perplexity_{kind}": math.exp(value) for kind, value in nats.items()}

    def save(model: nn.Module) -> None:
        save_part(job.out, name, model, config)

    return fit(job, name, model, batches, steps, loss, evaluate, recipe, "-perplexity", save=save)[1]


def _nats_per_word(
    model: nn.Module, tokenizer: CaptionTokenizer, pairs: list[tuple[str, list[int]]], logits_of: Callable
) -> float:
    """Mean −log p a word (the end counts as one) of captions, given as text and ids."""
    device = next(model.parameters()).device
    total = words = 0.0
    for start in range(0, len(pairs), 64):
        ids = tokenizer.batch([r for _, r in pairs[start : start + 64]]).to(device)
        total += sequence_log_likelihood(logits_of(model, ids[:, :-1]), ids[:, 1:], tokenizer.pad).sum().item()
        words += sum(len(clean(t).split()) + 1 for t, _ in pairs[start : start + 64])
    return -total / words
