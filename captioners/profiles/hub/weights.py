"""Files as they arrive: empty, cut off or only pointed to by Git.

Weights are told from their first and last bytes, before they are read; small files are looked at when reading fails.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from captioners.profiles.base import ProfileError
from captioners.profiles.hub.fetching import download_command, forms
from captioners.profiles.hub.roles import Source

POINTER = b"version https://git-lfs"
PICKLE = b"\x80"  # how a .bin begins that torch wrote before it packed them as zip files


def weights_files(path: Path, source: Source) -> list[Path]:
    """The files that hold a model's weights: those in the first form that there are, or all that look like weights."""
    if path.is_file():
        return [path]
    for form in (*forms(source), "*.safetensors", "*.bin", "*.pt"):
        if files := sorted(path.glob(form)):
            return files
    return sorted([*path.rglob("*.safetensors"), *path.rglob("*.bin")])


def check_weights(role: str, path: Path, source: Source) -> None:
    """Refuses files that cannot be what they are called."""
    for file in weights_files(path, source):
        if wrong := damage(file):
            raise ProfileError(f"{file}, weights of the {role}, {wrong}: {remedy(file, source)}.")


def check_small_files(role: str, path: Path, source: Source) -> None:
    """Names the configuration or vocabulary that cannot be read, if one is why a model could not be."""
    for file in sorted(path.glob("*.json")) if path.is_dir() else ():
        if wrong := _small_damage(file):
            raise ProfileError(f"{file}, which belongs to the {role}, {wrong}: {remedy(file, source)}.")


def _small_damage(file: Path) -> str:
    if not file.stat().st_size or _start(file) == POINTER:
        return damage(file)
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return "is cut off or damaged"
    return ""


def damage(file: Path) -> str:
    """What is wrong with a weights file, in words; nothing if it may be read."""
    if not file.stat().st_size:
        return "is empty"
    if _start(file) == POINTER:
        return "is a Git LFS pointer instead of the weights"
    if file.suffix == ".safetensors":
        complete = _told_size(file) == file.stat().st_size
    else:
        complete = file.suffix != ".bin" or _start(file).startswith(PICKLE) or zipfile.is_zipfile(file)
    return "" if complete else "is cut off or damaged"


def _start(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(len(POINTER))


def _told_size(file: Path) -> int:
    """How many bytes a safetensors file says that it has: eight, its header, and the tensors that the header lists."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > file.stat().st_size:
            return -1
        try:
            header = json.loads(opened.read(length))
        except ValueError:
            return -1
    return (
        8
        + length
        + max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    )


def remedy(file: Path, source: Source) -> str:
    """How to get the file whole."""
    own = Path(source.id).expanduser()
    if not own.exists():
        return f"run `{download_command(source)} --force-download`"
    if source.family == "ours":
        return "train it again, or give another --checkpoint"
    return f"run `git lfs pull` in {file.parent}" if _start(file) == POINTER else "copy it again from where it came"
