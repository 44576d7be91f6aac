"""`evaluate`: from a data set and some methods to the report that `evaluate --json` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from captioners.evaluation.dataset import Item, read_captions, read_dataset
from captioners.evaluation.engines import Engine, Local
from captioners.evaluation.journal import Journal
from captioners.evaluation.work import Outcome, Plan, Said
from captioners.lab import Panel, choose_methods, find_judges
from captioners.metrics.base import Rows, measure
from captioners.metrics.matching import RememberedTexts
from captioners.profiles.base import Profile
from captioners.sound_classes import SOUND_CLASSES
from captioners.types import CaptionLabError, Settings, to_json

Progress = Callable[[int, int], None]  # captions done, captions in all; first called before the work begins
BATCH = 32


def evaluate(
    profile: Profile,
    folder: str | Path,
    methods: list[str] | None = None,
    settings: Mapping[str, Sequence[Settings]] = {},
    split: str | None = None,
    limit: int | None = None,
    captions_file: str | Path | None = None,
    batch_size: int = BATCH,
    traced: bool = False,
    engine: Engine | None = None,
    journal: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Caption a data set with some methods (all that can, without any named) or take given captions, and measure.

    A method has one run for each of its `settings`, or one with its own defaults. With `traced` the words' traces are read too.
    A run that was killed goes on from its `journal`; whoever has stored the report removes that file.
    Returns `{"runs": [{"method", "settings", "n", "metrics", "items", …}]}`, ready for `json.dump`.
    """
    items = read_dataset(folder, split, limit)
    kind = items[0].kind
    if any(item.kind != kind for item in items):
        raise CaptionLabError(f"{folder} mixes pictures and sound: put them into two data sets.")
    panel = find_judges(profile.judges, kind)
    if panel.matcher:
        panel = replace(panel, matcher=RememberedTexts(panel.matcher))

    planned: list[tuple[str, Settings]] = []
    given: list[tuple[Item, str]] = []
    work = items
    if captions_file is not None:
        given, notes = _match_given(read_captions(captions_file), items, folder)
        panel = replace(panel, notes=panel.notes + notes)
        work = list({item.id: item for item, _ in given}.values()) if panel.matcher else []
    else:
        planned = [(s.id, values) for s in choose_methods(kind, methods) for values in settings.get(s.id) or [s.settings()]]

    outcomes = _gather(profile, Plan(tuple(planned), traced), work, batch_size, engine or Local(), journal, progress)
    scorer = Scorer(outcomes, panel, profile.name)
    if captions_file is not None:
        runs = [scorer.run("given", {}, 0.0, [(item, Said(caption)) for item, caption in given if item.id not in scorer.failed])]
    else:
        runs = [scorer.run(name, to_json(values), *scorer.said(run, items)) for run, (name, values) in enumerate(planned)]
    return {"dataset": Path(folder).resolve().name, "split": split, "runs": runs}


def _gather(
    profile: Profile, plan: Plan, items: list[Item], batch_size: int, engine: Engine, path: Path | None, progress: Progress
) -> list[Outcome]:
    """The outcomes of all batches, those of an earlier attempt among them."""
    kept = Journal(path, items, plan, profile.name)
    rest = [item for item in items if item.id not in kept.done]
    runs = max(len(plan.runs), 1)
    total = len(items) * runs
    progress(len(kept.done) * runs, total)
    for outcome in engine.outcomes(profile, plan, [rest[i : i + batch_size] for i in range(0, len(rest), batch_size)]):
        kept.add(outcome)
        progress(len(kept.done) * runs, total)
    return kept.outcomes


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


class Scorer:
    """Turns outcomes into the report's runs."""

    def __init__(self, outcomes: Sequence[Outcome], panel: Panel, profile: str):
        self.outcomes, self.panel, self.profile = outcomes, panel, profile
        self.failed = {name: reason for o in outcomes for name, reason in o.failed.items()}
        self.vectors = {name: v for o in outcomes if o.vectors is not None for name, v in zip(o.ids, o.vectors, strict=True)}

    def said(self, run: int, items: Sequence[Item]) -> tuple[float, list[tuple[Item, Said]]]:
        """The seconds of one run, and what was said of each item, in the data set's order."""
        by_id = {name: said for o in self.outcomes for name, said in zip(o.ids, o.said[run], strict=True)}
        return sum(o.seconds[run] for o in self.outcomes), [(item, by_id[item.id]) for item in items if item.id in by_id]

    def run(self, method: str, settings: dict[str, Any], seconds: float, pairs: list[tuple[Item, Said]]) -> dict[str, Any]:
        """One run, measured."""
        if not pairs:
            name, reason = next(iter(self.failed.items()))
            raise CaptionLabError(f"None of the {len(self.failed)} items can be read, {name} for one: {reason}")
        notes = list(self.panel.notes)
        referenced = [bool(item.references) for item, _ in pairs]
        if any(referenced) and not all(referenced):
            notes.append(f"Metrics against references are left out: {referenced.count(False)} items have none.")
        results = measure(self._rows(pairs, all(referenced)))
        by_item = {name: r.items for name, r in results.items() if r.items is not None}
        run = {
            "method": method,
            "settings": settings,
            "profile": self.profile,
            "n": len(pairs),
            "metrics": {name: {"mean": r.mean, "low": r.low, "high": r.high} for name, r in results.items()},
            "encoders": {name: r.encoder for name, r in results.items() if r.encoder},
            "calibration": self.panel.matcher and self.panel.matcher.calibration,
            "seconds": seconds,
            "failed": [{"id": name, "reason": reason} for name, reason in self.failed.items()],
            "notes": notes,
            "items": [
                {
                    "id": item.id,
                    "caption": said.caption,
                    **({"candidates": said.candidates} if said.candidates else {}),
                    "scores": {name: values[i] for name, values in by_item.items()},
                }
                for i, (item, said) in enumerate(pairs)
            ],
        }
        return to_json(run)

    def _rows(self, pairs: list[tuple[Item, Said]], referenced: bool) -> Rows:
        items, said = [item for item, _ in pairs], [s for _, s in pairs]
        return Rows(
            ids=[item.id for item in items],
            captions=[s.caption for s in said],
            references=[list(item.references) for item in items] if referenced else None,
            matcher=self.panel.matcher,
            media=np.stack([self.vectors[item.id] for item in items]) if self.panel.matcher else None,
            fluency=self.panel.fluency,
            audibility=self.panel.audibility,
            categories=[item.category for item in items] if all(item.category in SOUND_CLASSES for item in items) else None,
            candidates=[list(s.candidates) for s in said] if all(s.candidates for s in said) else None,
            gains=[s.gains for s in said] if all(s.gains for s in said) else None,
        )
