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

from captioners.types import CaptionLabError

MAX_BYTES = 10 * 1024 * 1024  # a plain push to a Space refuses larger files
HEADER_BYTES = 128 * 1024  # room for a file's header


class MissingPart(CaptionLabError):
    """A part that is neither shipped nor trained yet."""


class UnfitPart(CaptionLabError, ValueError):
    """A file that does not hold what its name says."""


def save_part(
    folder: Path, name: str, module: nn.Module, config: dict[str, Any], limit: int | None = MAX_BYTES
) -> Path:
    """Write a module's state as fp16.

    What a Space would refuse in one file is split: the rest goes to `shards/NAME-2.safetensors` …
    """
    state = {k: _half(v) for k, v in module.state_dict().items() if not k.endswith("num_batches_tracked")}
    shards: list[dict[str, Tensor]] = [{}]
    for key, value in state.items():
        shard_bytes = sum(v.nbytes for v in shards[-1].values())
        if limit is not None and shard_bytes and shard_bytes + value.nbytes > limit - HEADER_BYTES:
            shards.append({})
        shards[-1][key] = value
    path = folder / f"{name}.safetensors"
    header = {"config": json.dumps(config), "shards": str(len(shards))}
    for number, shard in reversed(
        [*enumerate(shards, 1)]
    ):  # the first, which tells how many there are, is written last
        target = _shard(path, number)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        save_file(shard, partial, metadata=header if number == 1 else {})
        partial.replace(target)
    return path


def _shard(path: Path, number: int) -> Path:
    """The file of a part's first, second, … share of weights."""
    return path if number == 1 else path.parent / "shards" / f"{path.stem}-{number}.safetensors"


def part_files(path: Path) -> list[Path]:
    """All files of a part, its first one given."""
    if path.suffix != ".safetensors":
        return [path]
    with safe_open(path, framework="pt") as file:
        count = int((file.metadata() or {}).get("shards", 1))
    return [_shard(path, number) for number in range(1, count + 1)]


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
        path = folder / _file_name(name)
        if path.exists():
            return path
    raise MissingPart(
        f"There is no {_file_name(name)} in {', '.join(map(str, folders))}: run `python -m captioners train {name}`."
    )


def _file_name(part: str) -> str:
    return "tokenizer.json" if part == "tokenizer" else f"{part}.safetensors"


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a part's header."""
    try:
        with safe_open(path, framework="pt") as file:
            config: dict[str, Any] = json.loads(file.metadata()["config"])
            return config
    except (SafetensorError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise UnfitPart(f"{path} is damaged or not one of our parts: train it again.") from error


def read_metrics(path: Path) -> dict[str, Any]:
    """What was measured when the part was trained."""
    metrics: dict[str, Any] = json.loads(path.with_suffix(".metrics.json").read_text(encoding="utf-8"))
    return metrics


def load_into(module: nn.Module, path: Path) -> nn.Module:
    """Fill a module from a part's file; every weight must be there, batch-norm counters aside."""
    state: dict[str, Tensor] = {}
    for shard in part_files(path):
        with safe_open(shard, framework="pt") as file:
            state |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    stored = {key: value.shape for key, value in state.items()}
    expected = {
        key: value.shape for key, value in module.state_dict().items() if not key.endswith("num_batches_tracked")
    }
    if stored != expected:
        wrong = sorted(dict(stored.items() ^ expected.items()))
        raise UnfitPart(
            f"{path.name} does not fit this model: missing, unexpected or of another shape are {', '.join(wrong[:3])}"
        )
    module.load_state_dict(state, strict=False)
    return module


def part_hash(name: str, folder: Path) -> str:
    """The SHA-256 of a part's files."""
    return _digest(folder / _file_name(name))


@lru_cache(maxsize=64)
def file_hash(path: Path) -> str:
    """A short name for the content of a part's files."""
    return _digest(path)[:12]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for part_file in part_files(path):
        with part_file.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
