"""Parts on disk: one fp16 safetensors file each, with the model's configuration in its header.

`NAME.safetensors` holds weights and configuration, `NAME.metrics.json` what was measured when it was trained.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from captioners.resources import ASSETS, WEIGHTS  # noqa: F401 (whoever reads parts finds both here)
from captioners.types import CaptionLabError

MAX_BYTES = 10 * 1024 * 1024  # a plain push to a Space refuses larger files


class MissingPart(CaptionLabError):
    """A part that is neither shipped nor trained yet."""


class UnfitPart(CaptionLabError, ValueError):
    """A file that does not hold what its name says."""


def save_part(folder: Path, name: str, module: nn.Module, config: dict[str, Any], limit: int | None = MAX_BYTES) -> Path:
    """Write a module's state as fp16; refuses a file that a Space would refuse, unless it is not meant for one."""
    state = {k: _half(v) for k, v in module.state_dict().items() if not k.endswith("num_batches_tracked")}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    partial = path.with_suffix(".partial")
    save_file(state, partial, metadata={"config": json.dumps(config)})
    if limit is not None and partial.stat().st_size > limit:
        partial.unlink()
        raise ValueError(f"{name} is over 10 MB on disk: make the model smaller or split it into two parts")
    return partial.replace(path)


def _half(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    if not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    if not torch.isfinite(half).all():
        raise ValueError("a weight does not fit into fp16")
    return half


def find_part(name: str, *folders: Path) -> Path:
    """The part's file in the first of the folders that has it."""
    for folder in folders:
        path = folder / f"{name}.safetensors"
        if path.exists():
            return path
    raise MissingPart(f"There is no {name}.safetensors in {', '.join(map(str, folders))}: run `python -m captioners train {name}`.")


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a part's header."""
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["config"])
    except (SafetensorError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise UnfitPart(f"{path} is damaged or not one of our parts: train it again.") from error


def read_metrics(path: Path) -> dict[str, Any]:
    """What was measured when the part was trained."""
    return json.loads(path.with_suffix(".metrics.json").read_text(encoding="utf-8"))


def load_into(module: nn.Module, path: Path) -> nn.Module:
    """Fill a module from a part's file; every weight must be there, batch-norm counters aside."""
    with safe_open(path, framework="pt") as file:
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    found = {key: value.shape for key, value in state.items()}
    expected = {key: value.shape for key, value in module.state_dict().items() if not key.endswith("num_batches_tracked")}
    if found != expected:
        wrong = sorted(dict(found.items() ^ expected.items()))
        raise UnfitPart(f"{path.name} does not fit this model: missing, unexpected or of another shape are {', '.join(wrong[:3])}")
    module.load_state_dict(state, strict=False)
    return module


def part_hash(name: str, folder: Path) -> str:
    """The SHA-256 of a part's file, whole."""
    path = folder / ("tokenizer.json" if name == "tokenizer" else f"{name}.safetensors")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=64)
def file_hash(path: Path) -> str:
    """A short name for a weights file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]
