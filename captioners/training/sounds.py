"""Sound clips for training: those of the data folder, and voices and music beside them, rendered from free Debian
packages.

Voices and music need: asterisk-core-sounds-{en,fr,es,it,ru}-wav, klettres-data, ktuberling-data, espeak-ng (voices);
wesnoth-1.16-music, openttd-openmsx, fluidsynth, timgm6mb-soundfont (music). They are built once into the cache; where
the packages are missing, there are none.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio.functional as AF
from torch import Tensor

from captioners.nets.encoders import AUDIO_RATE, WINDOW
from captioners.training import Job, corpus

EACH = 48  # clips of each kind of voice and music
ASTERISK = Path("/usr/share/asterisk/sounds")
LETTERS, TUBERLING = Path("/usr/share/klettres"), Path("/usr/share/ktuberling/sounds")
WESNOTH = Path("/usr/share/games/wesnoth/1.16/data/core/music")
MIDI = Path("/usr/share/games/openttd/baseset/openmsx")
SOUNDFONT = Path("/usr/share/sounds/sf2/TimGM6mb.sf2")
SENTENCE = "the quick brown fox jumps over the lazy dog while seven children wait for the morning train to the city"


@dataclass(frozen=True)
class Sounds:
    """Clips of one window each."""

    samples: Tensor  # (n, WINDOW) int16
    category: list[str]
    held_out: list[bool]
    source: list[str]  # the data set, or "rendered"


def load_sounds(job: Job) -> Sounds:
    """The data folder's clips and, behind them, rendered voices and music."""
    path = job.cache / "sounds.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        given = [(clip.source, _read(clip.path), clip.category, clip.held_out) for clip in corpus.clips(job.data)]
        rendered = [
            ("rendered", *row) for row in _rendered() if np.abs(row[0]).max() > 0.01
        ]  # a rest in the music is no clip
        source, clips, category, held_out = zip(*given, *rendered, strict=True)
        samples = torch.stack([torch.from_numpy((_window(s) * 32767).astype(np.int16)) for s in clips])
        torch.save({"samples": samples, "category": [*category], "held_out": [*held_out], "source": [*source]}, path)
    return Sounds(**torch.load(path, weights_only=True))


Clip = tuple[np.ndarray, str, bool]  # samples, category, held out


def _rendered() -> Iterator[Clip]:
    """Voices and music, if everything that makes them is installed."""
    tools = all(shutil.which(name) for name in ("espeak-ng", "fluidsynth"))
    if tools and all(path.exists() for path in (ASTERISK, LETTERS, TUBERLING, WESNOTH, MIDI, SOUNDFONT)):
        yield from _voices()
        yield from _music()


def _read(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return AF.resample(torch.from_numpy(samples.mean(1)), rate, AUDIO_RATE).numpy()


def _window(samples: np.ndarray) -> np.ndarray:
    """Cut or zero-padded to one window, peak at 0.9 if there is anything to hear."""
    samples = np.pad(samples[:WINDOW], (0, max(0, WINDOW - len(samples))))
    peak = np.abs(samples).max()
    return samples * (0.9 / peak) if peak > 1e-4 else samples


def _joined(paths: list[Path], rng: np.random.Generator) -> np.ndarray:
    """Short recordings of one speaker, one after the other, with pauses, until a window is full."""
    parts, length = [], 0
    while length < WINDOW:
        part = _read(paths[rng.integers(len(paths))])
        gap = np.zeros(int(rng.uniform(0.05, 0.6) * AUDIO_RATE), np.float32)
        parts += [part, gap]
        length += len(part) + len(gap)
    return np.concatenate(parts)


def _voices() -> Iterator[Clip]:
    """Recorded voices (two phone-prompt speakers and some languages are kept for development) and synthetic ones."""
    rng = np.random.default_rng(0)
    speakers = {
        "en_US_f_Allison": "speech_woman",
        "fr_CA_f_June": "speech_woman",
        "it_IT_m_Carlo": "speech_man",
        "ru_RU_f_IvrvoiceRU": "speech_woman",
    }
    for speaker, category in speakers.items():
        files = sorted((ASTERISK / speaker).glob("*.wav"))
        held = speaker.startswith("ru")
        for i in range(EACH // 3 if category == "speech_woman" else EACH // 2):
            yield _joined(files, rng), category, held or (category == "speech_man" and i % 4 == 0)
    folders = sorted({p.parent for root in (LETTERS, TUBERLING) for p in root.rglob("*.ogg")})
    folders = [f for f in folders if len(list(f.glob("*.ogg"))) >= 10]
    for i in range(EACH * 2):
        folder = folders[i % len(folders)]
        yield _joined(sorted(folder.glob("*.ogg")), rng), "speech", (i % len(folders)) % 5 == 0
    words = SENTENCE.split()
    for i in range(EACH):
        woman = i % 2 == 0
        variant = f"+f{1 + i % 4}" if woman else f"+m{1 + i % 7}"
        language = ("en-us", "en-gb", "de", "fr-fr", "es", "it", "sv", "nl")[i // 2 % 8]
        text = " ".join(rng.permutation(words))
        wav = _run(
            [
                "espeak-ng",
                "-v",
                language + variant,
                "-s",
                str(rng.integers(120, 190)),
                "-p",
                str(rng.integers(30, 70)),
                "-w",
            ],
            text,
        )
        yield wav, "speech_woman" if woman else "speech_man", False


def _run(command: list[str], *after: str) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "out.wav"
        subprocess.run([*command, str(wav), *after], check=True, capture_output=True)
        return _read(wav)


def _music() -> Iterator[Clip]:
    """Recorded game music, rendered scores, and single instruments playing random phrases."""
    rng = np.random.default_rng(1)
    for i, path in enumerate(sorted(WESNOTH.glob("*.ogg"))):
        whole, rate = soundfile.read(path, dtype="float32", always_2d=True)
        for _ in range(2):
            start = int(rng.uniform(0.05, 0.8) * max(1, len(whole) - 6 * rate))
            piece = torch.from_numpy(whole[start : start + 6 * rate].mean(1))
            yield AF.resample(piece, rate, AUDIO_RATE).numpy(), "music", i % 6 == 0
    for i, path in enumerate(sorted(MIDI.glob("*.mid"))):
        sound = _render(path.read_bytes())
        start = int(rng.uniform(0.05, 0.6) * max(1, len(sound) - WINDOW))
        yield sound[start : start + WINDOW], "music", i % 6 == 0
    programs = {
        "piano": (0, 1, 2),
        "guitar": (24, 25, 26, 27),
        "music": (40, 42, 48, 56, 60, 68, 71, 73, 11, 13, 19, 21),
    }
    for category, choices in programs.items():
        for i in range(EACH):
            yield _render(_phrase(choices[i % len(choices)], rng)), category, i % 5 == 0


def _render(midi: bytes) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        score = Path(folder) / "score.mid"
        score.write_bytes(midi)
        return _run(["fluidsynth", "-ni", "-g", "0.8", "-r", str(AUDIO_RATE), "-F"], str(SOUNDFONT), str(score))


def _phrase(program: int, rng: np.random.Generator) -> bytes:
    """A MIDI file of one instrument: random notes of a scale, sometimes chords, six seconds at 120 beats a minute."""
    scale = np.array([0, 2, 4, 5, 7, 9, 11, 12]) + rng.integers(45, 65)
    events, ticks = bytes([0, 0xC0, program]), 0
    while ticks < 12 * 96:
        length = int(rng.choice([24, 48, 96]))
        notes = rng.choice(scale, size=3 if rng.random() < 0.3 else 1, replace=False)
        events += b"".join(bytes([0, 0x90, int(n), int(rng.integers(70, 115))]) for n in notes)
        events += b"".join(bytes([length if k == 0 else 0, 0x80, int(n), 0]) for k, n in enumerate(notes))
        ticks += length
    events += bytes([0, 0xFF, 0x2F, 0])
    return b"MThd" + struct.pack(">IHHH", 6, 0, 1, 96) + b"MTrk" + struct.pack(">I", len(events)) + events
