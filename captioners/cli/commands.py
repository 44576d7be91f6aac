"""What each command does with its options."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioners.cli.output import print_result, progress_bar, report_files, writable, write_json
from captioners.cli.settings import assigned, grid, parse_forced, settings_for, with_seed
from captioners.profiles.base import ProfileError
from captioners.types import CaptionLabError, Result, to_json

if TYPE_CHECKING:
    from captioners.evaluation.engines import Engine
    from captioners.evaluation.report import Report


def page_command(options: Sequence[str]) -> int:
    """Serve the page. Its options are those of `app.py`, which reads them itself."""
    from captioners.ui.serve import main as serve

    serve(list(options))
    return 0


def list_command(args: argparse.Namespace) -> None:
    """Print the methods with their controls."""
    from captioners import registry

    specs = registry.available()
    if args.json:
        return print(json.dumps({"methods": to_json(specs)}, indent=1, ensure_ascii=False))
    for spec in specs:
        print(f"{spec.id}: {spec.title} ({', '.join(spec.modalities)})\n  {spec.idea}\n  {spec.paper}")
        width = max((len(c.name) for c in spec.controls), default=0)
        for control in spec.controls:
            default = "auto" if control.default is None else control.default
            print(
                f"  {control.name:<{width}}  {control.help} {control.allowed[:1].upper()}{control.allowed[1:]}; "
                f"default {default!r}."
            )
        print()
    return None


def caption_command(args: argparse.Namespace) -> None:
    """Captions of one file by some methods, scored."""
    from captioners.lab import Lab, choose_methods
    from captioners.media import load_media
    from captioners.profiles.store import MissingPart

    media = load_media(args.file)
    specs = choose_methods(media.kind, args.method)
    settings = settings_for(specs, with_seed(args), forced=parse_forced(args.force))
    lab = Lab(args.profile, args.device, args.models, args.checkpoint)
    results: list[Result] = []
    for spec in specs:
        try:
            with progress_bar(spec.id, quiet=args.json) as progress:
                for (step,) in lab.run([media], spec.id, [settings[spec.id]], live=True):
                    progress(step.position, step.total)
        except (MissingPart, ProfileError) as error:
            if args.method or (spec is specs[-1] and not results):
                raise
            print(f"{spec.id} is left out: {error}", file=sys.stderr)
            continue
        results.append(lab.explain(step.finished, media) if args.json else step.finished)
        if not args.json:
            print_result(step.finished)
    if args.json:
        print(json.dumps({"results": to_json(results)}, ensure_ascii=False))


def evaluate_command(args: argparse.Namespace) -> None:
    """Measure methods or given captions on a data set."""
    if args.captions and (args.method or args.set or args.over or args.seed is not None):
        raise CaptionLabError(
            "Given captions are scored without a method: leave --method, --set, --over and --seed out, or --captions."
        )
    from captioners.evaluation.tables import html_page

    measure_command(args, html_page, captions_file=args.captions)


def sweep_command(args: argparse.Namespace) -> None:
    """Measure one method over a grid of settings."""
    if len(args.method or []) != 1:
        raise CaptionLabError("A sweep is of one method: give --method once.")
    from captioners.evaluation.figures import sweep_page

    measure_command(args, sweep_page)


def measure_command(args: argparse.Namespace, page: Callable[[Report], str], captions_file: str | None = None) -> None:
    """Run an evaluation, which goes on if it was killed before, and write what was asked for."""
    from captioners.evaluation.dataset import read_dataset
    from captioners.evaluation.evaluate import evaluate
    from captioners.evaluation.tables import text_table, write_csv
    from captioners.lab import Lab, choose_methods

    outputs = report_files(args)
    if args.batch < 1:
        raise CaptionLabError(f"--batch {args.batch} is not possible: give a whole number from 1.")
    dataset = read_dataset(args.dir, args.split, args.limit)
    specs = [] if captions_file else choose_methods(dataset.kind, args.method)
    points = [settings_for(specs, [*with_seed(args), *point]) for point in grid(args.over)]
    settings = {spec.id: list(dict.fromkeys(point[spec.id] for point in points)) for spec in specs}
    lab = Lab(args.profile, args.device, args.models, args.checkpoint)
    if args.features:
        lab.profile.keep_features(Path(args.features))
    journal = next((path.with_name(path.name + ".journal") for path in outputs.values()), None)
    if journal and journal.exists():
        print(f"Going on with what {journal} has kept.", file=sys.stderr)
    with progress_bar("captions", quiet=False) as progress:
        report = evaluate(
            lab,
            dataset,
            list(settings),
            settings,
            captions_file=captions_file,
            batch_size=args.batch,
            traced=args.traces,
            pointing="pointing" in args.metric,
            people=not args.no_people,
            engine=find_engine(args),
            journal=journal,
            progress=progress,
        )
    report = replace(report, command=args.line)
    if "json" in outputs:
        write_json(report, outputs["json"])
    if "csv" in outputs:
        write_csv(report, outputs["csv"])
    if "html" in outputs:
        outputs["html"].write_text(page(report), encoding="utf-8")
    if journal:
        journal.unlink(missing_ok=True)
    print(text_table(report))


def find_engine(args: argparse.Namespace) -> Engine:
    """The engine that `--engine` names."""
    if args.engine == "local":
        from captioners.evaluation.engines import LocalEngine

        return LocalEngine()
    from captioners.evaluation.ray_engine import RayEngine

    return RayEngine(args.profile, args.device, args.models, args.checkpoint, args.features, args.workers)


def compare_command(args: argparse.Namespace) -> None:
    """Compare two runs, metric by metric."""
    from captioners.evaluation.significance import compare, read_run, text

    if args.json:
        writable(args.json)
    report = compare(*(read_run(name) for name in args.runs))
    if args.json:
        write_json(report, Path(args.json))
    print(text(report))


def bench_command(args: argparse.Namespace) -> None:
    """Ratios, one paragraph each; a contest that cannot be run says why."""
    from captioners.bench.contest import bench
    from captioners.lab import Lab

    if args.json:
        writable(args.json)

    def show(row: dict[str, Any]) -> None:
        if "reason" in row:
            return print(f"{row['name']}: skipped. {row['reason']}", flush=True)
        verdict = "faster" if row["ratio"] >= 1 else "slower"
        memory = (
            ", ".join(f"{side} {mb:.0f} MB" for side, mb in row["memory"].items() if mb is not None)
            or "not told by this system"
        )
        print(
            f"{row['name']}: {row['ratio']:.2f} times ({verdict}; "
            f"spread {row['spread']:.2f} over {row['repeats']})\n  {row['says']}"
        )
        return print(f"  {row['ours']:.4g} against {row['peer']:.4g} {row['unit']}; peak memory: {memory}", flush=True)

    report = bench(Lab(args.profile, args.device, args.models, args.checkpoint).profile, args.only, progress=show)
    if args.json:
        Path(args.json).write_text(json.dumps(report) + "\n", encoding="utf-8")


def train_command(args: argparse.Namespace) -> None:
    """Train one part."""
    from captioners.training import HUB_PARTS, PARTS, Job, train, train_all

    known = ["all", *PARTS] if args.profile == "embedded" else HUB_PARTS
    if args.part not in known:
        raise CaptionLabError(f"There is no part called {args.part!r} in this profile: choose from {', '.join(known)}.")
    if args.profile != "embedded" and args.start:
        raise CaptionLabError("--from is for the embedded profile: name the folder to start from with --models.")
    if not args.data.is_dir():
        raise CaptionLabError(f"There is no folder {args.data}: give the folder with the training data.")
    for folder in (args.out, args.cache):
        folder.mkdir(parents=True, exist_ok=True)
    job = Job(
        args.data,
        args.out,
        args.cache,
        args.seed,
        args.epochs,
        args.device,
        args.final,
        args.start,
        precision=args.precision,
        profile=args.profile,
        models=args.models,
        settings=tuple(assigned(a, "NAME=VALUE") for a in args.set),
    )
    if args.part == "all":
        if args.set or args.start:
            raise CaptionLabError("--set and --from are for one part: leave them out, or train that part first.")
        train_all(job)
    else:
        print(json.dumps(to_json(train(args.part, job)), indent=1))


def study_command(args: argparse.Namespace) -> None:
    """What was voted, where the study's pages are, or a rater's votes deleted."""
    from captioners.study.analysis import analyse
    from captioners.study.report import csv_report, html_report, text_report
    from captioners.study.store import Store

    if "://" not in args.store and not Path(args.store).is_file():
        raise CaptionLabError(f"There is no store {args.store}: give the file or URL that a study was started with.")
    if (args.action == "forget") != bool(args.rater):
        raise CaptionLabError(
            "`study forget STORE --rater ID` deletes the votes of one rater: give --rater there and only there."
        )
    outputs = report_files(args)
    store = Store(args.store)
    try:
        study = store.study(args.study)
        if args.action == "links":
            return print(
                f"{study.title}\n  raters:  /?study={study.id}\n  results: /?study={study.id}&results={study.secret}"
            )
        if args.action == "forget":
            if not store.knows(study.id, args.rater):
                raise CaptionLabError(f"There is no rater {args.rater!r} in this study: check the id.")
            return print(f"{store.forget(study.id, args.rater)} ballots deleted.")
        votes = store.votes(study.id)
    finally:
        store.close()
    report = analyse(study, votes)
    if "json" in outputs:
        write_json({"command": args.line, **report}, outputs["json"])
    if "csv" in outputs:
        outputs["csv"].write_text(csv_report(votes), encoding="utf-8")
    if "html" in outputs:
        outputs["html"].write_text(html_report(report), encoding="utf-8")
    return print(text_report(report))
