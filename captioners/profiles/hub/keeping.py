"""What is made of a model once and kept on disk, in the user's own folder of things that can be made again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORM = 1  # another number when what is made of the same things changes


def kept(name: str, made_of: Iterable[object], make: Callable[[], Tensor]) -> Tensor:
    """What `make` makes, or what it made of the same things before. Where nothing can be written it is made every
    time.
    """
    key = hashlib.sha256("\n".join(map(str, (FORM, *made_of))).encode()).hexdigest()[:24]
    path: Path | None = None
    with suppress(OSError, RuntimeError, KeyError, SafetensorError):  # not there, damaged, or no place for it
        path = cache_folder() / f"{name}-{key}.safetensors"
        return load_file(path)["made"]
    made = make().cpu().contiguous()
    if path is not None:
        with suppress(OSError, SafetensorError):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.partial")  # another process may be writing the same
            save_file({"made": made}, partial)
            partial.replace(path)
    return made


def cache_folder() -> Path:
    """CAPTION_LAB_CACHE, or the system's place for such files; RuntimeError for a user without a home."""
    if chosen := os.environ.get("CAPTION_LAB_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "caption-lab"
