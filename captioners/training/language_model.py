"""Parts `caption-lm` and `fluency-judge`: two language models, each on its own half of the caption corpora.

The guiding LM sees packs of captions of one corpus, so that it can be prompted with a few of them; in some packs the corpora
are mixed under the neutral start token. The judge sees single captions, always under the neutral start token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.language_model import CausalLM, CausalLMConfig, RecurrentLM, RecurrentLMConfig, sequence_log_likelihood
from captioners.profiles.store import save_part
from captioners.text import CaptionTokenizer, clean
from captioners.training import Job, corpus
from captioners.training.loop import fit
from captioners.training.tokenizer import load_tokenizer

PACK = CausalLMConfig().context  # tokens of one training sequence of the guiding LM: about ten captions
NEUTRAL = 0.3  # share of packs that mix corpora under <bos>
GUIDE = {"epochs": 3, "lr": 2e-3, "batch": 16}
JUDGE = {"epochs": 1, "lr": 3e-3, "batch": 64}


def captions_of(job: Job, which: int) -> dict[str, list[str]]:
    """{domain: captions} of one half of everything that has text."""
    flickr = [c for i, p in enumerate(corpus.pictures(job.data, "train")) if i % 2 == which for c in p.captions]
    return {"flickr8k": flickr, **{d: corpus.half(job.data, d, which) for d in corpus.TEXT_FILES}}


def dev_captions(job: Job) -> dict[str, list[str]]:
    """Captions that neither half holds: of pictures, and of sounds."""
    pictures = [c for p in corpus.pictures(job.data, "dev") for c in p.captions]
    sounds = corpus.lines(job.data / "text/audiocaps_val.txt") + corpus.lines(job.data / "text/clotho_val.txt")
    return {"pictures": pictures[::2], "sounds": sounds[::3]}


def train(name: str, job: Job) -> dict[str, Any]:
    return {"caption-lm": _train_guide, "fluency-judge": _train_judge}[name](name, job)


# ------------------------------------------------------------------------------------------------ the guiding LM


def packs(tokenizer: CaptionTokenizer, rows: dict[str, list[list[int]]], rng: random.Random) -> list[list[int]]:
    """Captions in random order, one after the other, cut into sequences of PACK + 1 tokens."""
    streams: dict[str, list[int]] = {}
    order = [(domain, i) for domain, some in rows.items() for i in range(len(some))]
    rng.shuffle(order)
    for domain, i in order:
        neutral = rng.random() < NEUTRAL
        start = tokenizer.bos if neutral else tokenizer.tags[domain]
        streams.setdefault("neutral" if neutral else domain, []).extend([start, *rows[domain][i], tokenizer.eos])
    size = PACK + 1
    found = [stream[i : i + size] for stream in streams.values() for i in range(0, len(stream) - size, PACK)]
    rng.shuffle(found)
    return found


def _train_guide(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    rows = {d: tokenizer.encode_all(texts) for d, texts in captions_of(job, 0).items()}
    config, size = job.sized(CausalLMConfig(vocab=len(tokenizer))), GUIDE["batch"]
    steps = sum(len(r) + 2 for some in rows.values() for r in some) // PACK // size - 8

    def batches(epoch: int) -> Iterator[Tensor]:
        found = packs(tokenizer, rows, random.Random(job.seed * 1000 + epoch))
        for step in range(steps):
            yield torch.tensor(found[step * size : (step + 1) * size])

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids.to(model.positions.device)
        logits, _ = model(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def logits_of(model: CausalLM, ids: Tensor) -> Tensor:
        return model(ids)[0]

    return _fit(name, job, tokenizer, CausalLM(config), asdict(config), batches, steps, loss, logits_of, GUIDE)


# --------------------------------------------------------------------------------------------- the fluency judge


def bucketed(rows: list[list[int]], size: int, rng: random.Random) -> list[list[list[int]]]:
    """Batches of like length in random order."""
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), rng.random()))
    batches = [[rows[i] for i in order[s : s + size]] for s in range(0, len(order) - size + 1, size)]
    rng.shuffle(batches)
    return batches


def _train_judge(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    rows = [[tokenizer.bos, *r, tokenizer.eos] for texts in captions_of(job, 1).values() for r in tokenizer.encode_all(texts)]
    config, size = job.sized(RecurrentLMConfig(vocab=len(tokenizer))), JUDGE["batch"]

    def batches(epoch: int) -> Iterator[Tensor]:
        for some in bucketed(rows, size, random.Random(job.seed * 1000 + epoch)):
            yield tokenizer.batch(some)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids.to(model.bias.device)
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=tokenizer.pad)

    def logits_of(model: RecurrentLM, ids: Tensor) -> Tensor:
        return model(ids)

    return _fit(name, job, tokenizer, RecurrentLM(config), asdict(config), batches, len(rows) // size, loss, logits_of, JUDGE)


def _fit(name, job, tokenizer, model, config, batches, steps, loss, logits_of, how) -> dict[str, Any]:
    dev = {kind: [(t, [tokenizer.bos, *tokenizer.encode(t), tokenizer.eos]) for t in texts] for kind, texts in dev_captions(job).items()}

    def evaluate(model: nn.Module) -> dict[str, float]:
        found = {}
        device = next(model.parameters()).device
        for kind, pairs in dev.items():
            total = words = 0.0
            for start in range(0, len(pairs), 64):
                ids = tokenizer.batch([r for _, r in pairs[start : start + 64]]).to(device)
                total += sequence_log_likelihood(logits_of(model, ids[:, :-1]), ids[:, 1:], tokenizer.pad).sum().item()
                words += sum(len(clean(t).split()) + 1 for t, _ in pairs[start : start + 64])
            found[f"perplexity_{kind}"] = float(torch.tensor(-total / words).exp())
        return {**found, "perplexity": (found["perplexity_pictures"] * found["perplexity_sounds"]) ** 0.5}

    def save(model: nn.Module) -> None:
        save_part(job.out, name, model, config)

    _, report = fit(
        job, name, model, batches, steps, loss, evaluate, how["epochs"], how["lr"], "-perplexity", save=save, weight_decay=0.05, ema=0.998
    )
    return report
