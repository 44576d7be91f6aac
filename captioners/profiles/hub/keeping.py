"""What is made of a model once and kept on disk, in the user's own folder of things that can be made again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
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
    try:
        path = cache_folder() / f"{name}-{key}.safetensors"
        return load_file(path)["made"]
    except (OSError, RuntimeError, KeyError, SafetensorError):
        made = make().cpu().contiguous()
    try:
        path = cache_folder() / f"{name}-{key}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")  # another process may be writing the same
        save_file({"made": made}, partial)
        partial.replace(path)
    except (OSError, RuntimeError, SafetensorError):
        pass
    return made


def cache_folder() -> Path:
    """CAPTION_LAB_CACHE, or the system's place for such files; RuntimeError for a user without a home."""
    if chosen := os.environ.get("CAPTION_LAB_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "caption-lab"
