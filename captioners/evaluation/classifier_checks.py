"""Method 2's own checks, as tables in Markdown for REPRODUCTION.md.

    python -m captioners.evaluation.classifier_checks --sounds DATA/esc50:4 --pictures DATA/flickr8k:dev \\
        --heard clotho=DATA/text/clotho_val.txt --seen flickr8k=DATA/flickr8k:dev --out checks.md

`accuracy`: what the classifiers say of real captions; `steps`: gradient steps against quality and seconds; `transfer`:
each guide on sounds and on pictures; `choices`: the papers' own values, one by one and together. A check that was
killed goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from captioners.contract import SteeredModels, YesNoClassifier
from captioners.evaluation.check_command import exit_code, make_parser, markdown_table
from captioners.evaluation.dataset import Dataset, read_dataset
from captioners.evaluation.evaluate import evaluate
from captioners.evaluation.report import RunReport
from captioners.lab import Lab
from captioners.types import CaptionLabError, Modality

METHOD = "classifier"
CLASSIFIERS: dict[str, Modality] = {"audibility": "audio", "visibility": "image"}
SWEPT: dict[str, list[dict[str, Any]]] = {
    "steps": [{"num_steps": n} for n in (1, 3, 5, 10, 20)],
    "transfer": [{"guide": guide} for guide in ("none", *CLASSIFIERS)],
    "choices": [
        {},
        {"target": "zerocap"},
        {"fluency": "kl"},
        {"relevance_weight": 1},
        {"no_repeat": 0},
        {"target": "zerocap", "fluency": "kl", "relevance_weight": 1, "no_repeat": 0},
    ],
}
CHECKS = ("accuracy", *SWEPT)
COLUMNS = {  # metric → its heading, whether it is a share
    "audibility": ("audible", True),
    "named": ("right sound named", True),
    "objects_named": ("objects named", True),
    "clipscore": ("CLIPScore", False),
    "recall@1": ("recall@1", True),
    "cider": ("CIDEr", False),
    "perplexity": ("perplexity", False),
}


@dataclass(frozen=True)
class RealCaptions:
    """Captions that people wrote, of sounds or of pictures."""

    name: str
    kind: Modality
    texts: list[str]


def accuracy_table(
    captions: Sequence[RealCaptions], classifiers: Mapping[str, tuple[Modality, YesNoClassifier]]
) -> str:
    """The share of captions that each classifier is right about: yes to those of its own modality, no to the others.

    Beside whole captions their first halves, because a guide judges beginnings.
    """
    rows = []
    for corpus in captions:
        halves = [" ".join(words[: max(1, len(words) // 2)]) for words in map(str.split, corpus.texts)]
        cells = []
        for kind, classifier in classifiers.values():
            cells += [
                _percent(_share_right(classifier, texts, corpus.kind == kind)) for texts in (corpus.texts, halves)
            ]
        rows.append([corpus.name, "heard" if corpus.kind == "audio" else "seen", len(corpus.texts), *cells])
    headings = [f"{name} right{part}" for name in classifiers for part in ("", ", first halves")]
    return markdown_table(["captions", "of what is", "n", *headings], rows)


def _share_right(classifier: YesNoClassifier, texts: list[str], yes: bool) -> float:
    return float(((classifier.probability(texts) > 0.5) == yes).float().mean())


def sweep_table(lab: Lab, dataset: Dataset, points: Sequence[dict[str, Any]], journal: Path) -> str:
    """One row for each point: its settings, what applies of `COLUMNS`, and seconds for a caption."""
    settings = [lab.method(METHOD).spec.settings(**point) for point in points]
    runs = evaluate(lab, dataset, [METHOD], {METHOD: settings}, journal=journal).runs
    journal.unlink(missing_ok=True)
    names = [name for name in COLUMNS if name in runs[0].metrics]
    rows = [
        [_words(point), *_cells(run, names), f"{run.seconds / run.n:.2f}"]
        for point, run in zip(points, runs, strict=True)
    ]
    return markdown_table(["settings", *(COLUMNS[name][0] for name in names), "seconds"], rows)


def _words(point: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in point.items()) or "as it comes"


def _cells(run: RunReport, names: Sequence[str]) -> list[str]:
    means = {name: run.metrics[name].mean for name in names}
    digits = {"perplexity": 1}
    return [
        _percent(value) if COLUMNS[name][1] else f"{value:.{digits.get(name, 3)}f}" for name, value in means.items()
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# -------------------------------------------------------------------------------------------------- the command line


def read_split(place: str, limit: int | None = None) -> Dataset:
    """Read the data set named as `DIR` or `DIR:SPLIT`."""
    folder, _, split = place.partition(":")
    return read_dataset(folder, split or None, limit)


def read_real_captions(assignment: str, kind: Modality, limit: int | None) -> RealCaptions:
    """`NAME=FILE` with one caption a line, or `NAME=DIR[:SPLIT]`, of whose items the first reference is taken."""
    name, equals, place = assignment.partition("=")
    if not equals:
        raise CaptionLabError(f"{assignment!r} is not possible: write NAME=FILE or NAME=DIR:SPLIT.")
    path = Path(place)
    if path.is_file():
        texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][:limit]
    else:
        texts = [item.references[0] for item in read_split(place, limit) if item.references]
    if not texts:
        advice = "give a file with one on each line, or a data set with references"
        raise CaptionLabError(f"There are no captions in {place}: {advice}.")
    return RealCaptions(name, kind, texts)


def build_parser() -> argparse.ArgumentParser:
    """The parser of this module's options."""
    parser = make_parser("classifier_checks", "Method 2's own checks.")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS, help="these checks alone (default: all)")
    parser.add_argument("--sounds", metavar="DIR[:SPLIT]", help="a data set of sounds to caption")
    parser.add_argument("--pictures", metavar="DIR[:SPLIT]", help="a data set of pictures to caption")
    parser.add_argument("--heard", action="append", default=[], metavar="NAME=FILE", help="real captions of sounds")
    parser.add_argument("--seen", action="append", default=[], metavar="NAME=FILE", help="real captions of pictures")
    parser.add_argument("--beside", action="append", default=[], metavar="DIR", help="classifiers trained otherwise")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N items and captions of each")
    parser.add_argument("--profile", default="embedded")
    parser.add_argument("--models", metavar="FILE")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="DIR",
        help="weights of our own training, before those shipped",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where the tables go")
    return parser


def run(args: argparse.Namespace) -> str:
    """All tables that were asked for, as Markdown."""
    lab = Lab(args.profile, args.device, args.models, args.checkpoint)
    parts: list[str] = []
    if "accuracy" in args.only:
        assignments_by_kind: dict[Modality, list[str]] = {"audio": args.heard, "image": args.seen}
        captions = [
            read_real_captions(assignment, kind, args.limit)
            for kind, assignments in assignments_by_kind.items()
            for assignment in assignments
        ]
        if not captions:
            raise CaptionLabError(
                "There are no real captions to check the classifiers on: "
                "give --heard and --seen, or --only other checks."
            )
        parts.append(f"**Classifiers on real captions**\n\n{accuracy_table(captions, _classifiers(lab, args))}")
    places = [place for place in (args.sounds, args.pictures) if place]
    swept = [name for name in SWEPT if name in args.only]
    if swept and not places:
        raise CaptionLabError("There is nothing to caption: give --sounds and --pictures, or --only accuracy.")
    for name in swept:
        for dataset in (read_split(place, args.limit) for place in places):
            journal = args.out.with_name(f"{args.out.name}.{name}.{dataset.name}.journal")
            parts.append(
                f"**{name}**, {len(dataset)} of {dataset.name}\n\n{sweep_table(lab, dataset, SWEPT[name], journal)}"
            )
    return "\n\n".join(parts) + "\n"


def _classifiers(lab: Lab, args: argparse.Namespace) -> dict[str, tuple[Modality, YesNoClassifier]]:
    """Both guides by name, and those of every folder given with --beside."""
    classifiers: dict[str, tuple[Modality, YesNoClassifier]] = {}
    labs = {"": lab}
    for folder in args.beside:
        labs[f" ({Path(folder).name})"] = Lab(args.profile, args.device, args.models, [*args.checkpoint, folder])
    for suffix, its_lab in labs.items():
        models = cast(SteeredModels, its_lab.method(METHOD).models)
        classifiers |= {name + suffix: (kind, models.classifier(kind)) for name, kind in CLASSIFIERS.items()}
    return classifiers


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables; 2 on bad input, with one line that says what to do."""
    args = build_parser().parse_args(arguments)

    def write_tables() -> None:
        if not args.out.absolute().parent.is_dir():
            raise CaptionLabError(f"{args.out} cannot be written: give a file in a folder that is there.")
        args.out.write_text(run(args), encoding="utf-8")

    return exit_code(write_tables)


if __name__ == "__main__":
    sys.exit(main())
