"""Part `cfg`: the small CoCa decoder of method 1, for pictures and sound, with its condition removed now and then.

It starts from the caption LM (same tokens, same layers; cross-attention is new), so that it is fluent from the first step.
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
from captioners.metrics.base import Rows
from captioners.metrics.ngram import cider
from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.language_model import CausalLM, CausalLMConfig
from captioners.profiles.store import load_into, read_config, save_part
from captioners.sound_classes import named
from captioners.text import CaptionTokenizer
from captioners.training import Job, corpus
from captioners.training.features import image_features
from captioners.training.loop import fit
from captioners.training.sound_pairs import sound_pairs
from captioners.training.tokenizer import load_tokenizer

EPOCHS, BATCH, LR = 7, 64, 1e-3
DROP_CONDITION = 0.2  # share of examples whose condition is removed (the paper: 0.5, with far more data)
SMOOTHING = 0.1
MAX_TOKENS = 26
SOUNDS_PER_EPOCH = 4000  # beside the 30,000 picture captions


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
    for mine, theirs in zip(decoder.blocks, lm.blocks, strict=True):
        mine.load_state_dict(theirs.state_dict(), strict=False)
        if mine.cross is not None:
            nn.init.zeros_(mine.cross.out.weight)


def train(name: str, job: Job) -> dict[str, Any]:
    tokenizer = load_tokenizer(job)
    config = CaptionerConfig(vocab=len(tokenizer))
    torch.manual_seed(job.seed)
    decoder = CaptionDecoder(config)
    weights = job.find("caption-lm")
    warm_start(decoder, load_into(CausalLM(CausalLMConfig(**read_config(weights))), weights))

    features = image_features(job)
    pictures = {s: corpus.pictures(job.data, s) for s in ("train", "dev")}
    rows = [tokenizer.encode_all(p.captions) for p in pictures["train"]]
    sounds = sound_pairs(job)
    steps = (sum(map(len, rows)) + SOUNDS_PER_EPOCH) // BATCH - 1

    def batches(epoch: int) -> Iterator[Examples]:
        rng = random.Random(job.seed * 1000 + epoch)
        views = len(features["train"])
        shown = [("image", row, i) for i, some in enumerate(rows) for row in some]
        heard = [("audio", tokenizer.encode(sounds.caption(i, rng)), i) for i in rng.choices(range(len(sounds.grids)), k=SOUNDS_PER_EPOCH)]
        for kind, some in _bucketed(shown, heard, rng)[:steps]:
            tag = tokenizer.start(kind)
            ids = tokenizer.batch([[tag, *row[:MAX_TOKENS], tokenizer.eos] for _, row, _ in some])
            where = torch.tensor([i for _, _, i in some])
            grids = features["train"][torch.tensor([rng.randrange(views) for _ in some]), where] if kind == "image" else sounds.grids[where]
            keep = torch.tensor([rng.random() >= DROP_CONDITION for _ in some])
            yield Examples(kind, ids, grids.float(), keep)

    def loss(model: nn.Module, batch: Examples) -> Tensor:
        device = model.null.device
        ids = batch.ids.to(device)
        condition = model.condition({batch.kind: batch.grids.to(device)}, torch.arange(len(ids), device=device)).removed(
            ~batch.keep.to(device)
        )
        logits, _ = model(ids[:, :-1], condition)
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=tokenizer.pad, label_smoothing=SMOOTHING)

    dev = slice(0, 250)  # enough to follow a training; the whole split is for `evaluate`
    references = [list(p.captions) for p in pictures["dev"][dev]]

    def evaluate(model: CaptionDecoder) -> dict[str, float]:
        shown = greedy(model, tokenizer, "image", features["dev"][0][dev].float())
        heard = greedy(model, tokenizer, "audio", sounds.dev_grids.float())
        right = [named(c[0], text) for c, text in zip(sounds.dev_heard, heard, strict=True)]
        (score,) = cider(Rows([p.path.name for p in pictures["dev"][dev]], shown, references))
        apart = first_token_kl(model, tokenizer.start("image"), features["dev"][0][dev].float())
        return {
            "first_token_kl": apart,
            "cider": score.mean,
            "distinct": len(set(shown)) / len(shown),
            "sounds_named": sum(right) / len(right),
        }

    def save(model: CaptionDecoder) -> None:
        save_part(job.out, name, model, asdict(config))

    _, report = fit(job, name, decoder, batches, steps, loss, evaluate, EPOCHS, LR, "cider", save=save, weight_decay=0.05)
    return report


def _bucketed(shown: list, heard: list, rng: random.Random) -> list[tuple[str, list]]:
    """Batches of one modality and of like length, in random order."""
    found = []
    for some in (shown, heard):
        some.sort(key=lambda example: (len(example[1]), rng.random()))
        found += [(some[s][0], some[s : s + BATCH]) for s in range(0, len(some) - BATCH + 1, BATCH)]
    rng.shuffle(found)
    return found


@torch.no_grad()
def first_token_kl(model: CaptionDecoder, tag: int, grids: Tensor) -> float:
    """KL between p(first token|y) averaged over pictures and p(first token): small if p(x) is the marginal of p(x|y)."""
    condition = model.condition({"image": grids.to(model.null.device)}, torch.arange(len(grids), device=model.null.device))
    ids = torch.full((len(grids), 1), tag, device=model.null.device)
    average = model(ids, condition)[0][:, 0].log_softmax(-1).exp().mean(0).log()
    alone = model(ids[:1], condition[torch.zeros(1, dtype=torch.long)].removed())[0][0, 0].log_softmax(-1)
    return guidance.kl(average, alone).item()


@torch.no_grad()
def greedy(model: CaptionDecoder, tokenizer: CaptionTokenizer, kind: str, grids: Tensor) -> list[str]:
    """Plain greedy captions, to follow a training."""
    texts = []
    for chunk in grids.to(model.null.device).split(125):
        condition = model.condition({kind: chunk}, torch.arange(len(chunk), device=chunk.device))
        ids = torch.full((len(chunk), 1), tokenizer.start(kind), device=chunk.device)
        past, rows = None, []
        for _ in range(MAX_TOKENS):
            logits, past = model(ids, condition, past)
            ids = logits[:, -1:].argmax(-1)
            rows.append(ids)
        texts += [tokenizer.decode(row) for row in torch.cat(rows, 1).tolist()]
    return texts
