"""Pretrained models by role: fetched at a pinned revision or read from a folder, when first used, and kept. Every failure is a sentence.

Everything is loaded from a folder: the hub's own cache for a hub name, so that the code is the same for both.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from captioners.allocator import lacks_memory
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.roles import Source, smaller
from captioners.profiles.store import file_hash
from captioners.provenance import note

Announce = Callable[[str], None]

# what of a repository is needed: small files, and weights in the first of these forms that it has
SMALL = ["*.json", "*.txt", "*.model"]
WEIGHTS = {
    "open_clip": (["open_clip*.safetensors"], ["open_clip*.bin"]),
    "transformers": (["model*.safetensors"], ["pytorch_model*.bin"]),
    "diffusers": (["*/*.safetensors"], ["*/*.bin"]),
}


def tell(words: str) -> None:
    """To whoever watches the terminal."""
    print(words, file=sys.stderr, flush=True)


def fetch(role: str, source: Source) -> Path:
    """The folder (or our own file) that holds a model; downloads what is missing, or says how to get it."""
    path = Path(source.id).expanduser()
    if path.exists():
        return path / source.subfolder if source.subfolder and (path / source.subfolder).is_dir() else path
    if source.id.startswith((".", "/", "~")) or source.id.count("/") != 1:
        raise ProfileError(f"There is no folder {source.id} for the {role}: give a folder that is there or a name on the hub.")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        for form in WEIGHTS[source.family]:
            small = [f"{source.subfolder}/*.json"] if source.subfolder else SMALL
            patterns = small + ([f"{source.subfolder}/{p.split('/')[-1]}" for p in form] if source.subfolder else form)
            folder = Path(huggingface_hub.snapshot_download(source.id, revision=source.revision, allow_patterns=patterns))
            folder = folder / source.subfolder
            if any(found for p in form for found in folder.glob(p.split("/")[-1])):
                return folder
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ProfileError(_missing(role, source)) from error
    raise ProfileError(_missing(role, source))


def _missing(role: str, source: Source) -> str:
    pinned = f" --revision {source.revision}" if source.revision else ""
    return (
        f"The {role} {source.id} is not on this machine and cannot be fetched: with a network run `hf download {source.id}{pinned}`, "
        f"or name a folder for {role} with --models FILE; `--profile embedded` needs neither."
    )


class Library:
    """Role → what was loaded for it. Safe to use from several threads."""

    def __init__(self, sources: dict[str, Source], device: str, announce: Announce = tell, half: bool = True):
        self.sources, self.device, self.announce = sources, device, announce
        self.half = half  # on a GPU; a training keeps full precision and leaves the rest to accelerate
        self.loaded: dict[str, Any] = {}
        self.names: dict[str, str] = {}  # role → what a Result calls its weights
        self.status = ""  # the last word on what is being loaded, for a page to show
        self.lock = threading.RLock()

    @property
    def dtype(self) -> torch.dtype:
        """Half precision on a GPU."""
        return torch.float16 if self.half and self.device.startswith("cuda") else torch.float32

    def has(self, role: str) -> bool:
        """Whether a model is named for this role."""
        return role in self.sources

    def get(self, role: str, load: Callable[[Path, Source], Any]) -> Any:
        """The role's model; `load` makes it of its folder once."""
        with self.lock:
            if role not in self.loaded:
                source = self.sources[role]
                self._say(f"Loading {source.id} as {role}: {_size(source)}" + (f", licence {source.licence}" if source.licence else ""))
                path = fetch(role, source)
                try:
                    self.loaded[role] = load(path, source)
                except (MemoryError, OSError, ValueError, KeyError, RuntimeError) as error:
                    if lacks_memory(error):
                        raise ProfileError(self._too_large(role, source)) from error
                    reason = " ".join(str(error).split())[:200]
                    raise ProfileError(f"{source.id} cannot be used as {role}: {reason} Name another model with --models FILE.") from error
                self.names[role] = _name(source, path)
                self._say("")
            self.note(role)
            return self.loaded[role]

    def note(self, role: str) -> None:
        """A run uses the role's model."""
        note(role, self.names[role])

    def ready(self, net: nn.Module) -> nn.Module:
        """Frozen, in evaluation mode, on the device."""
        return net.eval().requires_grad_(False).to(self.device)

    def _say(self, words: str) -> None:
        self.status = words
        if words:
            self.announce(words)

    def _too_large(self, role: str, source: Source) -> str:
        less = smaller(role, source)
        advice = f"name the smaller {less.id} ({less.size}) for {role} with --models FILE" if less else "choose --device cpu"
        return f"There is not enough memory for {source.id} ({_size(source)}): {advice}, or use `--profile embedded`."


def _files(path: Path) -> list[Path]:
    """The weights in a folder."""
    return [path] if path.is_file() else sorted([*path.rglob("*.safetensors"), *path.rglob("*.bin")])


def _size(source: Source) -> str:
    """What is known of a model's size before it is loaded."""
    if source.millions:
        return source.size
    files = _files(Path(source.id).expanduser()) if Path(source.id).expanduser().exists() else []
    return f"{sum(f.stat().st_size for f in files) / 1e6:.1f} MB of weights" if files else "its size is on its hub page"


def _name(source: Source, path: Path) -> str:
    """The revision, or the hash of the weights in a folder of one's own."""
    if source.revision:
        return f"{source.id}@{source.revision[:12]}"
    files = _files(path)
    return f"{path.name} {file_hash(files[0])}" if files else path.name
