"""Any upload → Media, or a MediaError that says what to do.

    load_media("dog.heic"), load_media(data), load_media(image), load_media(array), load_media((rate, samples))

Files are decoded in bounded memory whatever they claim to be; torch is imported only when sound must be resampled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from captioners.media import pictures, sounds
from captioners.media.decoding import decode
from captioners.media.errors import MediaError, boundary
from captioners.media.formats import PICTURE_WORDS, SOUND_WORDS, kind_of, sniff
from captioners.media.waveform import AUDIO_RATE, Clip, full_band, to_media_rate
from captioners.types import Media, Modality

__all__ = ["AUDIO_RATE", "MAX_BYTES", "MediaError", "load_media"]

MAX_BYTES = 100 * 2**20


def load_media(source: Any, kind: Modality | None = None, name: str = "") -> Media:
    """A picture or a sound, ready for a method.

    `source` is a path, the bytes of a file, a Pillow image, a picture as an array, or `(rate, samples)`. What a file
    holds is told from its content; `kind` only says which of the two is wanted. `name` is a label for people.
    """
    with boundary("This input cannot be read: give a picture or a sound file."):
        if isinstance(source, str | os.PathLike):
            name = name or Path(source).name
            source = _read(Path(source))
        decoded = _decode(source, kind)
        _check_kind("audio" if isinstance(decoded, Clip) else "image", kind)
        if not isinstance(decoded, Clip):
            return Media("image", decoded, name=name)
        clip = to_media_rate(decoded)
        return Media("audio", clip.samples, clip.rate, name, clip.notes, full_band(decoded))


def _decode(source: Any, kind: Modality | None) -> np.ndarray | Clip:
    match source:
        case bytes() | bytearray() | memoryview():
            return _decode_bytes(bytes(source), kind)
        case Image.Image():
            return pictures.from_image(source)
        case np.ndarray():
            return pictures.from_array(source)
        case (rate, samples):
            return sounds.from_samples(rate, samples)
        case None:
            raise MediaError("There is nothing to caption yet: choose a picture or a sound.")
    raise MediaError(
        f"A {type(source).__name__} is neither picture nor sound: give a path, bytes, "
        "an image, an array or (rate, samples)."
    )


def _decode_bytes(data: bytes, kind: Modality | None) -> np.ndarray | Clip:
    _check_length(len(data))
    format = sniff(data)
    if format == "SVG":
        raise MediaError("An SVG holds drawing commands, not pixels: export it as PNG.")
    _check_kind(kind_of(format), kind)
    return decode(data, format)


def _check_kind(found: Modality | None, wanted: Modality | None) -> None:
    if wanted not in (None, "image", "audio"):
        raise MediaError(f"There is no kind of media called {wanted!r}: choose 'image' or 'audio'.")
    if found is not None and wanted in (None, found):
        return
    accepted = {"image": PICTURE_WORDS, "audio": SOUND_WORDS, None: f"{PICTURE_WORDS}, or {SOUND_WORDS}"}[wanted]
    description = {"image": "a picture", "audio": "a sound", None: "a picture or a sound"}[wanted]
    raise MediaError(f"This is not {description} that can be read: give {accepted}.")


def _check_length(length: int) -> None:
    if not length:
        raise MediaError("The file is empty: choose another one.")
    if length > MAX_BYTES:
        raise MediaError(
            f"The file is larger than {MAX_BYTES // 2**20} MB: make the picture smaller or the sound shorter."
        )


def _read(path: Path) -> bytes:
    with boundary(f"The file {path.name!r} cannot be read: check that it exists and may be opened."):
        if path.is_dir():
            raise MediaError(f"{path.name!r} is a folder: choose one file in it.")
        if not path.is_file():
            raise MediaError(f"There is no file called {path.name!r}: check the path.")
        _check_length(path.stat().st_size)
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
