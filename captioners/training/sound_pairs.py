"""Sounds with captions, as features: every clip in several versions, and pairs of clips laid over each other."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from captioners.nets.encoders import WINDOW, AudioEncoder
from captioners.profiles.store import file_hash, load_into, read_config
from captioners.training import Job
from captioners.training.sound_captions import captions_by_class, joined
from captioners.training.sounds import Sounds, load_sounds, played

VERSIONS = 4  # a clip as it is, and rolled in time and played at other speeds
FASTEST = 1.1  # and slowest 0.9
MIXES = 2500  # pairs of clips laid over each other


@dataclass(frozen=True)
class Version:
    """How one row of the training is made of the clips."""

    clip: int
    over: int | None = None  # the clip that is laid over it
    shift: int = 0  # samples that it is rolled by
    speed: float = 1.0

    @classmethod
    def drawn(cls, clip: int, over: int | None, rng: random.Random) -> Version:
        """Rolled and played at random."""
        return cls(clip, over, rng.randrange(WINDOW), rng.uniform(2 - FASTEST, FASTEST))

    def made(self, samples: Tensor) -> Tensor:
        """(WINDOW,) of all clips' samples (n, WINDOW) int16; two sounds are equally loud."""
        x = played(samples[self.clip].float() / 32767, self.speed).roll(self.shift)
        if self.over is None:
            return x
        y = samples[self.over].float() / 32767
        return x / x.square().mean().sqrt().clamp(min=1e-3) + y / y.square().mean().sqrt().clamp(min=1e-3)


@dataclass(frozen=True)
class SoundPairs:
    """Grids (n, cells, c) fp16 with the classes that can be heard in each; `dev` rows are single clips that were
    held out.
    """

    grids: Tensor
    heard: list[tuple[str, ...]]
    dev_grids: Tensor
    dev_heard: list[tuple[str, ...]]
    dev_source: list[str]  # their data sets
    captions: dict[str, list[str]]  # class → captions

    def caption(self, row: int, rng: random.Random) -> str:
        """A caption of a training row, drawn anew each time."""
        captions = [rng.choice(self.captions[name]) for name in self.heard[row]]
        rng.shuffle(captions)
        return captions[0] if len(captions) == 1 else joined(*captions, rng)


def sound_pairs(job: Job) -> SoundPairs:
    """Encoded once and cached, by the encoder's weights."""
    weights = job.find("audio-encoder")
    path = job.cache / f"sound-pairs-{file_hash(weights)}{'-final' * job.final}.pt"
    if not path.exists():
        encoder = load_into(AudioEncoder(**read_config(weights)), weights).eval()
        torch.save(_encoded(encoder, load_sounds(job), job), path)
    return SoundPairs(**torch.load(path, weights_only=True), captions=captions_by_class(job))


def _encoded(encoder: AudioEncoder, sounds: Sounds, job: Job) -> dict:
    rng = random.Random(0)
    train = [i for i, held_out in enumerate(sounds.held_out) if job.final or not held_out]
    dev = [i for i, held_out in enumerate(sounds.held_out) if held_out]
    plan = [Version(i) if k == 0 else Version.drawn(i, None, rng) for k in range(VERSIONS) for i in train]
    while len(plan) < VERSIONS * len(train) + MIXES:
        a, b = rng.sample(train, 2)
        if sounds.category[a] != sounds.category[b]:
            plan.append(Version.drawn(a, b, rng))
    heard = [tuple(sounds.category[i] for i in (v.clip, v.over) if i is not None) for v in plan]
    grids = _grids(encoder, sounds.samples, plan, job.quiet)
    dev_grids = _grids(encoder, sounds.samples, [Version(i) for i in dev], job.quiet)
    return {
        "grids": grids,
        "heard": heard,
        "dev_grids": dev_grids,
        "dev_heard": [(sounds.category[i],) for i in dev],
        "dev_source": [sounds.source[i] for i in dev],
    }


@torch.no_grad()
def _grids(encoder: AudioEncoder, samples: Tensor, plan: list[Version], quiet: bool) -> Tensor:
    chunks = tqdm(range(0, len(plan), 32), desc="encode sounds", disable=quiet, mininterval=10)
    return torch.cat([encoder(torch.stack([v.made(samples) for v in plan[s : s + 32]])).grid.half() for s in chunks])
