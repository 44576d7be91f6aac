"""The parser of the command line: which commands there are, and one function for the options of each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from captioners.cli import commands
from captioners.profiles.base import PROFILES
from captioners.types import CaptionLabError


class Parser(argparse.ArgumentParser):
    """Tells of a mistake in one line, like everything else here."""

    def error(self, message: str) -> NoReturn:
        raise CaptionLabError(f"{message}: see `{self.prog} --help`.")


def build_parser() -> Parser:
    """A parser of all commands and their options."""
    program = "caption-lab" if Path(sys.argv[0]).stem == "caption-lab" else "python -m captioners"
    parser = Parser(prog=program, description="See what guidance does to a caption.", allow_abbrev=False)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    common, methods, dataset, outputs = common_options(), method_options(), dataset_options(), output_options()

    def command(name: str, run: Callable[[argparse.Namespace], None], words: str, *parents: Parser) -> Parser:
        subparser = subparsers.add_parser(
            name, help=words, description=words, parents=[common, *parents], allow_abbrev=False
        )
        subparser.set_defaults(run=run)
        return subparser

    subparsers.add_parser("page", help="Serve the page; `page --help` shows its options.")

    listing = command("list", commands.list_command, "Show the methods and their controls.")
    listing.add_argument("--json", action="store_true", help="print JSON")

    words = "Caption one picture or sound clip."
    add_caption_options(command("caption", commands.caption_command, words, methods))

    words = "Caption a data set, or take given captions, and measure them."
    add_evaluate_options(command("evaluate", commands.evaluate_command, words, methods, dataset, outputs))

    words = "Measure one method over the values of one or more controls."
    sweep = command("sweep", commands.sweep_command, words, methods, dataset, outputs)
    over = "may be repeated: all combinations are run"
    sweep.add_argument("--over", action="append", required=True, metavar="NAME=V1,V2,…", help=over)

    words = "Are two runs over the same items different? Paired tests, metric by metric."
    add_compare_options(command("compare-runs", commands.compare_command, words))

    bench = command("bench", commands.bench_command, "Measure our speed against what one would do instead.")
    bench.add_argument("--only", nargs="+", metavar="NAME", help="only these contests (default: all)")
    bench.add_argument("--json", metavar="OUT", help="write the figures to this file")

    add_train_options(command("train", commands.train_command, "Train one part, or all of the embedded profile."))

    words = "Blind studies: report what people preferred, show the links, forget a rater."
    add_study_options(command("study", commands.study_command, words))
    return parser


# ------------------------------------------------------------------------------------- options of several commands


def common_options() -> Parser:
    """The options of every command: where weights come from and what computes."""
    common = Parser(add_help=False)
    profile = "where weights come from (default: embedded)"
    common.add_argument("--profile", default="embedded", choices=PROFILES, help=profile)
    common.add_argument("--models", metavar="FILE", help="hub profile: a TOML or YAML file, role = hub name or folder")
    checkpoint = "what `train` wrote; may be repeated"
    common.add_argument("--checkpoint", action="append", default=[], metavar="PATH", help=checkpoint)
    device = "default: the best one that is there"
    common.add_argument("--device", default="auto", metavar="auto|cpu|cuda|mps", help=device)
    return common


def method_options() -> Parser:
    """The options of commands that run methods."""
    methods = Parser(add_help=False)
    method = "a method, see `list`; may be repeated (default: all that apply)"
    methods.add_argument("--method", action="append", metavar="ID", help=method)
    control = "a control; METHOD.NAME=VALUE for one method only"
    methods.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=control)
    return methods


def dataset_options() -> Parser:
    """The options of commands that measure over a data set."""
    dataset = Parser(add_help=False)
    folder = "a folder with captions.jsonl and images/ or audio/, or with esc50.csv; or one file"
    dataset.add_argument("dir", metavar="DIR", help=folder)
    dataset.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same captions")
    dataset.add_argument("--split", metavar="S", help="only items of this split (of this fold for esc50.csv)")
    dataset.add_argument("--limit", type=int, metavar="N", help="only the first N items")
    batch = "items that are captioned at once (default: 32)"
    dataset.add_argument("--batch", type=int, default=32, metavar="N", help=batch)
    features = "keep the encoders' features here, for this run and later ones"
    dataset.add_argument("--features", metavar="DIR", help=features)
    traces = "read the words' traces too: what the input added to words, by class"
    dataset.add_argument("--traces", action="store_true", help=traces)
    pointing = "measure more: do words for boxed objects come from inside the boxes?"
    dataset.add_argument("--metric", action="append", default=[], choices=("pointing",), help=pointing)
    dataset.add_argument("--no-people", action="store_true", help="leave the row of people's own captions out")
    engine = "what runs the methods (default: local)"
    dataset.add_argument("--engine", default="local", choices=("local", "ray"), help=engine)
    dataset.add_argument("--workers", type=int, metavar="N", help="of Ray (default: one for each GPU, or core)")
    return dataset


def output_options() -> Parser:
    """The files that an evaluation or a sweep can write."""
    outputs = Parser(add_help=False)
    for kind, words in (("json", "everything"), ("csv", "one line for each caption"), ("html", "tables to read")):
        outputs.add_argument(f"--{kind}", metavar="OUT", help=f"write {words} to this file")
    return outputs


# ------------------------------------------------------------------------------------------ options of one command


def add_caption_options(caption: Parser) -> None:
    """Options of `caption`."""
    caption.add_argument("file", metavar="FILE")
    force = "fix a token, counted from 0"
    caption.add_argument("--force", action="append", default=[], metavar="POSITION=TOKEN", help=force)
    caption.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same caption")
    caption.add_argument("--json", action="store_true", help='print {"results": [...]}')


def add_evaluate_options(evaluate: Parser) -> None:
    """Options of `evaluate`."""
    captions = 'score these instead: a line is {"id": FILE NAME, "caption": TEXT}'
    evaluate.add_argument("--captions", metavar="FILE", help=captions)
    over = "a run for each value; may be repeated"
    evaluate.add_argument("--over", action="append", default=[], metavar="NAME=V1,V2,…", help=over)


def add_compare_options(compare: Parser) -> None:
    """Options of `compare-runs`."""
    chosen = "what `evaluate --json` wrote; FILE#2 is its second run, FILE#people people's own captions"
    compare.add_argument("runs", nargs=2, metavar="RUN.json", help=chosen)
    compare.add_argument("--json", metavar="OUT", help="write the figures to this file")


def add_train_options(train: Parser) -> None:
    """Options of `train`."""
    train.add_argument("part", metavar="PART")
    train.add_argument("--data", required=True, type=Path, metavar="DIR", help="the training data")
    train.add_argument("--out", required=True, type=Path, metavar="DIR", help="where weights and metrics go")
    cache = Path.home() / ".cache" / "caption-lab"
    train.add_argument("--cache", type=Path, metavar="DIR", default=cache, help="for features and checkpoints")
    train.add_argument("--seed", type=int, default=0, metavar="N")
    train.add_argument("--epochs", type=float, metavar="N", help="instead of the part's own number")
    train.add_argument("--from", dest="start", type=Path, metavar="DIR", help="go on from the weights in this folder")
    constant = "another value for a constant of the recipe or the network"
    train.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=constant)
    precision = "bf16 halves the time on a processor with AVX512-BF16 or AMX and is slow on others"
    train.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help=precision)
    train.add_argument("--final", action="store_true", help="audio parts: train on the held-out clips too")


def add_study_options(study: Parser) -> None:
    """Options of `study`."""
    study.add_argument("action", choices=("report", "links", "forget"))
    store = "the file or URL that `python app.py --study … --store STORE` wrote to"
    study.add_argument("store", metavar="STORE", help=store)
    study.add_argument("--study", metavar="ID", help="which study of the store (default: its only one)")
    study.add_argument("--rater", metavar="ID", help="forget: whose votes are to be deleted")
    for kind, words in (("json", "every figure"), ("csv", "one line for each vote"), ("html", "tables and plots")):
        study.add_argument(f"--{kind}", metavar="OUT", help=f"report: write {words} to this file")
