"""A data set to be captioned: a folder with `captions.jsonl` and `images/` or `audio/`, an ESC-50 folder with
`esc50.csv`, or one file.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, overload

from captioners.media import load_media
from captioners.media.pictures import reshaped
from captioners.sound_classes import SOUND_CLASSES
from captioners.types import CaptionLabError, Media, Modality

Box = tuple[float, float, float, float]  # left, top, width, height as shares of the picture
FOLDERS: dict[Modality, str] = {"image": "images", "audio": "audio"}


@dataclass(frozen=True)
class Item:
    """One picture or clip of a data set."""

    id: str  # its file name
    path: Path
    kind: Modality
    references: tuple[str, ...]
    split: str = ""
    category: str = ""  # of a clip that has a class
    objects: tuple[str, ...] | None = (
        None  # classes boxed in a picture, the one with most pixels first; None if nobody looked
    )
    boxes: Mapping[str, tuple[Box, ...]] = field(default_factory=dict)  # class → its largest boxes
    size: tuple[int, int] | None = None  # width and height of the photograph, which the file may be squeezed out of


class Annotations(TypedDict, total=False):
    """The fields of an `Item` that tell what people boxed in a picture."""

    objects: tuple[str, ...]
    boxes: dict[str, tuple[Box, ...]]
    size: tuple[int, int]


@dataclass(frozen=True)
class Dataset(Sequence[Item]):
    """The chosen items of a data set, which was read once."""

    name: str  # of its folder or file
    items: list[Item]
    split: str | None = None
    known: frozenset[str] = frozenset()  # the ids of all its items, chosen or not

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def kind(self) -> Modality:
        """What its items are; a data set that mixes pictures and sound is refused."""
        if len({item.kind for item in self.items}) > 1:
            raise CaptionLabError(f"{self.name} mixes pictures and sound: put them into two data sets.")
        return self.items[0].kind


def read_dataset(folder: str | Path, split: str | None = None, limit: int | None = None) -> Dataset:
    """The items of one split (all without one), at most the first `limit` of them."""
    folder = Path(folder)
    if folder.is_file():
        items = [Item(folder.name, folder, load_media(folder).kind, ())]
    elif (folder / "captions.jsonl").is_file():
        items = _read_jsonl(folder)
    elif (folder / "esc50.csv").is_file():
        items = _read_esc50(folder)
    else:
        raise CaptionLabError(
            f"{folder} is not a data set: "
            "give a folder that holds captions.jsonl or esc50.csv, or one picture or sound."
        )
    if limit is not None and limit < 1:
        raise CaptionLabError(f"limit = {limit} is not possible: give a whole number from 1.")
    chosen = [item for item in items if split in (None, item.split)]
    if not items:
        raise CaptionLabError(
            f"{folder} lists no items: write one line for each file into captions.jsonl or esc50.csv."
        )
    if not chosen:
        splits = ", ".join(sorted({item.split for item in items})) or "no split"
        raise CaptionLabError(f"{folder} has no items in split {split!r}: choose from {splits}.")
    return Dataset(folder.resolve().name, chosen[:limit], split, frozenset(item.id for item in items))


def load_item(item: Item) -> Media:
    """The picture or clip; a picture whose photograph had another shape is stretched back."""
    media = load_media(item.path, item.kind)
    return replace(media, data=reshaped(media.data, item.size)) if item.size else media


def label_captions(category: str) -> tuple[str, ...]:
    """References for a clip that has only a class: the hand-written ones, or `my_class` → "the sound of my class"."""
    known = SOUND_CLASSES.get(category)
    return known.captions if known else (f"the sound of {category.replace('_', ' ')}",)


def _read_jsonl(folder: Path) -> list[Item]:
    items: dict[str, Item] = {}
    for where, row in _json_lines(folder / "captions.jsonl"):
        kind = next((k for k in FOLDERS if isinstance(row.get(k), str)), None)
        if kind is None:
            raise CaptionLabError(f'{where} names no file: write {{"image": NAME, …}} or {{"audio": NAME, …}}.')
        references = row.get("captions", [])
        if not isinstance(references, list) or not all(isinstance(r, str) for r in references):
            raise CaptionLabError(f"{where} has captions that are not a list of texts: write [TEXT, …].")
        name = row[kind]
        if name in items:
            raise CaptionLabError(f"{where} repeats {name!r}: put all its captions on one line.")
        split, category = (str(row.get(key, "")) for key in ("split", "category"))
        annotations = _read_objects(where, row)
        items[name] = Item(name, folder / FOLDERS[kind] / name, kind, tuple(references), split, category, **annotations)
    return list(items.values())


def _read_objects(where: str, row: dict[str, Any]) -> Annotations:
    """What people boxed in a picture, and its size, where a line tells."""
    annotations: Annotations = {}
    try:
        if "objects" in row:
            annotations["objects"] = tuple(str(name) for name in row["objects"])
        if "boxes" in row:
            annotations["boxes"] = {name: tuple(_box(box) for box in boxes) for name, boxes in row["boxes"].items()}
        if "size" in row:
            width, height = row["size"]
            annotations["size"] = (int(width), int(height))
            if min(annotations["size"]) < 1:
                raise ValueError(row["size"])
    except (ValueError, TypeError, AttributeError):
        shape = '"objects": [CLASS, …], "boxes": {CLASS: [[left, top, width, height], …]}, "size": [width, height]'
        raise CaptionLabError(f"{where} has objects, boxes or a size of another shape: write {shape}.") from None
    return annotations


def _box(values: Sequence[float]) -> Box:
    left, top, width, height = map(float, values)
    return left, top, width, height


def _read_esc50(folder: Path) -> list[Item]:
    with (folder / "esc50.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    try:
        return [
            Item(
                r["filename"],
                folder / "audio" / r["filename"],
                "audio",
                label_captions(r["category"]),
                r["fold"],
                r["category"],
            )
            for r in rows
        ]
    except KeyError as missing:
        raise CaptionLabError(
            f"{folder / 'esc50.csv'} has no column {missing}: give the columns filename, fold, category."
        ) from None


def read_captions(path: str | Path) -> list[tuple[str, str, str]]:
    """Given captions in the file's order: (where it stands, id, caption)."""
    rows = []
    for where, row in _json_lines(Path(path)):
        if not isinstance(row.get("id"), str) or not isinstance(row.get("caption"), str):
            raise CaptionLabError(f'{where} is not a caption: write {{"id": FILE NAME, "caption": TEXT}}.')
        rows.append((where, row["id"], row["caption"]))
    if not rows:
        raise CaptionLabError(f'{path} holds no captions: write {{"id": FILE NAME, "caption": TEXT}} lines.')
    return rows


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a JSON-lines file with its place in words; empty lines are allowed."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        raise CaptionLabError(f"{path} cannot be read: give a UTF-8 file with one JSON object a line.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise CaptionLabError(f"{where} is not a JSON object: mend or remove it.")
        yield where, row
