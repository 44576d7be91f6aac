"""Blocks of samples, as they come from a decoder, → one mono clip of at most 30 s, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from captioners.media.errors import MediaError

AUDIO_RATE = 16_000  # samples per second of every Media that is sound
BAND_RATE = 48_000  # the most that is kept beside it, for models that hear high tones
MIN_RATE, MAX_RATE = 1_000, 1_000_000
MIN_SECONDS, MAX_SECONDS = 0.2, 30
MAX_READ_SECONDS = 15 * 60
MAX_READ_SAMPLES = MAX_READ_SECONDS * 48_000  # at higher rates the limit is memory (170 MB), not time
MAX_CHANNELS = 64

FULL_SCALE = 1 - 2.0**-15
CLIPPED_SHARE = 0.01
SILENT_PEAK = 1e-3  # -60 dBFS
TOO_BIG = 1e15  # beyond this a sample is as good as infinite: sums of squares must fit a float32


class Clip(NamedTuple):
    """Mono float32 samples at the rate of their source, and what the user should know about them."""

    samples: np.ndarray
    rate: int
    notes: tuple[str, ...] = ()


def check_format(rate: int, channels: int) -> None:
    """Refuse what no recording has, before anything is decoded."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise MediaError(
            f"A sound of {rate:.7g} samples per second cannot be used: save it again at 16000, 44100 or 48000."
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise MediaError(f"The sound has {channels} channels: mix it down to at most {MAX_CHANNELS}.")


def to_clip(blocks: Iterable[np.ndarray], rate: int) -> Clip:
    """Blocks of shape (n, channels), floats or integers, → their mean over channels; its loudest 30 s if it is
    longer.
    """
    samples, notes = _gather(blocks, rate)
    seconds = len(samples) / rate
    if seconds < MIN_SECONDS:
        raise MediaError(f"The sound lasts {seconds:.2g} s, which is too short: give at least {MIN_SECONDS} s.")
    window = MAX_SECONDS * rate
    if len(samples) > window:
        start = _loudest(samples, rate, window)
        samples = samples[start : start + window]
        notes.append(
            f"Only the loudest {MAX_SECONDS} s are used: "
            f"from {start / rate:.1f} s to {start / rate + MAX_SECONDS:.1f} s."
        )
    return Clip(samples.copy(), rate, tuple(notes))


def to_media_rate(clip: Clip) -> Clip:
    """The same clip at AUDIO_RATE and within [-1, 1]."""
    samples, rate, notes = clip
    peak = float(np.abs(samples).max())
    if peak > 1:
        samples = samples / np.float32(peak)
    if peak > 1.05:  # less is what a lossy codec adds to a loud recording
        notes = (*notes, f"The sound goes beyond full scale (its peak is {peak:.3g}): it was scaled down.")
    if rate != AUDIO_RATE:
        samples = np.clip(_resample(samples, rate)[: MAX_SECONDS * AUDIO_RATE], -1, 1)
    if np.abs(samples).max() < SILENT_PEAK:
        notes = (*notes, "The clip is (nearly) silent: captions will be guesses.")
    return Clip(samples, AUDIO_RATE, notes)


def full_band(clip: Clip) -> tuple[np.ndarray, int] | None:
    """The samples and their rate with the tones above 8 kHz, up to BAND_RATE; nothing if the file has none."""
    samples, rate, _ = clip
    if rate <= AUDIO_RATE:
        return None
    peak = float(np.abs(samples).max())
    if peak > 1:
        samples = samples / np.float32(peak)
    if rate <= BAND_RATE:
        return samples, rate
    return np.clip(_resample(samples, rate, BAND_RATE)[: MAX_SECONDS * BAND_RATE], -1, 1), BAND_RATE


def as_float(block: np.ndarray) -> np.ndarray:
    """Samples of any number type → a float64 copy; integers are divided by their full scale."""
    if block.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            return block.astype(np.float64)
    half = 2.0 ** (8 * block.dtype.itemsize - 1)
    return block.astype(np.float64) / half - (block.dtype.kind == "u")


def _gather(blocks: Iterable[np.ndarray], rate: int) -> tuple[np.ndarray, list[str]]:
    """All blocks, mixed to mono, up to the reading limit; and notes on what was wrong with them."""
    limit = min(MAX_READ_SECONDS * rate, MAX_READ_SAMPLES)
    mono = np.empty(limit, np.float32)  # untouched pages cost nothing
    filled = total = bad = full = 0
    peak, stopped = 0.0, False
    for raw in blocks:
        stopped = len(raw) > limit - filled
        block = as_float(raw[: limit - filled])
        wrong = ~(np.abs(block) < TOO_BIG)
        block[wrong] = 0
        level = np.abs(block)
        total += block.size
        bad += int(wrong.sum())
        full += int((level >= FULL_SCALE).sum())
        peak = max(peak, float(level.max(initial=0)))
        mono[filled : filled + len(block)] = block.mean(axis=1)
        filled += len(block)
        if stopped:
            break
    if bad * 2 >= total > 0:
        raise MediaError("Most of the samples are not numbers (NaN or infinite): record or export the sound again.")
    notes = []
    if stopped:
        notes.append(f"Only the first {limit / rate / 60:.3g} minutes of the sound were read.")
    if bad:
        notes.append(f"{bad} samples were not numbers (NaN or infinite): they were replaced by silence.")
    if peak <= 1 and full > CLIPPED_SHARE * total:
        notes.append(
            f"The sound is clipped ({full / total:.0%} of its samples are at full scale): captions may suffer."
        )
    return mono[:filled], notes


def _loudest(samples: np.ndarray, rate: int, window: int) -> int:
    """Where the `window` samples with the most energy start, to a tenth of a second."""
    hop = rate // 10
    frames = samples[: len(samples) // hop * hop].reshape(-1, hop)
    energy = np.einsum("fs,fs->f", frames, frames)
    until = np.concatenate([[0.0], np.cumsum(energy, dtype=np.float64)])
    size = window // hop
    start = int(np.argmax(until[size:] - until[:-size])) * hop
    return min(start, len(samples) - window)


def _resample(samples: np.ndarray, rate: int, wanted: int = AUDIO_RATE) -> np.ndarray:
    import torch
    from torchaudio.functional import resample

    old, new = _ratio(rate, wanted)
    with torch.inference_mode():
        resampled: np.ndarray = resample(torch.from_numpy(np.ascontiguousarray(samples)), old, new).numpy().copy()
    return resampled


def _ratio(rate: int, wanted: int = AUDIO_RATE) -> tuple[int, int]:
    """rate : wanted in small numbers. The resampling filter has the size of their product: 44101 Hz would take
    gigabytes, so an odd rate is taken for its best neighbour (less than 0.1 % away, which nobody hears)."""
    slow, fast = sorted((rate, wanted))
    ratio = Fraction(slow, fast).limit_denominator(1000)
    return (ratio.numerator, ratio.denominator) if rate == slow else (ratio.denominator, ratio.numerator)
