"""From a folder and a design to pairs in the store: every input is captioned once, and a study that is started again
goes on.

Pairs whose captions are the same word for word are left out: there is nothing to choose.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

from captioners import registry
from captioners.evaluation.dataset import read_dataset
from captioners.lab import Lab
from captioners.media import load_media
from captioners.media.formats import kind_of, sniff
from captioners.study.design import Design, System
from captioners.study.store import Pair, Store, Study
from captioners.types import CaptionLabError, Media, Modality, Result, Settings, to_json

HEAD = 4096  # bytes that tell what a file is
CHECK = "This one is a check: choose this caption for every question."
CHECKS = 12  # inputs that an attention check can be about


@dataclass(frozen=True)
class Input:
    """A picture or a sound of a study."""

    name: str
    path: Path
    kind: Modality


class Captioning(Protocol):
    """What makes captions and has them scored."""

    @property
    def lab(self) -> Lab: ...

    def results(self, media: Media, method: str, settings: Sequence[Settings]) -> list[Result]: ...


def read_folder(folder: str | Path) -> list[Input]:
    """The pictures and sounds of a folder, or those that its `captions.jsonl` names."""
    folder = Path(folder)
    if not folder.is_dir():
        raise CaptionLabError(f"There is no folder {folder}: give the folder with the pictures or sounds of the study.")
    if (folder / "captions.jsonl").is_file():
        return [Input(item.id, item.path, item.kind) for item in read_dataset(folder)]
    inputs = []
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        with path.open("rb") as file:
            kind = kind_of(sniff(file.read(HEAD)))
        if kind:
            inputs.append(Input(path.name, path, kind))
    if not inputs:
        raise CaptionLabError(f"{folder} holds no picture and no sound: put the files of the study there.")
    return inputs


def study_id(design: Design, inputs: Sequence[Input], profile: str) -> str:
    """The same design on the same files is the same study."""
    files = [(i.name, hashlib.sha256(i.path.read_bytes()).hexdigest()) for i in inputs]
    return hashlib.sha256(json.dumps([to_json(design), files, profile], sort_keys=True).encode()).hexdigest()[:12]


class Preparation:
    """Captions the inputs of a study that have none yet, one after the other."""

    def __init__(self, store: Store, design: Design, inputs: Sequence[Input], profile: str, captioning: Captioning):
        self.store, self.captioning = store, captioning
        self.study: Study = store.add_study(study_id(design, inputs, profile), design)
        self.inputs = {i.name: i for i in inputs}
        self._captioned = store.items(self.study.id)
        self._turn = Lock()

    @property
    def done(self) -> int:
        """How many inputs have been captioned."""
        return len(self._captioned)

    def prepare_next(self) -> bool:
        """Caption one more input; False when all are done."""
        with self._turn:
            waiting = next((i for i in self.inputs.values() if i.name not in self._captioned), None)
            if waiting is None:
                return False
            self.store.add_item(self.study.id, waiting.name, waiting.kind, self._pairs(waiting))
            self._captioned.add(waiting.name)
            return True

    def _pairs(self, item: Input) -> list[Pair]:
        results = self._results(item)
        pairs = []
        for a, b in self.study.design.comparisons:
            if a in results and b in results and results[a].caption != results[b].caption:
                pairs.append(
                    Pair(a, b, results[a].caption, results[b].caption, _scores(results[a]), _scores(results[b]))
                )
        if pairs and self.study.design.check_every and self.done < CHECKS:
            pairs.append(Pair("check", "", CHECK, pairs[0].caption_a, {}, {}, is_check=True))
        return pairs

    def _results(self, item: Input) -> dict[str, Result]:
        """Every system's caption; none where a method does not know this kind of media, or a file has no caption for
        it.
        """
        media = load_media(item.path, item.kind)
        by_system, by_method = dict[str, Result](), dict[str, list[System]]()
        for system in self.study.design.systems:
            if system.method:
                by_method.setdefault(system.method, []).append(system)
            elif item.name in system.captions:
                written = Result(system.name, system.captions[item.name], [], [], {}, 0, "", {})
                by_system[system.name] = self.captioning.lab.score(written, media)
        for method, systems in by_method.items():
            spec = registry.find(method).spec
            if media.kind in spec.modalities:
                results = self.captioning.results(media, method, [spec.settings(**s.settings) for s in systems])
                by_system |= {s.name: result for s, result in zip(systems, results, strict=True)}
        return by_system


def _scores(result: Result) -> dict[str, float]:
    return {name: score.value for name, score in result.scores.items()}
