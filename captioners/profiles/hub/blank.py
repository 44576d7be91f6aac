"""What stands for no input in p(x), for captioners that were never trained without one.

The mean of what a captioner reads of some pictures, in one cell: of all substitutes it is closest to a trained null
cell, with our 14 examples alone too (assets/REPRODUCTION.md, measured by `captioners.evaluation.no_input`). It must be
taken behind the norm that stands at some captioners' entrance: a norm makes a mean as large as a single cell again. The
pictures are read when the captioner is first loaded, and their mean is kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from captioners.media import load_media
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.keeping import kept
from captioners.profiles.hub.model_loader import ModelLoader, weights_name
from captioners.profiles.hub.roles import MOST_REFERENCES, Blank, Source
from captioners.resources import EXAMPLES
from captioners.types import Media, Modality

ENDINGS: dict[Modality, tuple[str, ...]] = {
    "image": (".jpg", ".jpeg", ".png", ".webp"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
}
NAMES: dict[Modality, str] = {"image": "picture", "audio": "sound"}
MIXED = 16  # references of a mixture whose number is not given, if there are so many
BATCH = 16

Grids = Callable[[list[Media]], Tensor]
Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class NoInput:
    """What a captioner sees instead of an input: its null cells, or each of some references."""

    words: str  # what it is; "" if it was trained
    null: Tensor | None = None  # (cells, width) or one (width,); None for zeros
    references: Tensor | None = None  # (K, cells, width), whose probabilities are averaged
    normalised: bool = False  # whether `null` was averaged behind the norm at the captioner's entrance
    mean: Tensor | None = None  # (cells, width): the mean of references, cell by cell

    def as_prefix(self, width: int) -> NoInput:
        """For a captioner that has no null cells, because its input stands before the text: they are its reference, as
        many as an input has.
        """
        null = self.null if self.mean is None else self.mean
        cells = torch.zeros(width) if null is None else null
        given = self.references is not None
        return NoInput(self.words, references=self.references if given else cells.reshape(1, -1, width))


def no_input(
    kind: Modality, path: Path, source: Source, grids: Grids, loader: ModelLoader, norm: Norm | None = None
) -> NoInput:
    """What stands for none: a trained null cell where the folder has one, or what was chosen, or the mean.

    `norm` is what stands at the captioner's entrance, if anything does.
    """
    trained, name, blank = path / "null.safetensors", NAMES[kind], source.blank
    if trained.is_file():
        return NoInput("", load_file(trained)["null"])
    if blank.form == "zeros":
        return NoInput(f"a {name} token of zeros")
    if blank.form == "mixture":
        cells = read_grids(grids, mixed_references(kind, blank))
        return NoInput(f"each of {len(cells)} reference {name}s, averaged as probabilities,", references=cells)
    media = references(kind, blank.folder)

    def make() -> Tensor:
        cells = read_grids(grids, media).float()
        return (norm(cells) if norm else cells).mean(0)

    made_of = (weights_name(source, path), loader.dtype, norm is not None, *(m.hash for m in media))
    mean = kept("no-input", made_of, make)
    return NoInput(f"the mean of {len(media)} {name}s", mean.mean(0), normalised=norm is not None, mean=mean)


def references(kind: Modality, folder: str = "") -> list[Media]:
    """The pictures or sounds of a folder, ours if none is given."""
    place = Path(folder).expanduser() if folder else EXAMPLES
    files = [f for f in sorted(place.glob("*")) if f.suffix.lower() in ENDINGS[kind]][:MOST_REFERENCES]
    if not files:
        advice = 'give a folder that has some as blank of the captioner, or "zeros" or "mixture".'
        raise ProfileError(f"There are no {NAMES[kind]}s in {place}: {advice}")
    return [load_media(file, kind) for file in files]


def mixed_references(kind: Modality, blank: Blank) -> list[Media]:
    """As many as a mixture has."""
    found = references(kind, blank.folder)
    if len(found) < blank.count:
        raise ProfileError(
            f"A mixture of {blank.count} {NAMES[kind]}s is asked for and {blank.folder or 'our examples'} has "
            f"{len(found)}: give blank a smaller number or a larger folder (mixture:K:FOLDER)."
        )
    return found[: blank.count or MIXED]


@torch.no_grad()
def read_grids(grids: Grids, media: list[Media]) -> Tensor:
    """(n, cells, width): the encoder's grids, a few at a time."""
    return torch.cat([grids(media[start : start + BATCH]) for start in range(0, len(media), BATCH)])
