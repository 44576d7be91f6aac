"""What the modules with a check of their own (`python -m captioners.evaluation.NAME`) share: their parser, their way of
reading a data set, of printing a table, and of ending on bad input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from captioners.evaluation.dataset import Dataset, read_dataset
from captioners.types import CaptionLabError


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser for the module of that name."""
    return argparse.ArgumentParser(prog=f"python -m captioners.evaluation.{name}", description=description)


def add_dataset_options(
    parser: argparse.ArgumentParser, help: str, split: str | None = None, limit: int | None = None
) -> None:
    """Add the data set to measure on, which `chosen_dataset` reads; `split` and `limit` are the defaults."""
    parser.add_argument("folder", metavar="DIR", help=help)
    parser.add_argument("--split", default=split)
    parser.add_argument("--limit", type=int, default=limit, metavar="N")


def chosen_dataset(args: argparse.Namespace) -> Dataset:
    """The data set that the options of `add_dataset_options` name."""
    return read_dataset(args.folder, args.split, args.limit)


def markdown_table(headings: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table as REPRODUCTION.md has them."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def exit_code(work: Callable[[], None]) -> int:
    """Do the work; 0 when it is done, 2 on bad input, with one line that says what to do."""
    try:
        work()
    except (CaptionLabError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
