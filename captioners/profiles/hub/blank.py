"""What stands for no input in p(x), for captioners that were never trained without one.

The mean of some pictures, cell by cell: of what depends on no centred encoder and costs no more than one picture it is
closest to a trained null cell (assets/REPRODUCTION.md, measured by `captioners.evaluation.no_input`). A mixture of 16
pictures is closer, and costs a row for each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from captioners.media import load_media
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.roles import Source
from captioners.resources import EXAMPLES
from captioners.types import Media, Modality

ENDINGS: dict[Modality, tuple[str, ...]] = {
    "image": (".jpg", ".jpeg", ".png", ".webp"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
}
NAMES: dict[Modality, str] = {"image": "picture", "audio": "sound"}
MOST = 64  # references
BATCH = 16


def null_cells(
    kind: Modality, path: Path, source: Source, grids: Callable[[list[Media]], Tensor]
) -> tuple[Tensor | None, str]:
    """The null cells (cells, width) or one (width,), nothing for zeros, and in words what they are ("" if they were
    trained).
    """
    trained, name = path / "null.safetensors", NAMES[kind]
    if trained.is_file():
        return load_file(trained)["null"], ""
    if source.blank == "zeros":
        return None, f"a {name} token of zeros"
    return mean_grid(grids, references(kind, source.blank)), f"the mean of a few {name}s, cell by cell,"


def references(kind: Modality, folder: str = "") -> list[Media]:
    """The pictures or sounds of a folder, ours if none is given."""
    place = Path(folder) if folder else EXAMPLES
    files = [f for f in sorted(place.glob("*")) if f.suffix.lower() in ENDINGS[kind]][:MOST]
    if not files:
        advice = 'give a folder that has some as blank of the captioner, or "zeros".'
        raise ProfileError(f"There are no {NAMES[kind]}s in {place}: {advice}")
    return [load_media(file, kind) for file in files]


@torch.no_grad()
def mean_grid(grids: Callable[[list[Media]], Tensor], media: list[Media]) -> Tensor:
    """(cells, width): the mean over media."""
    chunks = [grids(media[start : start + BATCH]).float() for start in range(0, len(media), BATCH)]
    return torch.cat(chunks).mean(0)
