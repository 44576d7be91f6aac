"""Are two runs over the same items different? Paired tests, because small differences on a thousand pictures mean
nothing.

Everything rests on one idea: if the runs were the same, each item's difference could as well have the other sign.
Flipping signs at random gives the permutation test of the mean; the same flips of signed ranks give Wilcoxon's test.
The interval is a paired bootstrap.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from captioners.evaluation.report import PEOPLE, RunReport
from captioners.evaluation.tables import labels, number
from captioners.metrics.bootstrap import Resampler
from captioners.types import CaptionLabError, from_json, to_json

FLIPS = 10_000
LEVEL = 0.05


@dataclass(frozen=True)
class PairedTests:
    """The interval of the mean difference, three two-sided p-values, and how often either is larger."""

    low: float
    high: float
    permutation: float  # about the mean
    wilcoxon: float  # about ranks
    sign: float  # only which of the two is larger more often
    wins: int
    losses: int


@dataclass(frozen=True)
class MetricComparison:
    """One metric of two runs; metrics of the whole set have a difference and no tests."""

    metric: str
    a: float
    b: float
    difference: float
    tests: PairedTests | None = None

    def __json__(self) -> dict[str, Any]:
        tests = to_json(self.tests) if self.tests else {}
        return {"metric": self.metric, "a": self.a, "b": self.b, "difference": self.difference, **tests}


@dataclass(frozen=True)
class Comparison:
    """Two runs over the same n items."""

    a: str
    b: str
    n: int
    metrics: list[MetricComparison]


def read_run(name: str) -> RunReport:
    """One run of a file that `evaluate --json` or `sweep --json` wrote; `FILE#2` is its second, `FILE#people`
    people's own captions.
    """
    path, _, selector = name.rpartition("#") if "#" in name and not Path(name).exists() else (name, "", "")
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        runs: list[RunReport] = from_json(list[RunReport], report["runs"])
        people: RunReport | None = from_json(RunReport, report.get("people"))
    except OSError:
        raise CaptionLabError(f"{path} cannot be read: give a file that `evaluate --json` wrote.") from None
    except (ValueError, KeyError, TypeError):
        raise CaptionLabError(
            f"{path} is not the report of an evaluation: give a file that `evaluate --json` wrote."
        ) from None
    if selector == PEOPLE and people:
        return replace(people, label=f"{Path(path).name}: {PEOPLE}")
    names = labels(runs)
    if not selector and len(runs) > 1:
        listed = ", ".join(f"{path}#{i} ({label})" for i, label in enumerate(names, 1))
        raise CaptionLabError(f"{path} holds {len(runs)} runs: choose one as {listed}.")
    index = int(selector or 1) - 1 if (selector or "1").isdigit() else -1
    if not 0 <= index < len(runs):
        raise CaptionLabError(f"{path} has no run {selector}: choose from 1 to {len(runs)}.")
    return replace(runs[index], label=f"{Path(path).name}: {names[index]}")


def compare(a: RunReport, b: RunReport) -> Comparison:
    """B against A, for every metric that both have."""
    ids = [item.id for item in a.items]
    if sorted(ids) != sorted(item.id for item in b.items):
        only = len({*ids} ^ {item.id for item in b.items})
        raise CaptionLabError(
            f"The runs are over different items ({only} are in one of them only): "
            "run both with the same data set, --split and --limit."
        )
    if len({*ids}) < len(ids):
        raise CaptionLabError(
            "The runs have several captions of one item, which cannot be paired: give one caption for each item."
        )
    scores_of_b = {item.id: item.scores for item in b.items}
    other_judge = [n for n, e in a.encoders.items() if b.encoders.get(n, e) != e]
    if other_judge:
        raise CaptionLabError(
            f"{', '.join(other_judge)} come from different judges in the two runs: measure both with the same weights."
        )
    compared = []
    for name in (n for n in a.metrics if n in b.metrics):
        means = a.metrics[name].mean, b.metrics[name].mean
        pairs = [(item.scores.get(name, math.nan), scores_of_b[item.id].get(name, math.nan)) for item in a.items]
        values = np.array(pairs, dtype=np.float64)
        tests = None
        values = values[np.isfinite(values).all(axis=1)]  # a caption that names no object has no share of right ones
        if len(values):
            tests = paired(*(np.log(values) if name == "perplexity" else values).T)  # its mean is geometric
        compared.append(MetricComparison(name, *means, means[1] - means[0], tests))
    return Comparison(a.label, b.label, len(ids), compared)


def paired(a: np.ndarray, b: np.ndarray, seed: int = 0) -> PairedTests:
    """The tests of paired values (n,) each."""
    difference = b - a
    low, high = Resampler([str(i) for i in range(len(difference))], seed=seed).mean(difference)
    wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
    return PairedTests(
        low=low,
        high=high,
        permutation=sign_flip(difference, seed),
        wilcoxon=sign_flip(signed_ranks(difference), seed),
        sign=sign_test(wins, losses),
        wins=wins,
        losses=losses,
    )


def sign_flip(values: np.ndarray, seed: int = 0, flips: int = FLIPS) -> float:
    """How often random signs give a sum at least as far from zero as the one observed. Exact for few values."""
    values = values[values != 0]
    if len(values) == 0:
        return 1.0
    observed = abs(values.sum()) * (1 - 1e-12) - 1e-15  # rounding must not separate equal sums
    if 2 ** len(values) <= flips:
        sign_patterns = 1 - 2 * (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1)
        return float((abs(sign_patterns @ values) >= observed).mean())
    rng, extreme = np.random.default_rng(seed), 0
    for _ in range(10):  # in tenths: a thousand items would need 80 MB at once
        signs = rng.integers(0, 2, (flips // 10, len(values)), dtype=np.int8) * 2.0 - 1
        extreme += int((abs(signs @ values) >= observed).sum())
    return (extreme + 1) / (flips + 1)


def signed_ranks(difference: np.ndarray) -> np.ndarray:
    """Wilcoxon's: the rank of each |difference| with its sign; equal ones share their mean rank, zeros are dropped."""
    difference = difference[difference != 0]
    _, place, counts = np.unique(abs(difference), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: np.ndarray = np.sign(difference) * (last - (counts - 1) / 2)[place]
    return ranks


def sign_test(wins: int, losses: int) -> float:
    """Two-sided: a fair coin, thrown wins + losses times, falls at least as unevenly."""
    n, fewer = wins + losses, min(wins, losses)
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2) for k in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def text(report: Comparison) -> str:
    """A table with a verdict for each metric."""
    head = ["", "A", "B", "B − A", "95 % interval", "permutation", "Wilcoxon", "sign", "wins:losses", ""]
    table = [head]
    for compared in report.metrics:
        line = [compared.metric, number(compared.a), number(compared.b), f"{compared.difference:+.3f}"]
        if tests := compared.tests:
            interval = f"[{tests.low:+.3f}, {tests.high:+.3f}]" + (" log" if compared.metric == "perplexity" else "")
            chances = [f"p = {p:.4f}" for p in (tests.permutation, tests.wilcoxon, tests.sign)]
            line += [interval, *chances, f"{tests.wins}:{tests.losses}", verdict(compared.difference, tests)]
        else:
            line += ["of the whole set: no paired test", "", "", "", "", ""]
        table.append(line)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    notes = (
        f"{len(report.metrics)} metrics are tested one by one: at {LEVEL:g}, "
        f"one in {1 / LEVEL:.0f} would differ by chance alone."
    )
    return "\n".join([f"A is {report.a}", f"B is {report.b}", f"{report.n} items, paired", *lines, notes])


def verdict(difference: float, tests: PairedTests) -> str:
    """What the permutation test says, in words."""
    if tests.permutation >= LEVEL:
        return "no difference shown"
    return "B is higher" if difference > 0 else "B is lower"
