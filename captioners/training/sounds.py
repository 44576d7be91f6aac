"""Sound clips for training: those of the data folder, each cut or padded to one window, kept in one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio.functional as AF
from torch import Tensor

from captioners.nets.encoders import AUDIO_RATE, WINDOW
from captioners.training import Job, corpus


@dataclass(frozen=True)
class Sounds:
    """Clips of one window each."""

    samples: Tensor  # (n, WINDOW) int16
    category: list[str]
    held_out: list[bool]
    source: list[str]  # the data set


def load_sounds(job: Job) -> Sounds:
    """All clips of the data folder, read once and cached."""
    path = job.cache / "sounds.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        clips = corpus.clips(job.data)
        samples = [torch.from_numpy((_window(_read(clip.path)) * 32767).astype(np.int16)) for clip in clips]
        columns = {name: [getattr(clip, name) for clip in clips] for name in ("category", "held_out", "source")}
        torch.save({"samples": torch.stack(samples), **columns}, path)
    return Sounds(**torch.load(path, weights_only=True))


def played(clip: Tensor, speed: float) -> Tensor:
    """A clip (n,) played at a speed, as long as before: begun again where it ends too early, cut where it is too
    long.
    """
    at = torch.arange(len(clip), dtype=torch.float) * speed
    left = at.long()
    share = at - left
    return clip[left % len(clip)] * (1 - share) + clip[(left + 1) % len(clip)] * share


def _read(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return AF.resample(torch.from_numpy(samples.mean(1)), rate, AUDIO_RATE).numpy()


def _window(samples: np.ndarray) -> np.ndarray:
    """Cut or zero-padded to one window, peak at 0.9 if there is anything to hear."""
    samples = np.pad(samples[:WINDOW], (0, max(0, WINDOW - len(samples))))
    peak = np.abs(samples).max()
    return samples * (0.9 / peak) if peak > 1e-4 else samples
