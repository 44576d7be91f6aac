"""`evaluate` with method 1: files read, embedded for the judge and captioned, 32 at once against one at a time."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from captioners import registry
from captioners.bench.contest import Work, contest
from captioners.bench.inputs import picture
from captioners.evaluation.dataset import Item
from captioners.evaluation.engines import LocalEngine
from captioners.evaluation.worker import Plan
from captioners.lab import Lab
from captioners.profiles.base import Profile

SIZE, SOME = 32, 8


def _work(profile: Profile, items: Iterator[Item], count: int, batch: int) -> Work:
    lab, plan = Lab(profile), Plan((("cfg", registry.find("cfg").spec.settings()),))

    def work() -> int:
        chosen = list(itertools.islice(items, count))
        batches = [chosen[i : i + batch] for i in range(0, count, batch)]
        return sum(len(result.ids) for result in LocalEngine().results(lab, plan, batches))

    return work


@contest(
    "evaluate_32_vs_1",
    "evaluate with cfg, features kept: 32 pictures at once against one at a time",
    "picture",
    repeats=5,
)
def warm(profile: Profile) -> tuple[Work, Work]:
    """The second and every later run over a data set, and all but the first setting of a sweep."""
    items = _files(SIZE)
    return _work(profile, itertools.cycle(items), SIZE, SIZE), _work(profile, itertools.cycle(items[:SOME]), SOME, 1)


@contest(
    "evaluate_32_vs_1_new",
    "evaluate with cfg, pictures never seen: 32 at once against one at a time",
    "picture",
    repeats=3,
)
def cold(profile: Profile) -> tuple[Work, Work]:
    """The first run: the image encoder's share is the same for both."""
    fresh_items = (item for seed in itertools.count(1) for item in _files(SOME, seed))
    return _work(profile, fresh_items, SIZE, SIZE), _work(profile, fresh_items, SOME, 1)


def _files(count: int, seed: int = 0) -> list[Item]:
    """Pictures on disk, which are gone when the process ends."""
    folder = tempfile.TemporaryDirectory()
    _FOLDERS.append(folder)
    paths = [Path(folder.name) / f"{seed}-{i}.jpg" for i in range(count)]
    for i, path in enumerate(paths):
        Image.fromarray(picture(1000 * seed + i).data).save(path)
    return [Item(path.name, path, "image", ()) for path in paths]


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
