"""The training data as lists of plain records.

Which sets there are and how they lie is said by `data.toml`, here or in the data folder.
"""

from __future__ import annotations

import csv
import json
import re
import tomllib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from captioners.types import Modality

CAPTIONS_EACH = 5  # captions of one picture or clip in a text corpus that tells which belong together
HELD_OUT = 5  # one of so many recordings with the same labels is held out where clips have no folds


@dataclass(frozen=True)
class Picture:
    """A picture with its captions."""

    path: Path
    split: str
    captions: tuple[str, ...]
    source: str  # the data set
    objects: tuple[str, ...] = ()  # boxed classes, where they are known; the largest first
    size: tuple[int, int] | None = None  # width and height before the file was made, where they are known
    squeezed: bool = False  # the file is a square, the picture was of another shape


@dataclass(frozen=True)
class Clip:
    """A clip with its class."""

    path: Path
    source: str
    category: str
    held_out: bool


@dataclass(frozen=True)
class TextCorpus:
    """Captions without their media."""

    name: str
    of: Modality
    groups: tuple[tuple[str, ...], ...]  # captions of one picture or clip stand together

    @property
    def captions(self) -> list[str]:
        """All captions of all groups."""
        return [caption for group in self.groups for caption in group]

    def half(self, index: int) -> list[str]:
        """Half 0 or 1; captions of one picture or clip are never in both."""
        return [caption for group in self.groups[index::2] for caption in group]


@lru_cache(maxsize=4)
def manifest(data: Path) -> dict[str, Any]:
    """What the data folder holds."""
    own = data / "data.toml"
    return tomllib.loads((own if own.exists() else Path(__file__).with_name("data.toml")).read_text(encoding="utf-8"))


def pictures(data: Path, split: str | None = None, source: str | None = None) -> list[Picture]:
    """All picture sets (or one), in the order of their files."""
    listed = []
    for entry in manifest(data)["pictures"]:
        folder = data / entry["name"]
        for line in (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if split in (None, row["split"]) and source in (None, entry["name"]):
                listed.append(
                    Picture(
                        folder / "images" / row["image"],
                        row["split"],
                        tuple(row["captions"]),
                        entry["name"],
                        tuple(row.get("objects", ())),
                        tuple(row["size"]) if "size" in row else None,
                        entry.get("squeezed", False),
                    )
                )
    return listed


def picture_sets(data: Path) -> list[str]:
    """The names of the picture sets."""
    return [entry["name"] for entry in manifest(data)["pictures"]]


def clips(data: Path) -> list[Clip]:
    """All sound sets, in the order of their tables."""
    return [clip for entry in manifest(data)["sounds"] for clip in _clips(data / entry["name"], entry)]


def _clips(folder: Path, entry: dict[str, Any]) -> Iterator[Clip]:
    renamed = entry.get("classes", {})
    with (folder / entry["table"]).open(encoding="utf-8") as file:
        if entry["table"].endswith(".csv"):
            for row in csv.DictReader(file):
                yield Clip(
                    folder / "audio" / row["filename"],
                    entry["name"],
                    row["category"],
                    int(row["fold"]) == entry["dev_fold"],
                )
            return
        rows = [json.loads(line) for line in file]
    recordings = [next(filter(None, re.match(entry["recording"], row["audio"]).groups())) for row in rows]
    held_out = _a_fifth(zip(recordings, (row["label"] for row in rows), strict=True))
    for row, recording in zip(rows, recordings, strict=True):
        category = renamed.get(row["label"], row["label"].replace(" ", "_"))
        yield Clip(folder / "audio" / row["audio"], entry["name"], category, recording in held_out)


def _a_fifth(labelled: Iterable[tuple[str, str]]) -> set[str]:
    """Of recordings, given with the label of each of their clips, a fifth of those with the same labels.

    Which ones follows from the hashes of their names. Drawn from all at once, a label might be missing on one side.
    """
    labels: dict[str, set[str]] = {}
    for recording, label in labelled:
        labels.setdefault(recording, set()).add(label)
    alike: dict[frozenset[str], list[str]] = {}
    for recording in sorted(labels, key=lambda name: zlib.crc32(name.encode())):
        alike.setdefault(frozenset(labels[recording]), []).append(recording)
    return {name for names in alike.values() for name in names[: round(len(names) / HELD_OUT)]}


def lines(path: Path) -> list[str]:
    """The non-empty lines of a text file."""
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


@lru_cache(maxsize=4)
def texts(data: Path, split: str = "train") -> dict[str, TextCorpus]:
    """The text-only corpora by name."""
    by_name = {}
    for entry in manifest(data)["texts"]:
        names = entry["files"] if split == "train" else entry.get("dev", [])
        groups = tuple(group for name in names for group in _groups(lines(data / name), entry.get("layout", "")))
        by_name[entry["name"]] = TextCorpus(entry["name"], entry["of"], groups)
    return by_name


def _groups(rows: list[str], layout: str) -> Iterator[tuple[str, ...]]:
    if layout == "blocks":
        size = len(rows) // CAPTIONS_EACH
        yield from (tuple(rows[i::size]) for i in range(size))
    else:
        group_size = CAPTIONS_EACH if layout == "runs" else 1
        yield from (tuple(rows[i : i + group_size]) for i in range(0, len(rows), group_size))


def captions_about(data: Path, of: Modality, split: str = "train") -> list[str]:
    """Every caption of that modality: of the pictures themselves, and of the text corpora."""
    own = [c for p in pictures(data, split) for c in p.captions] if of == "image" else []
    return own + [c for corpus in texts(data, split).values() if corpus.of == of for c in corpus.captions]


def sentences(data: Path) -> tuple[list[str], list[str]]:
    """Sentences about what can be heard, and about what cannot."""
    files = manifest(data)["sentences"]
    return lines(data / files["audible"]), lines(data / files["not_audible"])


def everything(data: Path) -> list[str]:
    """All text for the tokenizer; the development split's captions are left out."""
    audible, silent = sentences(data)
    return captions_about(data, "image") + captions_about(data, "audio") + audible + silent


def counts(data: Path) -> dict[str, int]:
    """How much of everything there is, for the records of a training."""
    amounts = {
        f"{name} pictures": sum(p.source == name for p in pictures(data, "train")) for name in picture_sets(data)
    }
    amounts |= {f"{name} captions": len(corpus.captions) for name, corpus in texts(data).items()}
    amounts |= {f"{entry['name']} clips": 0 for entry in manifest(data)["sounds"]}
    for clip in clips(data):
        amounts[f"{clip.source} clips"] += not clip.held_out
    return amounts
