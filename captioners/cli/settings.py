"""What was given with `--set`, `--seed`, `--over` and `--force` → the checked `Settings` of every method."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

from captioners.types import Settings, SettingsError, Spec


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
                f"There is no control called {name!r} in {', '.join(s.id for s in addressed)}: "
                f"choose from {', '.join(known)}."
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


def grid(over: Sequence[str]) -> list[list[str]]:
    """`NAME=V1,V2` … → every combination as a list of `NAME=VALUE`; nothing gives one empty combination."""
    axes = []
    for axis in over:
        name, _, values = axis.partition("=")
        axes.append([f"{name}={value.strip()}" for value in values.split(",") if value.strip()])
        if not axes[-1]:
            raise SettingsError(f"--over {axis} is not possible: write NAME=V1,V2,….")
    return [list(point) for point in itertools.product(*axes)]
