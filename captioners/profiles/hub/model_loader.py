"""Pretrained models by role: fetched at a pinned revision or read from a folder, when first used, and kept. Every
failure is a sentence.

Everything is loaded from a folder: the hub's own cache for a hub name, so that the code is the same for both.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import nn

from captioners.allocator import give_back, lacks_memory
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.fetching import fetch
from captioners.profiles.hub.roles import Source, smaller
from captioners.profiles.hub.weights import check_small_files, check_weights, weights_files
from captioners.profiles.store import file_hash
from captioners.run_record import record_weights

Announce = Callable[[str], None]
Net = TypeVar("Net", bound=nn.Module)
Loaded = TypeVar("Loaded")


def tell(words: str) -> None:
    """To whoever watches the terminal."""
    print(words, file=sys.stderr, flush=True)


class ModelLoader:
    """Role → what was loaded for it. Safe to use from several threads."""

    def __init__(self, sources: dict[str, Source], device: str, announce: Announce = tell, half: bool = True):
        self.sources, self.device, self.announce = sources, device, announce
        self.half = half  # on a GPU; a training keeps full precision and leaves the rest to accelerate
        self.loaded: dict[str, Any] = {}
        self.names: dict[str, str] = {}  # role → what a Result calls its weights
        # one each: whoever needs another model does not wait
        self.locks = {role: threading.RLock() for role in sources}
        self.loading: dict[str, str] = {}  # role → what is said of it while it is on its way

    @property
    def status(self) -> str:
        """What is being loaded right now, for a page to show."""
        return " · ".join(list(self.loading.values()))

    @property
    def dtype(self) -> torch.dtype:
        """Half precision on a GPU."""
        return torch.float16 if self.half and self.device.startswith("cuda") else torch.float32

    @property
    def trains(self) -> bool:
        """Whether a training goes on with what is loaded: it wants gradients, and the nets themselves."""
        return not self.half

    @property
    def replays(self) -> bool:
        """Whether the captioner's steps are recorded and replayed: on a GPU, unless CAPTION_LAB_CUDA_GRAPHS is 0."""
        wanted = not self.trains and os.environ.get("CAPTION_LAB_CUDA_GRAPHS") != "0"
        return wanted and self.device.startswith("cuda") and torch.cuda.is_available()

    def has(self, role: str) -> bool:
        """Whether a model is named for this role."""
        return role in self.sources

    def get(self, role: str, load: Callable[[Path, Source], Loaded]) -> Loaded:
        """The role's model; `load` makes it of its folder once."""
        if role not in self.loaded:
            with self.locks[role]:
                if role not in self.loaded:
                    self.loaded[role] = self._load(role, load)
        self.note(role)
        loaded: Loaded = self.loaded[role]
        return loaded

    def _load(self, role: str, load: Callable[[Path, Source], Any]) -> Any:
        source = self.sources[role]
        words = f"Loading {source.id} as {role}: {_size(role, source)}" + (
            f", licence {source.licence}" if source.licence else ""
        )
        self.loading[role] = words
        self.announce(words)
        path = Path()
        try:
            path = fetch(role, source)
            check_weights(role, path, source)
            self.names[role] = weights_name(source, path)
            return load(path, source)
        except ProfileError:
            raise
        except (
            MemoryError,
            OSError,
            ValueError,
            KeyError,
            RuntimeError,
            AssertionError,
            EOFError,
            UnpicklingError,
            SafetensorError,
        ) as error:
            if lacks_memory(error):
                raise ProfileError(self._too_large(role, source)) from error
            check_small_files(role, path, source)
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ProfileError(
                f"{source.id} cannot be used as {role}: {reason} Name another model with --models FILE."
            ) from error
        finally:
            del self.loading[role]
            gc.collect()
            give_back()  # reading a model leaves as much memory free as it has weights

    def note(self, role: str) -> None:
        """A run uses the role's model."""
        record_weights(role, self.names[role])

    def ready(self, net: Net) -> Net:
        """Frozen, in evaluation mode, on the device."""
        return net.eval().requires_grad_(False).to(self.device)

    def _too_large(self, role: str, source: Source) -> str:
        alternative = smaller(role, source)
        advice = (
            f"name the smaller {alternative.id} ({alternative.size(role)}) for {role} with --models FILE"
            if alternative
            else "choose --device cpu"
        )
        return (
            f"There is not enough memory for {source.id} ({_size(role, source)}): "
            f"{advice}, or use `--profile embedded`."
        )


def _size(role: str, source: Source) -> str:
    """What is known of a model's size before it is loaded."""
    if source.millions:
        return source.size(role)
    files = weights_files(Path(source.id).expanduser(), source) if Path(source.id).expanduser().exists() else []
    return f"{sum(f.stat().st_size for f in files) / 1e6:.1f} MB of weights" if files else "its size is on its hub page"


def weights_name(source: Source, path: Path) -> str:
    """The revision, or the hash of the weights in a folder of one's own."""
    if source.revision:
        return f"{source.id}@{source.revision[:12]}"
    files = weights_files(path, source)
    return f"{path.name} {file_hash(files[0])}" if files else path.name
