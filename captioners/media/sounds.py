"""Sound files, a video's sound track, and arrays of samples → Clip, decoded block by block."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from captioners.media.errors import MediaError
from captioners.media.formats import id3_size
from captioners.media.waveform import Clip, check_format, to_clip

if TYPE_CHECKING:
    import av
    import soundfile

BLOCK = 65_536  # samples per channel and block
_DEMUXERS = {"AAC": "aac", "MP4": "mp4", "WebM": "matroska"}  # the others are libsndfile's


def from_bytes(data: bytes, format: str) -> Clip:
    """An encoded sound, or a video with a sound track → Clip."""
    if format in _DEMUXERS:
        return _through_ffmpeg(data, _DEMUXERS[format])
    return _through_libsndfile(data[id3_size(data) :])


def from_samples(rate: Any, samples: Any) -> Clip:
    """`(rate, samples)` as Gradio gives it: integers or floats of shape (n,) or (n, channels) → Clip."""
    if not isinstance(rate, int | float | np.integer | np.floating) or not float(rate).is_integer():
        raise MediaError("The sample rate is not a whole number: give (rate, samples) with a rate such as 16000.")
    array = np.asarray(samples)
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2):
        raise MediaError(
            f"Samples of type {array.dtype} and shape {array.shape} are no sound: give numbers, (n,) or (n, channels)."
        )
    if not array.size:
        raise MediaError("The sound is empty: record or choose one that lasts at least 0.2 s.")
    array = _narrowed(array.reshape(len(array), -1))
    check_format(int(rate), array.shape[1])
    return to_clip((array[i : i + BLOCK] for i in range(0, len(array), BLOCK)), int(rate))


def _narrowed(array: np.ndarray) -> np.ndarray:
    """A plain list of integers becomes int64, whatever the samples' depth was: the smallest that holds them is
    taken.
    """
    if array.dtype != np.int64:
        return array
    for depth in (np.int16, np.int32):
        if np.iinfo(depth).min <= array.min() and array.max() <= np.iinfo(depth).max:
            return array.astype(depth)
    return array


def _through_libsndfile(data: bytes) -> Clip:
    """WAV, FLAC, OGG and MP3.

    The header's count of samples is not believed: reading goes on until there are no more.
    """
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        check_format(file.samplerate, file.channels)
        return to_clip(_blocks(file), file.samplerate)


def _blocks(file: soundfile.SoundFile) -> Iterator[np.ndarray]:
    while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
        yield block


def _through_ffmpeg(data: bytes, demuxer: str) -> Clip:
    """M4A, AAC, WebM and videos. The demuxer is given, so no playlist can make FFmpeg open other files."""
    import av

    with av.open(io.BytesIO(data), format=demuxer, metadata_errors="ignore") as container:
        if not container.streams.audio:
            raise MediaError("This video has no sound track: choose one with sound, or give a picture.")
        frames = container.decode(container.streams.audio[0])
        first = next(frames, None)
        if first is None:
            raise MediaError("The sound track is empty: record or choose one that lasts at least 0.2 s.")
        return to_clip((_block(frame, first.sample_rate) for frame in chain([first], frames)), first.sample_rate)


def _block(frame: av.AudioFrame, rate: int) -> np.ndarray:
    """A decoded frame as (n, channels)."""
    channels = frame.layout.nb_channels
    check_format(frame.sample_rate, channels)
    if frame.sample_rate != rate:
        raise MediaError("The sound changes its sample rate midway: export it again at one rate.")
    samples: np.ndarray = frame.to_ndarray()
    return samples.T if frame.format.is_planar else samples.reshape(-1, channels)
