"""Parts `image-ranker`, `image-judge`, `audio-ranker`, `audio-judge`: text–media matchers, trained apart.

First the text tower learns which sentences mean the same (paraphrases of one Multi30k picture, MiniLM as a teacher), then
both towers meet on pairs. An audio matcher starts from the text tower of the image matcher of the same role.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.metrics.recall import recall_at
from captioners.nets.matcher import MatcherConfig, MatcherNet, TextTower, contrastive_loss
from captioners.profiles.store import load_into, save_part
from captioners.sound_classes import ESC50, MUSIC, SOUND_CLASSES, VOICES
from captioners.text import CaptionTokenizer
from captioners.training import Job, corpus, teacher
from captioners.training.features import image_features
from captioners.training.loop import fit
from captioners.training.sound_pairs import SoundPairs, sound_pairs
from captioners.training.tokenizer import load_tokenizer

ROLES = {
    "ranker": MatcherConfig(dim=256, layers=3, heads=4, embed=256, pooling="mean"),
    "judge": MatcherConfig(dim=320, layers=2, heads=5, embed=320, media_width=400, pooling="attention", dropout=0.2, word_dropout=0.1),
}
MAX_TOKENS = 28  # of a caption in training; 99 % are shorter
PRETRAIN = {"epochs": 3, "lr": 1e-3, "batch": 256}
SOUND_PAIRS = {"epochs": 3, "lr": 5e-4, "batch": 128}
# a ranker is asked about beginnings of sentences, and about sentences that are of no sound at all (method 2)
BEGINNINGS = {"ranker": 0.5, "judge": 0.0}  # share of captions that are cut off
STRANGERS = {"ranker": 128, "judge": 0}  # captions of pictures beside each batch, cut off as often
CLASSES = list(SOUND_CLASSES)
PAIRS = {"epochs": 12, "lr": 6e-4, "batch": 256, "captions": 2, "paraphrases": 0.3}


def train(name: str, job: Job) -> dict[str, Any]:
    kind, role = name.split("-")
    return {"image": _train_image, "audio": _train_audio}[kind](name, role, job)


# ------------------------------------------------------------------------------------------------- text in chunks


def embed_rows(tower: nn.Module, tokenizer: CaptionTokenizer, rows: list[list[int]], chunk: int = 128) -> Tensor:
    """Unit vectors of token rows, computed in chunks of like length: half the padding of one big batch."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    device = next(tower.parameters()).device
    parts = [tower(tokenizer.batch([rows[i][:MAX_TOKENS] for i in order[s : s + chunk]]).to(device)) for s in range(0, len(order), chunk)]
    back = torch.empty(len(rows), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(rows))
    return torch.cat(parts)[back.to(device)]


# --------------------------------------------------------------------------------- stage 1: what sentences mean


class TextPretraining(nn.Module):
    """A text tower with a linear map to the teacher's space."""

    def __init__(self, config: MatcherConfig):
        super().__init__()
        self.tower = TextTower(config)
        self.to_teacher = nn.Linear(config.embed, teacher.DIM)
        self.log_scale = nn.Parameter(torch.tensor(3.0))


@dataclass(frozen=True)
class PretrainingData:
    """Token rows of the paraphrase groups and of the teacher's sentences."""

    groups: list[list[list[int]]]
    asked: list[list[int]]
    answers: Tensor  # (n, 384)
    dev: list[list[list[int]]]  # Flickr8k dev pictures' captions


def _pretraining_data(job: Job, tokenizer: CaptionTokenizer) -> PretrainingData:
    groups = corpus.multi30k_groups(job.data)
    rows = tokenizer.encode_all(t for g in groups for t in g)
    asked, answers = teacher.vectors(job)
    dev = [tokenizer.encode_all(p.captions) for p in corpus.pictures(job.data, "dev")]
    return PretrainingData([rows[i : i + 5] for i in range(0, len(rows), 5)], tokenizer.encode_all(asked), answers, dev)


def pretrain_text(name: str, job: Job, config: MatcherConfig, tokenizer: CaptionTokenizer) -> tuple[TextTower, dict[str, Any]]:
    """The text tower after stage 1."""
    data, size = _pretraining_data(job, tokenizer), PRETRAIN["batch"]
    steps = len(data.groups) // size

    def batches(epoch: int) -> Iterator[tuple[list, list, Tensor]]:
        rng = torch.Generator().manual_seed(job.seed * 1000 + epoch)
        order, asked = torch.randperm(len(data.groups), generator=rng), torch.randperm(len(data.asked), generator=rng)
        for step in range(steps):
            groups = [data.groups[i] for i in order[step * size : (step + 1) * size].tolist()]
            picks = torch.rand(len(groups), 5, generator=rng).argsort(1)[:, :2].tolist()
            pairs = [g[a] for g, (a, _) in zip(groups, picks, strict=True)] + [g[b] for g, (_, b) in zip(groups, picks, strict=True)]
            some = asked[torch.arange(step * size, (step + 1) * size) % len(asked)]
            yield pairs, [data.asked[i] for i in some.tolist()], data.answers[some]

    def loss(model: TextPretraining, batch) -> Tensor:
        pairs, asked, answers = batch
        vectors = embed_rows(model.tower, tokenizer, pairs + asked)
        a, b, c = vectors.split([size, size, size])
        taught = F.cosine_similarity(model.to_teacher(c), answers.to(c.device)).mean()
        return contrastive_loss(a, b, model.log_scale.exp().clamp(max=100)) + 2 * (1 - taught)

    def evaluate(model: TextPretraining) -> dict[str, float]:
        first = embed_rows(model.tower, tokenizer, [g[0] for g in data.dev])
        second = embed_rows(model.tower, tokenizer, [g[1] for g in data.dev])
        return {"paraphrase_recall@1": recall_at(first @ second.T, list(range(len(first))), 1)}

    model, report = fit(
        job,
        f"{name}-text",
        TextPretraining(config),
        batches,
        steps,
        loss,
        evaluate,
        PRETRAIN["epochs"],
        PRETRAIN["lr"],
        "paraphrase_recall@1",
    )
    return model.tower, report


# ------------------------------------------------------------------------------------------------ stage 2: pairs


def _train_image(name: str, role: str, job: Job) -> dict[str, Any]:
    config, tokenizer = job.sized(ROLES[role]), load_tokenizer(job)
    tower, pretraining = pretrain_text(name, job, config, tokenizer)
    torch.manual_seed(job.seed)
    model = MatcherNet(config)
    model.text.load_state_dict(tower.state_dict())
    features = image_features(job)
    captions = {s: [tokenizer.encode_all(p.captions) for p in corpus.pictures(job.data, s)] for s in ("train", "dev")}
    views, count = features["train"].shape[:2]
    size, each = PAIRS["batch"], PAIRS["captions"]
    steps = count // size

    def batches(epoch: int) -> Iterator[tuple[Tensor, list]]:
        rng = torch.Generator().manual_seed(job.seed * 1000 + 500 + epoch)
        order = torch.randperm(count, generator=rng)
        for step in range(steps):
            chosen = order[step * size : (step + 1) * size]
            view = torch.randint(views, (size,), generator=rng)
            picks = torch.rand(size, 5, generator=rng).argsort(1)[:, :each].T
            yield (
                features["train"][view, chosen].float(),
                [captions["train"][i][k] for row in picks for i, k in zip(chosen.tolist(), row.tolist(), strict=True)],
            )

    def loss(model: MatcherNet, batch) -> Tensor:
        grids, rows = batch
        media = model.media(grids.to(model.log_scale.device))
        text = embed_rows(model.text, tokenizer, rows)
        same = torch.eye(size, device=text.device).repeat(each, 1)
        paraphrases = contrastive_loss(*text.split(size), model.scale)  # two captions of one picture mean the same
        return contrastive_loss(text, media, model.scale, same) + PAIRS["paraphrases"] * paraphrases

    def evaluate(model: MatcherNet) -> dict[str, float]:
        return measure(model, tokenizer, features["dev"][0].float(), captions["dev"])

    def save(model: MatcherNet) -> None:
        save_matcher(job, name, model, config, evaluate(model))

    _, report = fit(
        job, name, model, batches, steps, loss, evaluate, PAIRS["epochs"], PAIRS["lr"], "recall@10", save=save, weight_decay=0.2
    )
    return {**report, "text_pretraining": pretraining}


def _train_audio(name: str, role: str, job: Job) -> dict[str, Any]:
    """Captions belong to classes, so a clip matches every caption of what is heard in it; half of two sounds, half a match."""
    config, tokenizer, sounds = job.sized(ROLES[role]), load_tokenizer(job), sound_pairs(job)
    torch.manual_seed(job.seed)
    model = MatcherNet(config)
    weights = job.find(f"image-{role}")
    model.text.load_state_dict(load_into(MatcherNet(config), weights).text.state_dict())
    heard = torch.zeros(len(sounds.heard), len(SOUND_CLASSES))
    for row, names in enumerate(sounds.heard):
        heard[row, [CLASSES.index(n) for n in names]] = 1
    size = SOUND_PAIRS["batch"]
    steps = len(heard) // size
    unheard = [c for p in corpus.pictures(job.data, "train") for c in p.captions] if STRANGERS[role] else []

    def batches(epoch: int) -> Iterator[tuple[Tensor, list, Tensor]]:
        rng = random.Random(job.seed * 1000 + epoch)
        order = rng.sample(range(len(heard)), len(heard))
        for step in range(steps):
            rows = order[step * size : (step + 1) * size]
            texts = [sounds.caption(i, rng) for i in rows] + rng.sample(unheard, STRANGERS[role])
            ids = tokenizer.encode_all(texts)
            if BEGINNINGS[role]:
                ids = [r[: rng.randint(1, len(r))] if rng.random() < BEGINNINGS[role] else r for r in ids]
            yield sounds.grids[rows].float(), ids, heard[rows]

    def loss(model: MatcherNet, batch) -> Tensor:
        grids, rows, labels = batch
        device = model.log_scale.device
        both = labels @ labels.T
        union = labels.sum(1)[:, None] + labels.sum(1) - both
        text = embed_rows(model.text, tokenizer, rows)
        return contrastive_loss(text[:size], model.media(grids.to(device)), model.scale, (both / union).to(device), text[size:])

    def evaluate(model: MatcherNet) -> dict[str, float]:
        return measure_sounds(model, tokenizer, sounds)

    def save(model: MatcherNet) -> None:
        save_matcher(job, name, model, config, evaluate(model))

    how = SOUND_PAIRS
    _, report = fit(job, name, model, batches, steps, loss, evaluate, how["epochs"], how["lr"], "esc50_top1", save=save, weight_decay=0.1)
    return {**report, "folds": "1-4" if job.final else "1-3"}


def measure_sounds(model: MatcherNet, tokenizer: CaptionTokenizer, sounds: SoundPairs) -> dict[str, float]:
    """On the held-out fold: top-1 by the nearest of 50 class prompts, voices and music found among all, the calibration."""
    device = model.log_scale.device
    prompts = embed_rows(model.text, tokenizer, [tokenizer.encode(s.captions[0]) for s in SOUND_CLASSES.values()])
    media = torch.cat([model.media(chunk.float().to(device)) for chunk in sounds.dev_grids.split(100)])
    similarity, truth = (media @ prompts.T).cpu(), [names[0] for names in sounds.dev_heard]
    scores = 2.5 * similarity.clamp(min=0)
    right = torch.tensor([[name == t for name in CLASSES] for t in truth])
    esc = [i for i, t in enumerate(truth) if t in ESC50]
    among = similarity[esc][:, [CLASSES.index(c) for c in ESC50]].argmax(1).tolist()
    found = {"esc50_top1": sum(ESC50[g] == truth[i] for g, i in zip(among, esc, strict=True)) / len(esc)}
    for key, kin in (("voices_named", VOICES), ("music_named", MUSIC)):
        rows = [i for i, t in enumerate(truth) if t in kin]
        found[key] = sum(CLASSES[similarity[i].argmax()] in kin for i in rows) / len(rows)
    return found | {"human": scores[right].mean().item(), "random": scores[~right].mean().item()}


def save_matcher(job: Job, name: str, model: MatcherNet, config: MatcherConfig, measured: dict[str, float]) -> None:
    """Weights, with where random and human captions lie on this matcher's scale."""
    save_part(job.out, name, model, {**asdict(config), "calibration": {k: measured[k] for k in ("random", "human")}})


def measure(model: MatcherNet, tokenizer: CaptionTokenizer, grids: Tensor, captions: list[list[list[int]]]) -> dict[str, float]:
    """Caption→media recall and the calibration: the mean CLIPScore of human captions and of other media's captions."""
    device = model.log_scale.device
    media = torch.cat([model.media(chunk.to(device)) for chunk in grids.split(100)])
    text = embed_rows(model.text, tokenizer, [row for rows in captions for row in rows])
    owner = [i for i, rows in enumerate(captions) for _ in rows]
    similarity = text @ media.T
    scores = 2.5 * similarity.clamp(min=0)
    human = scores[torch.arange(len(owner)), torch.tensor(owner)]
    return {f"recall@{k}": recall_at(similarity, owner, k) for k in (1, 5, 10)} | {
        "human": human.mean().item(),
        "random": ((scores.sum() - human.sum()) / (scores.numel() - len(human))).item(),
    }
