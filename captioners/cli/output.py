"""What commands print and the files they write: results, progress bars, reports."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from captioners.types import CaptionLabError, Result, to_json

if TYPE_CHECKING:
    from captioners.evaluation.evaluate import Progress

DELAY = 2  # seconds of silence before a progress bar appears


def print_result(result: Result) -> None:
    """The caption, its scores with their encoders, and how long it took."""
    scores = [f"{name} {s.value:.3g}" + (f" ({s.encoder})" if s.encoder else "") for name, s in result.scores.items()]
    print(f"{result.method}: {result.caption}\n  {' · '.join([*scores, f'{sum(result.seconds.values()):.2f} s'])}")
    for note in result.notes:
        print(f"  {note}")


@contextmanager
def progress_bar(description: str, quiet: bool) -> Iterator[Progress]:
    """A bar on stderr, with rate and time left, that appears when the work takes longer than two seconds."""
    from tqdm import tqdm

    with tqdm(desc=description, delay=DELAY, disable=quiet, leave=False) as bar:

        def progress(done: int, total: int) -> None:
            if bar.total is None:  # what is done before the work begins does not count for its rate
                bar.n = bar.initial = bar.last_print_n = done
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def writable(name: str) -> Path:
    """Refuses an output that could not be written, before the work begins."""
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise CaptionLabError(f"{path} cannot be written: give a file in a folder that is there.")
    return path


def report_files(args: argparse.Namespace) -> dict[str, Path]:
    """The files that `--json`, `--csv` and `--html` name, each known to be writable."""
    return {kind: writable(name) for kind in ("json", "csv", "html") if (name := getattr(args, kind))}


def write_json(report: object, path: Path) -> None:
    """Write a report as one line of JSON."""
    path.write_text(json.dumps(to_json(report), ensure_ascii=False) + "\n", encoding="utf-8")
