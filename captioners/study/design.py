"""What a study asks: its questions, the systems whose captions meet, and how much one rater is given.

A question file is TOML; everything in it has a default. `compare` says which captions meet:

    compare = "guidance"   every method against itself without guidance (the default)
    compare = "methods"    every method against every other
    compare = "values"     one control at several values: over = { guidance_scale = [1, 2, 3] }
    compare = "files"      given captions: captions = ["a.jsonl", "b.jsonl"], lines of {"id": FILE NAME, "caption": TEXT}
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioners import registry
from captioners.evaluation.dataset import read_captions
from captioners.types import CaptionLabError, Settings, Spec, to_json

SHARE = 25  # pairs that one rater is asked about
CHECK_EVERY = 12  # one of so many ballots is an attention check


@dataclass(frozen=True)
class Question:
    """One thing to decide about two captions."""

    id: str
    text: str


QUESTIONS = (
    Question("specific", "Which says more about what you see or hear?"),
    Question("fluent", "Which reads better?"),
)


@dataclass(frozen=True)
class System:
    """Something that captions: a method with its settings, or a file of given captions."""

    name: str
    method: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)  # file name → caption, where they are given


@dataclass(frozen=True)
class Design:
    """Everything that makes one study different from another, beside its pictures and sounds."""

    title: str
    questions: tuple[Question, ...]
    systems: tuple[System, ...]
    comparisons: tuple[tuple[str, str], ...]  # names of systems that meet
    share: int = SHARE  # 0: every pair
    check_every: int = CHECK_EVERY  # 0: no checks


def method_system(spec: Spec, name: str, settings: Settings) -> System:
    """A method at some settings, under a name."""
    values = {k: v for k, v in to_json(settings).items() if k != "forced"}
    return System(name, spec.id, values)


def guidance_systems(specs: Iterable[Spec]) -> tuple[list[System], list[tuple[str, str]]]:
    """Every method that can be guided, against itself unguided."""
    systems, pairs = [], []
    for spec in (s for s in specs if s.unguided):
        settings = spec.settings()
        systems += [
            method_system(spec, spec.id, settings),
            method_system(spec, f"{spec.id} unguided", spec.without_guidance(settings)),
        ]
        pairs.append((spec.id, f"{spec.id} unguided"))
    return systems, pairs


def method_systems(specs: Iterable[Spec]) -> tuple[list[System], list[tuple[str, str]]]:
    """Every method at its own defaults, against every other."""
    return _all_against_all([method_system(spec, spec.id, spec.settings()) for spec in specs])


def value_systems(specs: Iterable[Spec], over: Mapping[str, Any]) -> tuple[list[System], list[tuple[str, str]]]:
    """Every method at each value of one control, against its own other values."""
    if len(over) != 1 or not all(isinstance(values, list) and len(values) > 1 for values in over.values()):
        raise CaptionLabError(
            'compare = "values" needs one control with two values or more: write over = { guidance_scale = [1, 2] }.'
        )
    ((name, values),) = over.items()
    systems: list[System] = []
    pairs: list[tuple[str, str]] = []
    listening = [spec for spec in specs if spec.listens_to(name)]
    if not listening:
        raise CaptionLabError(f"No chosen method has a control called {name!r}: see `python -m captioners list`.")
    for spec in listening:
        own, met = _all_against_all(
            [method_system(spec, f"{spec.id} {name}={v}", spec.settings(**{name: v})) for v in values]
        )
        systems, pairs = systems + own, pairs + met
    return systems, pairs


def file_systems(files: Sequence[Path]) -> tuple[list[System], list[tuple[str, str]]]:
    """Given captions; a system is named after its file. Of several captions for one input the first counts."""
    if len(files) < 2:
        raise CaptionLabError('compare = "files" needs two files or more: write captions = ["a.jsonl", "b.jsonl"].')
    systems = []
    for file in files:
        captions: dict[str, str] = {}
        for _, name, caption in read_captions(file):
            captions.setdefault(name, caption)
        systems.append(System(file.stem, captions=captions))
    return _all_against_all(systems)


def _all_against_all(systems: list[System]) -> tuple[list[System], list[tuple[str, str]]]:
    return systems, list(itertools.combinations([s.name for s in systems], 2))


COMPARISONS = ("guidance", "methods", "values", "files")
KEYS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "compare": (str, list),
    "methods": list,
    "over": dict,
    "captions": list,
    "share": int,
    "check_every": int,
}


def read_design(file: str | Path | None, title: str) -> Design:
    """The design of a question file, or the default one."""
    entries = _read_toml(Path(file)) if file else {}
    folder = Path(file).parent if file else Path()
    compare = entries.get(
        "compare", "files" if "captions" in entries else "values" if "over" in entries else "guidance"
    )
    return make_design(
        entries.get("title", title),
        [compare] if isinstance(compare, str) else compare,
        methods=entries.get("methods"),
        over=entries.get("over", {}),
        files=[folder / name for name in entries.get("captions", [])],
        questions=_questions(entries.get("question", [])) or QUESTIONS,
        share=entries.get("share", SHARE),
        check_every=entries.get("check_every", CHECK_EVERY),
    )


def make_design(
    title: str,
    compare: Sequence[str],
    methods: Sequence[str] | None = None,
    over: Mapping[str, Any] = {},
    files: Sequence[Path] = (),
    questions: Sequence[Question] = QUESTIONS,
    share: int = SHARE,
    check_every: int = CHECK_EVERY,
) -> Design:
    """A checked design; a system that two comparisons share stands in it once."""
    specs = [registry.find(name).spec for name in methods] if methods else registry.available()
    makers = {
        "guidance": lambda: guidance_systems(specs),
        "methods": lambda: method_systems(specs),
        "values": lambda: value_systems(specs, over),
        "files": lambda: file_systems(files),
    }
    systems: dict[str, System] = {}
    comparisons: dict[tuple[str, str], None] = {}
    for name in compare:
        if name not in makers:
            raise CaptionLabError(f"compare = {name!r} is not possible: choose from {', '.join(COMPARISONS)}.")
        new_systems, new_comparisons = makers[name]()
        if len({s.name for s in new_systems}) < len(new_systems):
            raise CaptionLabError(
                "Two systems have the same name: rename one of the caption files, or leave out a repeated value."
            )
        systems |= {s.name: s for s in new_systems}
        comparisons |= dict.fromkeys(new_comparisons)
    if not comparisons:
        raise CaptionLabError("There is nothing to compare: name two methods, or one that can be guided.")
    if share < 0 or check_every < 0 or check_every == 1:
        raise CaptionLabError(
            "share and check_every are whole numbers from 0, check_every not 1: 0 means every pair, and no checks."
        )
    return Design(title, tuple(questions), tuple(systems.values()), tuple(comparisons), share, check_every)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise CaptionLabError(f"{file} cannot be read: give a question file in TOML.") from None
    except tomllib.TOMLDecodeError as error:
        raise CaptionLabError(f"{file} is not TOML: {error}; mend it.") from None
    for key, value in entries.items():
        if key not in KEYS and key != "question":
            raise CaptionLabError(
                f"{file} has an unknown entry {key!r}: choose from {', '.join(KEYS)} and [[question]]."
            )
        if key in KEYS and (not isinstance(value, KEYS[key]) or isinstance(value, bool)):
            raise CaptionLabError(f"{file}: {key} = {value!r} is not of the right kind; see the README's example.")
        if (
            isinstance(value, list)
            and key in ("compare", "methods", "captions")
            and not all(isinstance(v, str) for v in value)
        ):
            raise CaptionLabError(f"{file}: {key} must be a list of texts.")
    return entries


def _questions(entries: Any) -> tuple[Question, ...]:
    if not isinstance(entries, list) or not all(isinstance(q, dict) for q in entries):
        raise CaptionLabError("Questions are written as [[question]] with an id and a text.")
    questions = []
    for question in entries:
        if set(question) != {"id", "text"} or not all(isinstance(v, str) and v.strip() for v in question.values()):
            raise CaptionLabError(f"The question {question!r} is not possible: give it an id and a text.")
        questions.append(Question(question["id"], question["text"]))
    if len({q.id for q in questions}) < len(questions):
        raise CaptionLabError("Two questions have the same id: give each its own.")
    return tuple(questions)
