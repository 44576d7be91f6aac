"""Bytes of a known format → pixels or samples, here or in a child process with little memory and time.

A header's sizes can lie: 3 kB of OGG or 60 kB of MP4 make their decoders fill 2 GB, a TIFF of 1 MB hides a tile of 1.4
GB. Where only the decoder knows the real size, it runs in a child (0.15 s more), whose death is a MediaError and
nothing worse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np

from captioners.media import pictures, sounds
from captioners.media.errors import MediaError, boundary
from captioners.media.formats import PICTURES
from captioners.media.waveform import Clip
from captioners.resources import IMPORT_ROOT

CHILD_FORMATS = frozenset({"AVIF", "HEIF", "TIFF", "OGG", "AAC", "MP4", "WebM"})
CHILD_MEMORY = 900 * 2**20
CHILD_SECONDS = 30
MAX_SCANS = 100  # of a JPEG decoded here; encoders write about 10, each costs a pass over the whole picture


def decode(data: bytes, format: str) -> np.ndarray | Clip:
    """(h, w, 3) uint8 for a picture, a Clip for sound; anything that goes wrong is a MediaError."""
    many_scans = format == "JPEG" and data.count(b"\xff\xda") > MAX_SCANS
    return _decode_in_child(data, format) if many_scans or format in CHILD_FORMATS else decode_here(data, format)


def decode_here(data: bytes, format: str) -> np.ndarray | Clip:
    """`decode` in this process."""
    with boundary(_damaged(format)):
        return pictures.from_bytes(data, format) if format in PICTURES else sounds.from_bytes(data, format)


def _damaged(format: str) -> str:
    name = {"WEBP": "WebP", "HEIF": "HEIC", "MP4": "MP4, M4A or MOV"}.get(format, format)
    return f"This {name} file is damaged or cut short: export or download it again."


def _decode_in_child(data: bytes, format: str) -> np.ndarray | Clip:
    """Runs `python -m captioners.media FORMAT`, which answers with a line of JSON and the raw numbers."""
    paths = [str(IMPORT_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "captioners.media", format]
    try:
        child = subprocess.run(command, input=data, capture_output=True, env=environment, timeout=CHILD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise MediaError("This file takes too long to decode: export it again, smaller or shorter.") from error
    with boundary(_damaged(format)):
        child.check_returncode()
        head, body = child.stdout.split(b"\n", 1)
        return _unpack(json.loads(head), body)


def pack(result: np.ndarray | Clip) -> bytes:
    """A decoded result as the bytes that a child process answers."""
    numbers, rate, notes = result if isinstance(result, Clip) else (result, 0, ())
    return json.dumps({"shape": numbers.shape, "rate": rate, "notes": notes}).encode() + b"\n" + numbers.tobytes()


def pack_error(error: MediaError) -> bytes:
    """What a child answers when it fails."""
    cause = repr(error.__cause__) if error.__cause__ else None
    return json.dumps({"error": str(error), "cause": cause}).encode() + b"\n"


def _unpack(head: dict[str, Any], body: bytes) -> np.ndarray | Clip:
    if "error" in head:
        raise MediaError(head["error"]) from head["cause"] and RuntimeError(head["cause"])
    numbers = np.frombuffer(body, np.float32 if head["rate"] else np.uint8).reshape(head["shape"]).copy()
    return Clip(numbers, head["rate"], tuple(head["notes"])) if head["rate"] else numbers
