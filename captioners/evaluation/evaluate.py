"""`evaluate`: from a data set and some methods to a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from captioners.contract import TextJudge
from captioners.evaluation.dataset import Dataset, Item, read_captions
from captioners.evaluation.engines import Engine, LocalEngine
from captioners.evaluation.journal import Journal
from captioners.evaluation.report import PEOPLE, FailedItem, Interval, ItemReport, Report, RunReport
from captioners.evaluation.worker import BatchResult, CaptionRecord, Plan
from captioners.lab import AvailableJudges, Lab, choose_methods, find_text_judge
from captioners.metrics.base import CaptionSet, measure
from captioners.metrics.matching import TextCachingMatcher
from captioners.sound_classes import SOUND_CLASSES
from captioners.types import CaptionLabError, Settings, to_json

Progress = Callable[[int, int], None]  # captions done, captions in all; first called before the work begins
BATCH = 32


def evaluate(
    lab: Lab,
    dataset: Dataset,
    methods: list[str] | None = None,
    settings: Mapping[str, Sequence[Settings]] = {},
    captions_file: str | Path | None = None,
    batch_size: int = BATCH,
    traced: bool = False,
    pointing: bool = False,
    people: bool = True,
    engine: Engine | None = None,
    journal: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Caption a data set with some methods (all that can, without any named) or take given captions, and measure.

    A method has one run for each of its `settings`, or one with its own defaults. With `traced` the words' traces are
    read too, with `pointing` it is found out where words for boxed objects come from, and with `people` the report also
    has people's own captions: each item's first reference, measured against the others. A run that was killed goes on
    from its `journal`; whoever has stored the report removes that file.
    """
    kind = dataset.kind
    if pointing and not any(item.boxes for item in dataset):
        raise CaptionLabError(
            f"{dataset.name} has no boxes to point at: write them into captions.jsonl, or leave --metric pointing out."
        )
    judges = lab.judges(kind)
    if judges.matcher:
        judges = replace(judges, matcher=TextCachingMatcher(judges.matcher))

    planned: list[tuple[str, Settings]] = []
    given_captions: list[tuple[Item, str]] = []
    work = dataset.items
    if captions_file is not None:
        given_captions, notes = _match_given(read_captions(captions_file), dataset)
        judges = replace(judges, notes=judges.notes + notes)
        work = list({item.id: item for item, _ in given_captions}.values()) if judges.matcher else []
    else:
        planned = [
            (s.id, values) for s in choose_methods(kind, methods) for values in settings.get(s.id) or [s.settings()]
        ]

    results = _gather(
        lab, Plan(tuple(planned), traced, pointing), work, batch_size, engine or LocalEngine(), journal, progress
    )
    texts, missing = find_text_judge(lab.profile.judges) if all(item.references for item in dataset) else (None, ())
    scorer = Scorer(results, replace(judges, notes=judges.notes + missing), lab.profile.name, texts)
    if captions_file is not None:
        readable = [(item, CaptionRecord(caption)) for item, caption in given_captions if item.id not in scorer.failed]
        runs = [scorer.run("given", {}, 0.0, readable)]
    else:
        runs = [
            scorer.run(name, to_json(values), *scorer.captions(run, dataset))
            for run, (name, values) in enumerate(planned)
        ]
    people_run = scorer.people([item for item, _ in given_captions] or dataset) if people else None
    return Report(dataset.name, dataset.split, runs, people=people_run)


def _gather(
    lab: Lab, plan: Plan, items: list[Item], batch_size: int, engine: Engine, path: Path | None, progress: Progress
) -> list[BatchResult]:
    """The results of all batches, those of an earlier attempt among them."""
    journal = Journal(path, items, plan, lab.profile.name)
    rest = [item for item in items if item.id not in journal.done]
    runs = max(len(plan.runs), 1)
    total = len(items) * runs
    progress(len(journal.done) * runs, total)
    for result in engine.results(lab, plan, [rest[i : i + batch_size] for i in range(0, len(rest), batch_size)]):
        journal.add(result)
        progress(len(journal.done) * runs, total)
    return journal.results


def _match_given(
    captions: list[tuple[str, str, str]], dataset: Dataset
) -> tuple[list[tuple[Item, str]], tuple[str, ...]]:
    """Given captions with their items; those of other splits or beyond the limit are left out, and said so."""
    chosen = {item.id: item for item in dataset}
    for where, name, _ in captions:
        if name not in dataset.known:
            raise CaptionLabError(
                f"{where} has the id {name!r}, which is not in {dataset.name}: give the file name of one of its items."
            )
    pairs = [(chosen[name], caption) for _, name, caption in captions if name in chosen]
    if not pairs:
        raise CaptionLabError(
            "None of the given captions belongs to the chosen split: choose another or leave --split and --limit out."
        )
    outside = len(captions) - len(pairs)
    return pairs, (f"{outside} given captions are outside the chosen split or limit.",) if outside else ()


class Scorer:
    """Turns the batches' results into the report's runs."""

    def __init__(
        self, results: Sequence[BatchResult], judges: AvailableJudges, profile: str, texts: TextJudge | None = None
    ) -> None:
        self.results, self.judges, self.profile, self.texts = results, judges, profile, texts
        self.failed = {name: reason for r in results for name, reason in r.failed.items()}
        self.vectors = {
            name: v for r in results if r.vectors is not None for name, v in zip(r.ids, r.vectors, strict=True)
        }

    def captions(self, run: int, items: Sequence[Item]) -> tuple[float, list[tuple[Item, CaptionRecord]]]:
        """The seconds of one run, and what it said of each item, in the data set's order."""
        by_id = {name: caption for r in self.results for name, caption in zip(r.ids, r.captions[run], strict=True)}
        return sum(r.seconds[run] for r in self.results), [(item, by_id[item.id]) for item in items if item.id in by_id]

    def people(self, items: Sequence[Item]) -> RunReport | None:
        """What people said, measured as if a method had: a judge's number means little without theirs beside it.

        None where there are no captions by people: a class's hand-written ones are not of the clip.
        """
        distinct = {item.id: item for item in items if item.id not in self.failed}.values()
        written = [item for item in distinct if item.references and not item.category]
        pairs = [(replace(item, references=item.references[1:]), CaptionRecord(item.references[0])) for item in written]
        return self.run(PEOPLE, {}, 0.0, pairs) if pairs else None

    def run(
        self, method: str, settings: dict[str, Any], seconds: float, pairs: list[tuple[Item, CaptionRecord]]
    ) -> RunReport:
        """Measure one run."""
        if not pairs:
            name, reason = next(iter(self.failed.items()))
            raise CaptionLabError(f"None of the {len(self.failed)} items can be read, {name} for one: {reason}")
        notes = list(self.judges.notes)
        referenced = [bool(item.references) for item, _ in pairs]
        if any(referenced) and not all(referenced):
            notes.append(f"Metrics against references are left out: {referenced.count(False)} items have none.")
        results = measure(self._rows(pairs, all(referenced)))
        by_item = {name: r.items for name, r in results.items() if r.items is not None}
        return RunReport(
            method=method,
            settings=settings,
            profile=self.profile,
            n=len(pairs),
            metrics={name: Interval(r.mean, r.low, r.high) for name, r in results.items()},
            encoders={name: r.encoder for name, r in results.items() if r.encoder},
            calibration=self.judges.matcher.calibration if self.judges.matcher else None,
            seconds=seconds,
            failed=[FailedItem(name, reason) for name, reason in self.failed.items()],
            notes=notes,
            items=[
                ItemReport(
                    item.id, record.caption, {name: values[i] for name, values in by_item.items()}, record.candidates
                )
                for i, (item, record) in enumerate(pairs)
            ],
        )

    def _rows(self, pairs: list[tuple[Item, CaptionRecord]], referenced: bool) -> CaptionSet:
        """The captions with all that metrics may need of them."""
        items, records = [item for item, _ in pairs], [record for _, record in pairs]
        known = [item.objects is not None for item in items]
        gains = [record.gains for record in records if record.gains]
        return CaptionSet(
            ids=[item.id for item in items],
            captions=[record.caption for record in records],
            references=[list(item.references) for item in items] if referenced else None,
            matcher=self.judges.matcher,
            media=np.stack([self.vectors[item.id] for item in items]) if self.judges.matcher else None,
            fluency=self.judges.fluency,
            texts=self.texts,
            audibility=self.judges.audibility,
            categories=[item.category for item in items]
            if all(item.category in SOUND_CLASSES for item in items)
            else None,
            objects=[item.objects for item in items if item.objects is not None] if all(known) else None,
            candidates=[list(r.candidates) for r in records] if all(r.candidates for r in records) else None,
            points=[r.points or [] for r in records] if any(r.points is not None for r in records) else None,
            gains=gains if len(gains) == len(records) else None,
        )
