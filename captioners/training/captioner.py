"""Part `cfg`: the small CoCa decoder of method 1, for pictures and sound, with its condition removed now and then.

It starts from the caption LM (same tokens, same layers; cross-attention is new), so that it is fluent from the first step,
and goes on with self-critical rounds (`self_critical.py`) and three short stages (`finishing.py`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners import guidance
from captioners.metrics.base import Rows
from captioners.metrics.ngram import cider
from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.language_model import CausalLM, CausalLMConfig
from captioners.profiles.store import find_part, load_into, read_config, save_part
from captioners.sound_classes import named
from captioners.text import CaptionTokenizer
from captioners.training import Job, corpus, finishing, self_critical
from captioners.training.features import image_features
from captioners.training.loop import fit
from captioners.training.sound_pairs import SoundPairs, sound_pairs
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


@dataclass(frozen=True)
class Pairs:
    """Everything the decoder is trained and followed on: pictures and sounds with their captions."""

    job: Job
    tokenizer: CaptionTokenizer
    features: dict[str, Tensor]  # "train" | "dev" → (views, n, cells, c)
    pictures: dict[str, list[corpus.Picture]]
    rows: list[list[list[int]]]  # picture → its captions' ids
    sounds: SoundPairs

    @classmethod
    def load(cls, job: Job) -> Pairs:
        """From the data folder and the cache."""
        tokenizer = load_tokenizer(job)
        pictures = {s: corpus.pictures(job.data, s) for s in ("train", "dev")}
        rows = [tokenizer.encode_all(p.captions) for p in pictures["train"]]
        return cls(job, tokenizer, image_features(job), pictures, rows, sound_pairs(job))

    @property
    def steps(self) -> int:
        """Batches of one pass."""
        return (sum(map(len, self.rows)) + SOUNDS_PER_EPOCH) // BATCH - 1

    def grids(self, pictures: Tensor, rng: random.Random) -> Tensor:
        """(b, cells, c): a random view of each of these training pictures."""
        views = torch.tensor([rng.randrange(len(self.features["train"])) for _ in pictures])
        return self.features["train"][views, pictures].float()

    def batches(self, epoch: int) -> Iterator[Examples]:
        """One pass over all picture captions and a sample of the sounds."""
        rng, tokenizer, sounds = random.Random(self.job.seed * 1000 + epoch), self.tokenizer, self.sounds
        shown = [("image", row, i) for i, some in enumerate(self.rows) for row in some]
        heard = [("audio", tokenizer.encode(sounds.caption(i, rng)), i) for i in rng.choices(range(len(sounds.grids)), k=SOUNDS_PER_EPOCH)]
        for kind, some in _bucketed(shown, heard, rng)[: self.steps]:
            tag = tokenizer.start(kind)
            ids = tokenizer.batch([[tag, *row[:MAX_TOKENS], tokenizer.eos] for _, row, _ in some])
            where = torch.tensor([i for _, _, i in some])
            grids = self.grids(where, rng) if kind == "image" else sounds.grids[where].float()
            keep = torch.tensor([rng.random() >= DROP_CONDITION for _ in some])
            yield Examples(kind, ids, grids, keep)

    def likelihood(self, model: CaptionDecoder, batch: Examples, smoothing: float = SMOOTHING) -> Tensor:
        """Cross-entropy of the captions, with the condition or, where it was removed, without."""
        device = model.null.device
        ids = batch.ids.to(device)
        condition = model.condition({batch.kind: batch.grids.to(device)}, torch.arange(len(ids), device=device))
        logits, _ = model(ids[:, :-1], condition.removed(~batch.keep.to(device)))
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=self.tokenizer.pad, label_smoothing=smoothing)

    def evaluate(self, model: CaptionDecoder) -> dict[str, float]:
        """How far the training is, on the first of the development pictures; the whole split is for `evaluate`."""
        dev, tokenizer = slice(0, 250), self.tokenizer
        shown = greedy(model, tokenizer, "image", self.features["dev"][0][dev].float())
        heard = greedy(model, tokenizer, "audio", self.sounds.dev_grids.float())
        right = [named(c[0], text) for c, text in zip(self.sounds.dev_heard, heard, strict=True)]
        pictures = self.pictures["dev"][dev]
        (score,) = cider(Rows([p.path.name for p in pictures], shown, [list(p.captions) for p in pictures]))
        return {
            "first_token_kl": first_token_kl(model, tokenizer.start("image"), self.features["dev"][0][dev].float()),
            "cider": score.mean,
            "distinct": len(set(shown)) / len(shown),
            "sounds_named": sum(right) / len(right),
        }


def train(name: str, job: Job) -> dict[str, Any]:
    """First towards likelihood, then self-critically, then the finish; with `--from`, not the first."""
    pairs = Pairs.load(job)
    config = job.sized(CaptionerConfig(vocab=len(pairs.tokenizer)))
    torch.manual_seed(job.seed)
    decoder = CaptionDecoder(config)
    report: dict[str, Any] = {}
    if job.start is None:
        weights = job.find("caption-lm")
        warm_start(decoder, load_into(CausalLM(CausalLMConfig(**read_config(weights))), weights))
        decoder, report["likelihood"] = fit(
            job, f"{name}-likelihood", decoder, pairs.batches, pairs.steps, pairs.likelihood, pairs.evaluate, EPOCHS, LR, "cider"
        )
    else:
        load_into(decoder, find_part(name, job.start))

    def save(model: CaptionDecoder) -> None:
        save_part(job.out, name, model, asdict(config))

    decoder, report["rewards"] = self_critical.fit_rewards(name, replace(job, start=None), decoder, pairs)
    return report | finishing.finish(name, job, decoder, pairs, save)


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
def greedy(model: CaptionDecoder, tokenizer: CaptionTokenizer, kind: str, grids: Tensor, scale: float = 1.0) -> list[str]:
    """Greedy captions, guided where `scale` is not 1: to follow a training, and to teach others."""
    texts = []
    for chunk in grids.to(model.null.device).split(125):
        rows = torch.arange(len(chunk), device=chunk.device)
        condition = model.condition({kind: chunk.float()}, rows)
        if scale != 1:
            condition = condition.joined(condition.removed())
        ids = torch.full((len(condition.mask), 1), tokenizer.start(kind), device=chunk.device)
        past, found = None, []
        for _ in range(MAX_TOKENS):
            logits, past = model(ids, condition, past)
            branches = logits[:, -1].log_softmax(-1).split(len(chunk))
            best = (branches[0] if scale == 1 else guidance.cfg(*branches, scale)).argmax(-1)
            ids = best.repeat(len(branches))[:, None]
            found.append(best)
            if (torch.stack(found) == tokenizer.eos).any(0).all():
                break
        texts += [tokenizer.decode(row) for row in torch.stack(found, 1).tolist()]
    return texts
