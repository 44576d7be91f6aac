"""The command line: page, list, caption, evaluate, sweep, compare-runs, bench, train. Options for methods are made from
what they declare.

Exit code 0 on success, 2 on bad input with one line on stderr. Models are imported when a command needs them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from captioners.profiles.base import PROFILES, ProfileError
from captioners.types import CaptionLabError, Result, Settings, SettingsError, Spec, to_json

if TYPE_CHECKING:
    from captioners.evaluation.engines import Engine
    from captioners.evaluation.evaluate import Progress
    from captioners.evaluation.report import Report

DELAY = 2  # seconds of silence before a progress bar appears


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given[:1] == ["page"]:
            return page_command(given[1:])
        args = build_parser().parse_args(given)
        args.line = shlex.join(["python", "-m", "captioners", *given])
        args.run(args)
    except (CaptionLabError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


class Parser(argparse.ArgumentParser):
    """Tells of a mistake in one line, like everything else here."""

    def error(self, message: str) -> NoReturn:
        raise CaptionLabError(f"{message}: see `{self.prog} --help`.")


def build_parser() -> Parser:
    """A parser of all commands and their options."""
    common = Parser(add_help=False)
    common.add_argument(
        "--profile", default="embedded", choices=PROFILES, help="where weights come from (default: embedded)"
    )
    common.add_argument("--models", metavar="FILE", help="hub profile: a TOML or YAML file, role = hub name or folder")
    common.add_argument(
        "--checkpoint", action="append", default=[], metavar="PATH", help="what `train` wrote; may be repeated"
    )
    common.add_argument(
        "--device", default="auto", metavar="auto|cpu|cuda|mps", help="default: the best one that is there"
    )

    methods = Parser(add_help=False)
    methods.add_argument(
        "--method",
        action="append",
        metavar="ID",
        help="a method, see `list`; may be repeated (default: all that apply)",
    )
    methods.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a control; METHOD.NAME=VALUE for one method only",
    )

    dataset = Parser(add_help=False)
    dataset.add_argument(
        "dir", metavar="DIR", help="a folder with captions.jsonl and images/ or audio/, or with esc50.csv; or one file"
    )
    dataset.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same captions")
    dataset.add_argument("--split", metavar="S", help="only items of this split (of this fold for esc50.csv)")
    dataset.add_argument("--limit", type=int, metavar="N", help="only the first N items")
    dataset.add_argument(
        "--batch", type=int, default=32, metavar="N", help="items that are captioned at once (default: 32)"
    )
    dataset.add_argument(
        "--features", metavar="DIR", help="keep the encoders' features here, for this run and later ones"
    )
    dataset.add_argument(
        "--traces", action="store_true", help="read the words' traces too: what the input added to words, by class"
    )
    pointing = "measure more: do words for boxed objects come from inside the boxes?"
    dataset.add_argument("--metric", action="append", default=[], choices=("pointing",), help=pointing)
    dataset.add_argument("--no-people", action="store_true", help="leave the row of people's own captions out")
    dataset.add_argument(
        "--engine", default="local", choices=("local", "ray"), help="what runs the methods (default: local)"
    )
    dataset.add_argument("--workers", type=int, metavar="N", help="of Ray (default: one for each GPU, or core)")

    outputs = Parser(add_help=False)
    for kind, words in (("json", "everything"), ("csv", "one line for each caption"), ("html", "tables to read")):
        outputs.add_argument(f"--{kind}", metavar="OUT", help=f"write {words} to this file")

    program = "caption-lab" if Path(sys.argv[0]).stem == "caption-lab" else "python -m captioners"
    parser = Parser(prog=program, description="See what guidance does to a caption.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, words: str, *parents: Parser) -> Parser:
        made = commands.add_parser(name, help=words, description=words, parents=[common, *parents], allow_abbrev=False)
        made.set_defaults(run=run)
        return made

    commands.add_parser("page", help="Serve the page; `page --help` shows its options.")

    listing = command("list", list_command, "Show the methods and their controls.")
    listing.add_argument("--json", action="store_true", help="print JSON")

    caption = command("caption", caption_command, "Caption one picture or sound clip.", methods)
    caption.add_argument("file", metavar="FILE")
    caption.add_argument(
        "--force", action="append", default=[], metavar="POSITION=TOKEN", help="fix a token, counted from 0"
    )
    caption.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same caption")
    caption.add_argument("--json", action="store_true", help='print {"results": [...]}')

    evaluate = command(
        "evaluate",
        evaluate_command,
        "Caption a data set, or take given captions, and measure them.",
        methods,
        dataset,
        outputs,
    )
    evaluate.add_argument(
        "--captions", metavar="FILE", help='score these instead: a line is {"id": FILE NAME, "caption": TEXT}'
    )
    evaluate.add_argument(
        "--over", action="append", default=[], metavar="NAME=V1,V2,…", help="a run for each value; may be repeated"
    )

    sweep = command(
        "sweep", sweep_command, "Measure one method over the values of one or more controls.", methods, dataset, outputs
    )
    sweep.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="NAME=V1,V2,…",
        help="may be repeated: all combinations are run",
    )

    compare = command(
        "compare-runs", compare_command, "Are two runs over the same items different? Paired tests, metric by metric."
    )
    chosen = "what `evaluate --json` wrote; FILE#2 is its second run, FILE#people people's own captions"
    compare.add_argument("runs", nargs=2, metavar="RUN.json", help=chosen)
    compare.add_argument("--json", metavar="OUT", help="write the figures to this file")

    bench = command("bench", bench_command, "Measure our speed against what one would do instead.")
    bench.add_argument("--only", nargs="+", metavar="NAME", help="only these contests (default: all)")
    bench.add_argument("--json", metavar="OUT", help="write the figures to this file")

    train = command("train", train_command, "Train one part, or all of the embedded profile.")
    train.add_argument("part", metavar="PART")
    train.add_argument("--data", required=True, type=Path, metavar="DIR", help="the training data")
    train.add_argument("--out", required=True, type=Path, metavar="DIR", help="where weights and metrics go")
    train.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        default=Path.home() / ".cache" / "caption-lab",
        help="for features and checkpoints",
    )
    train.add_argument("--seed", type=int, default=0, metavar="N")
    train.add_argument("--epochs", type=float, metavar="N", help="instead of the part's own number")
    train.add_argument("--from", dest="start", type=Path, metavar="DIR", help="go on from the weights in this folder")
    train.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value for a constant of the recipe or the network",
    )
    train.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help="bf16 halves the time on a processor with AVX512-BF16 or AMX and is slow on others",
    )
    train.add_argument("--final", action="store_true", help="audio parts: train on the held-out clips too")

    study = command(
        "study", study_command, "Blind studies: report what people preferred, show the links, forget a rater."
    )
    study.add_argument("action", choices=("report", "links", "forget"))
    study.add_argument(
        "store", metavar="STORE", help="the file or URL that `python app.py --study … --store STORE` wrote to"
    )
    study.add_argument("--study", metavar="ID", help="which study of the store (default: its only one)")
    study.add_argument("--rater", metavar="ID", help="forget: whose votes are to be deleted")
    for kind, words in (("json", "every figure"), ("csv", "one line for each vote"), ("html", "tables and plots")):
        study.add_argument(f"--{kind}", metavar="OUT", help=f"report: write {words} to this file")
    return parser


# -------------------------------------------------------------------------------------------------------- commands


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

    outputs = {kind: writable(name) for kind in ("json", "csv", "html") if (name := getattr(args, kind))}
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
        outputs["json"].write_text(json.dumps(to_json(report), ensure_ascii=False) + "\n", encoding="utf-8")
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
        Path(args.json).write_text(json.dumps(to_json(report), ensure_ascii=False) + "\n", encoding="utf-8")
    print(text(report))


def writable(name: str) -> Path:
    """Refuses an output that could not be written, before the work begins."""
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise CaptionLabError(f"{path} cannot be written: give a file in a folder that is there.")
    return path


def grid(over: Sequence[str]) -> list[list[str]]:
    """`NAME=V1,V2` … → every combination as a list of `NAME=VALUE`; nothing gives one empty combination."""
    axes = []
    for axis in over:
        name, _, values = axis.partition("=")
        axes.append([f"{name}={value.strip()}" for value in values.split(",") if value.strip()])
        if not axes[-1]:
            raise SettingsError(f"--over {axis} is not possible: write NAME=V1,V2,….")
    return [list(point) for point in itertools.product(*axes)]


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
            f"{row['name']}: {row['ratio']:.2f} times ({verdict}; spread {row['spread']:.2f} over {row['repeats']})\n  "
            f"{row['says']}"
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
    outputs = {kind: writable(name) for kind in ("json", "csv", "html") if (name := getattr(args, kind))}
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
    report = {"command": args.line, **analyse(study, votes)}
    if "json" in outputs:
        outputs["json"].write_text(json.dumps(to_json(report), ensure_ascii=False) + "\n", encoding="utf-8")
    if "csv" in outputs:
        outputs["csv"].write_text(csv_report(votes), encoding="utf-8")
    if "html" in outputs:
        outputs["html"].write_text(html_report(report), encoding="utf-8")
    return print(text_report(report))


# -------------------------------------------------------------------------------------------- settings and printing


def with_seed(args: argparse.Namespace) -> list[str]:
    """`--seed N` is short for `--set seed=N`."""
    return [*args.set, *([] if args.seed is None else [f"seed={args.seed}"])]


def assigned(assignment: str, form: str) -> tuple[str, str]:
    """The two sides of what was given with `--set`."""
    name, equals, value = assignment.partition("=")
    if not equals:
        raise SettingsError(f"--set {assignment} is not possible: write {form}.")
    return name, value


def settings_for(specs: list[Spec], assignments: Sequence[str], forced: dict[str, str] = {}) -> dict[str, Settings]:
    """`NAME=VALUE` goes to every method that has such a control, `METHOD.NAME=VALUE` to one and comes last."""
    values: dict[str, dict[str, str]] = {spec.id: {} for spec in specs}
    for assignment in sorted(assignments, key=lambda a: "." in a.partition("=")[0]):
        target, value = assigned(assignment, "NAME=VALUE or METHOD.NAME=VALUE")
        method, _, name = target.rpartition(".")
        if method and method not in values:
            raise SettingsError(
                f"--set {assignment} is for a method that was not chosen: choose from {', '.join(values)}."
            )
        addressed = [s for s in specs if method in ("", s.id)]
        listening = [s for s in addressed if s.listens_to(name)]
        if not listening:
            known = dict.fromkeys(c.name for s in addressed for c in s.controls)
            raise SettingsError(
                f"There is no control called {name!r} in {', '.join(s.id for s in addressed)}: choose from "
                f"{', '.join(known)}."
            )
        for spec in listening:
            values[spec.id][name] = value
    return {spec.id: spec.settings(forced=forced, **values[spec.id]) for spec in specs}


def parse_forced(texts: Sequence[str]) -> dict[str, str]:
    """`POSITION=TOKEN` …; the values are checked by `Settings`."""
    for text in texts:
        if "=" not in text:
            raise SettingsError(f"--force {text} is not possible: write POSITION=TOKEN.")
    return dict(text.split("=", 1) for text in texts)


def print_result(result: Result) -> None:
    """The caption, its scores with their encoders, and how long it took."""
    scores = [f"{name} {s.value:.3g}" + (f" ({s.encoder})" if s.encoder else "") for name, s in result.scores.items()]
    print(f"{result.method}: {result.caption}\n  {' · '.join([*scores, f'{sum(result.seconds.values()):.2f} s'])}")
    for note in result.notes:
        print(f"  {note}")


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Progress]:
    """A bar on stderr, with rate and time left, that appears when the work takes longer than two seconds."""
    from tqdm import tqdm

    with tqdm(desc=what, delay=DELAY, disable=quiet, leave=False) as bar:

        def progress(done: int, total: int) -> None:
            if bar.total is None:  # what is done before the work begins does not count for its rate
                bar.n = bar.initial = bar.last_print_n = done
            bar.total = total
            bar.update(done - bar.n)

        yield progress
