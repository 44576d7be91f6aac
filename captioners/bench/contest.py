"""What a contest is, how one is run, and how all of them are found."""

from __future__ import annotations

import importlib
import pkgutil
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from captioners.bench.memory import peak_growth
from captioners.profiles.base import Profile
from captioners.types import CaptionLabError

REPEATS = 7
Work = Callable[[], int]  # does something once and returns how many units it did
Sides = Callable[[Profile], tuple[Work, Work]]


@dataclass(frozen=True)
class Contest:
    """Two ways to the same end; `sides` loads what they need and returns ours and the peer's."""

    name: str
    says: str  # what is compared, in words
    unit: str  # of the times: seconds per this
    sides: Sides
    repeats: int | None = None  # fewer than usual, where one takes long


_CONTESTS: dict[str, Contest] = {}


def contest(name: str, says: str, unit: str, repeats: int | None = None) -> Callable[[Sides], Sides]:
    """Decorator of a function that makes (ours, peer) of a profile: the contest is known from then on.

    A part or a package that is not there is told by raising CaptionLabError or ImportError: the contest is skipped with
    that reason.
    """

    def add(sides: Sides) -> Sides:
        _CONTESTS[name] = Contest(name, says, unit, sides, repeats)
        return sides

    return add


def contests() -> dict[str, Contest]:
    """All contests of this package's files by name."""
    import captioners.bench as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_CONTESTS)


def chosen(only: Collection[str] | None = None) -> list[Contest]:
    """The contests that are named, or all of them."""
    by_name = contests()
    for name in only or ():
        if name not in by_name:
            raise CaptionLabError(f"There is no contest called {name!r}: choose from {', '.join(by_name)}.")
    return [by_name[name] for name in dict.fromkeys(only or by_name)]


def run(contest: Contest, profile: Profile, repeats: int = REPEATS) -> dict[str, Any]:
    """Both sides in turn, after a warm-up; the median of the ratios, their spread (largest − smallest) and each
    side's memory.
    """
    work = dict(zip(("ours", "peer"), contest.sides(profile), strict=True))
    for side in work.values():
        side()
    memory = {name: peak_growth(side) for name, side in work.items()}
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(min(repeats, contest.repeats or repeats)):
        for name, side in work.items():
            times[name].append(_timed(side))
    ratios = [peer_time / our_time for our_time, peer_time in zip(times["ours"], times["peer"], strict=True)]
    return {
        "name": contest.name,
        "says": contest.says,
        "ours": statistics.median(times["ours"]),
        "peer": statistics.median(times["peer"]),
        "unit": f"s/{contest.unit}",
        "ratio": statistics.median(ratios),
        "spread": max(ratios) - min(ratios),
        "repeats": len(ratios),
        "memory": memory,  # MB that a run needs at most beyond what is resident before it; None where it cannot be told
    }


def _timed(work: Work) -> float:
    began = time.perf_counter()
    units = work()
    return (time.perf_counter() - began) / units


def bench(
    profile: Profile,
    only: Collection[str] | None = None,
    repeats: int = REPEATS,
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """The chosen contests in the shape that `bench --json` writes; what cannot be run is listed under `skipped` with
    its reason.
    """
    report: dict[str, Any] = {"profile": profile.name, "rows": [], "skipped": []}
    for contest in chosen(only):
        try:
            row = run(contest, profile, repeats)
            report["rows"].append(row)
        except (CaptionLabError, ImportError) as error:
            row = {"name": contest.name, "says": contest.says, "reason": str(error)}
            report["skipped"].append(row)
        progress(row)
    return report
