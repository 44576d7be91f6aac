"""The training data as lists of plain records. The folder layout is the one that assets/MODEL_CARD.md describes."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

TEXT_FILES = {
    "multi30k": ("multi30k.txt",),
    "coco": ("coco_val2017.txt",),
    "audiocaps": ("audiocaps_train.txt",),
    "clotho": ("clotho_train.txt",),
}
MULTI30K_PICTURES = 27_246  # multi30k.txt is five blocks of this many lines; line i of each describes one picture


@dataclass(frozen=True)
class Picture:
    """A picture of Flickr8k with its five captions."""

    path: Path
    split: str
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Clip:
    """A clip of ESC-50 with its class."""

    path: Path
    fold: int
    category: str


def pictures(data: Path, split: str | None = None) -> list[Picture]:
    """Flickr8k, in the file's order."""
    rows = [json.loads(line) for line in (data / "flickr8k/captions.jsonl").read_text().splitlines()]
    found = [Picture(data / "flickr8k/images" / r["image"], r["split"], tuple(r["captions"])) for r in rows]
    return [p for p in found if split in (None, p.split)]


def clips(data: Path) -> list[Clip]:
    """ESC-50, in the file's order."""
    with (data / "esc50/esc50.csv").open() as file:
        return [Clip(data / "esc50/audio" / r["filename"], int(r["fold"]), r["category"]) for r in csv.DictReader(file)]


def lines(path: Path) -> list[str]:
    """The non-empty lines of a text file."""
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def texts(data: Path, domain: str) -> list[str]:
    """One text-only corpus."""
    return [line for name in TEXT_FILES[domain] for line in lines(data / "text" / name)]


def half(data: Path, domain: str, which: int) -> list[str]:
    """Half 0 or 1 of a text corpus: the guiding LM has half 0, the fluency judge half 1.

    Captions of one picture never stand in both halves where the file tells which belong together (Multi30k).
    """
    corpus = texts(data, domain)
    key = (lambda i: i % MULTI30K_PICTURES) if domain == "multi30k" else (lambda i: i // 5)
    return [text for i, text in enumerate(corpus) if key(i) % 2 == which]


def multi30k_groups(data: Path) -> list[list[str]]:
    """The five captions of each Multi30k picture."""
    corpus = texts(data, "multi30k")
    return [corpus[i::MULTI30K_PICTURES] for i in range(MULTI30K_PICTURES)]


def everything(data: Path) -> list[str]:
    """All caption text, for the tokenizer; the development split's captions are left out."""
    flickr = [c for p in pictures(data, "train") for c in p.captions]
    audibility = [t for name in ("audible.txt", "not_audible.txt") for t in lines(data / "audibility" / name)]
    return flickr + [t for d in TEXT_FILES for t in texts(data, d)] + audibility
