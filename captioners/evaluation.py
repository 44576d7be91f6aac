"""Captions of a whole data set, measured: read it, caption it with some methods (or take given captions), score.

A data set is a folder with `captions.jsonl` and `images/` or `audio/`, or an ESC-50 folder with `esc50.csv`. What
cannot be read is listed under `failed` with its reason; everything else counts.
"""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from captioners import registry
from captioners.lab import Panel, choose_methods, find_judges
from captioners.media import load_media
from captioners.metrics.base import Rows, measure
from captioners.metrics.matching import RememberedTexts, embed_media
from captioners.profiles.base import Matcher, Profile
from captioners.registry import Captioner
from captioners.sound_classes import SOUND_CLASSES
from captioners.types import CaptionLabError, Media, Modality, Settings, to_json

Progress = Callable[[int, int], None]  # captions done, captions in all
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


# ---------------------------------------------------------------------------------------------------- the data set


def read_dataset(folder: str | Path, split: str | None = None, limit: int | None = None) -> list[Item]:
    """The items of one split (all without one), at most the first `limit` of them."""
    folder = Path(folder)
    if (folder / "captions.jsonl").is_file():
        items = _read_jsonl(folder)
    elif (folder / "esc50.csv").is_file():
        items = _read_esc50(folder)
    else:
        raise CaptionLabError(f"{folder} is not a data set: give a folder that holds captions.jsonl or esc50.csv.")
    if limit is not None and limit < 1:
        raise CaptionLabError(f"limit = {limit} is not possible: give a whole number from 1.")
    chosen = [item for item in items if split in (None, item.split)]
    if not items:
        raise CaptionLabError(f"{folder} lists no items: write one line for each file into captions.jsonl or esc50.csv.")
    if not chosen:
        splits = ", ".join(sorted({item.split for item in items})) or "no split"
        raise CaptionLabError(f"{folder} has no items in split {split!r}: choose from {splits}.")
    return chosen[:limit]


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
        items[name] = Item(name, folder / FOLDERS[kind] / name, kind, tuple(references), str(row.get("split", "")))
    return list(items.values())


def _read_esc50(folder: Path) -> list[Item]:
    with (folder / "esc50.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    try:
        return [
            Item(r["filename"], folder / "audio" / r["filename"], "audio", label_captions(r["category"]), r["fold"], r["category"])
            for r in rows
        ]
    except KeyError as missing:
        raise CaptionLabError(f"{folder / 'esc50.csv'} has no column {missing}: give the columns filename, fold, category.") from None


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


# ------------------------------------------------------------------------------------------------ captioning a set


@dataclass
class Gathered:
    """What one pass over the media gave, by item id."""

    captions: list[dict[str, str]]  # of each run: id → caption
    seconds: list[float]  # of each run: time spent
    vectors: dict[str, np.ndarray] = field(default_factory=dict)  # the judging matcher's
    failed: dict[str, str] = field(default_factory=dict)  # id → reason


def gather_locally(
    items: Sequence[Item],
    runs: Sequence[tuple[Captioner, Settings]],
    matcher: Matcher | None,
    batch_size: int = 32,
    progress: Progress = lambda done, total: None,
) -> Gathered:
    """Every item is decoded once, embedded for the judge and captioned in every run, a batch at a time."""
    gathered = Gathered([{} for _ in runs], [0.0] * len(runs))
    done, total = 0, len(items) * max(len(runs), 1)
    for start in range(0, len(items), batch_size):
        batch = items[start : start + batch_size]
        media = _decode(batch, gathered.failed)
        if media and matcher:
            gathered.vectors.update(zip(media, embed_media(matcher, list(media.values())), strict=True))
        for run, (method, settings) in enumerate(runs):
            started = time.perf_counter()
            results = method.caption_batch(list(media.values()), [settings] * len(media))
            gathered.seconds[run] += time.perf_counter() - started
            gathered.captions[run].update({id: result.caption for id, result in zip(media, results, strict=True)})
            progress(done := done + len(batch), total)
        if not runs:
            progress(done := done + len(batch), total)
    return gathered


ENGINES = {"local": gather_locally}


def _decode(items: Sequence[Item], failed: dict[str, str]) -> dict[str, Media]:
    """On several threads, because some formats are decoded in a process of their own."""

    def read(item: Item) -> Media | CaptionLabError:
        try:
            return load_media(item.path, item.kind)
        except CaptionLabError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = {item.id: outcome for item, outcome in zip(items, pool.map(read, items), strict=True)}
    failed.update({name: str(o) for name, o in outcomes.items() if isinstance(o, CaptionLabError)})
    return {name: o for name, o in outcomes.items() if isinstance(o, Media)}


# ------------------------------------------------------------------------------------------------------ evaluation


def evaluate(
    profile: Profile,
    folder: str | Path,
    methods: list[str] | None = None,
    settings: Mapping[str, Sequence[Settings]] = {},
    split: str | None = None,
    limit: int | None = None,
    captions_file: str | Path | None = None,
    batch_size: int = 32,
    engine: str = "local",
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Caption a data set with some methods (all that can, without any named) or take given captions, and measure.

    A method has one run for each of its `settings`, or one with its own defaults.
    Returns `{"runs": [{"method", "settings", "n", "metrics", "items", …}]}`, ready for `json.dump`.
    """
    items = read_dataset(folder, split, limit)
    kind = items[0].kind
    if any(item.kind != kind for item in items):
        raise CaptionLabError(f"{folder} mixes pictures and sound: put them into two data sets.")
    panel = find_judges(profile.judges, kind)
    if panel.matcher:
        panel = replace(panel, matcher=RememberedTexts(panel.matcher))

    if captions_file is not None:
        given, notes = _match_given(read_captions(captions_file), items, folder)
        panel = replace(panel, notes=panel.notes + notes)
        chosen = list({item.id: item for item, _ in given}.values()) if panel.matcher else []
        gathered = ENGINES[engine](chosen, [], panel.matcher, batch_size, progress)
        pairs = [(item, caption) for item, caption in given if item.id not in gathered.failed]
        runs = [_run("given", pairs, {}, 0.0, gathered, panel, profile.name)]
    else:
        planned = [(s.id, values) for s in choose_methods(kind, methods) for values in settings.get(s.id) or [s.settings()]]
        loaded = {name: registry.load(name, profile) for name, _ in planned}
        gathered = ENGINES[engine](items, [(loaded[name], values) for name, values in planned], panel.matcher, batch_size, progress)
        runs = []
        for (name, values), captions, seconds in zip(planned, gathered.captions, gathered.seconds, strict=True):
            pairs = [(item, captions[item.id]) for item in items if item.id in captions]
            runs.append(_run(name, pairs, to_json(values), seconds, gathered, panel, profile.name))
    return {"dataset": Path(folder).resolve().name, "split": split, "runs": runs}


def _match_given(
    captions: list[tuple[str, str, str]], items: list[Item], folder: str | Path
) -> tuple[list[tuple[Item, str]], tuple[str, ...]]:
    """Given captions with their items; those of other splits or beyond the limit are left out, and said so."""
    chosen = {item.id: item for item in items}
    known = {item.id for item in read_dataset(folder)}
    for where, name, _ in captions:
        if name not in known:
            raise CaptionLabError(f"{where} has the id {name!r}, which is not in {folder}: give the file name of one of its items.")
    pairs = [(chosen[name], caption) for _, name, caption in captions if name in chosen]
    if not pairs:
        raise CaptionLabError("None of the given captions belongs to the chosen split: choose another or leave --split and --limit out.")
    outside = len(captions) - len(pairs)
    return pairs, (f"{outside} given captions are outside the chosen split or limit.",) if outside else ()


def _run(
    method: str, pairs: list[tuple[Item, str]], settings: dict, seconds: float, gathered: Gathered, panel: Panel, profile: str
) -> dict[str, Any]:
    if not pairs:
        name, reason = next(iter(gathered.failed.items()))
        raise CaptionLabError(f"None of the {len(gathered.failed)} items can be read, {name} for one: {reason}")
    notes = list(panel.notes)
    referenced = [bool(item.references) for item, _ in pairs]
    if any(referenced) and not all(referenced):
        notes.append(f"Metrics against references are left out: {referenced.count(False)} items have none.")
    rows = Rows(
        ids=[item.id for item, _ in pairs],
        captions=[caption for _, caption in pairs],
        references=[list(item.references) for item, _ in pairs] if all(referenced) else None,
        matcher=panel.matcher,
        media=np.stack([gathered.vectors[item.id] for item, _ in pairs]) if panel.matcher else None,
        fluency=panel.fluency,
        audibility=panel.audibility,
        categories=[item.category for item, _ in pairs] if all(item.category in SOUND_CLASSES for item, _ in pairs) else None,
    )
    results = measure(rows)
    by_item = {name: r.items for name, r in results.items() if r.items is not None}
    run = {
        "method": method,
        "settings": settings,
        "profile": profile,
        "n": len(pairs),
        "metrics": {name: {"mean": r.mean, "low": r.low, "high": r.high} for name, r in results.items()},
        "encoders": {name: r.encoder for name, r in results.items() if r.encoder},
        "calibration": panel.matcher and panel.matcher.calibration,
        "seconds": seconds,
        "failed": [{"id": name, "reason": reason} for name, reason in gathered.failed.items()],
        "notes": notes,
        "items": [
            {"id": item.id, "caption": caption, "scores": {name: values[i] for name, values in by_item.items()}}
            for i, (item, caption) in enumerate(pairs)
        ],
    }
    return to_json(run)
