"""What the votes of a study say: strengths, win rates, agreement between people, and agreement of people with the
judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import numpy as np

from captioners.study.bradley_terry import fit
from captioners.study.intervals import RESAMPLES, two_way, wilson
from captioners.study.store import ANSWERS, Study, Vote

JUDGES = {"clipscore": 1, "perplexity": -1}  # judge → whether more or less of it is better


class Bounds(TypedDict):
    """A 95 % interval; None where there is too little to make one of."""

    low: float | None
    high: float | None


class Strength(Bounds):
    """How strong one system is; strengths of one group can be compared."""

    system: str
    strength: float
    group: int


class WinRate(Bounds):
    """How often each of two systems won; `rate` is a's share of the votes that preferred one."""

    a: str
    b: str
    a_wins: int
    b_wins: int
    neither: int
    rate: float | None


class Agreement(Bounds):
    """How many of the votes that preferred a caption preferred the judge's."""

    agreed: int
    of: int
    rate: float


class JudgeAgreement(Agreement):
    """One judge's agreement with people over one comparison, or over all where a and b are None."""

    judge: str
    a: str | None
    b: str | None


class QuestionFigures(TypedDict):
    """The figures of one question."""

    votes: int
    alpha: float | None
    strengths: list[Strength]
    wins: list[WinRate]
    judges: list[JudgeAgreement]


class QuestionReport(QuestionFigures):
    """A question with its figures."""

    id: str
    text: str


class Standing(TypedDict):
    """What a leaderboard shows of one question."""

    text: str
    votes: int
    strengths: list[Strength]


class CheckCounts(TypedDict):
    """Answers to attention checks."""

    passed: int
    failed: int


class StudyReport(TypedDict):
    """Everything that is said of a study, in the shape that `study --json` writes."""

    study: str
    title: str
    raters: int
    excluded: list[int]
    checks: CheckCounts
    inputs: int
    questions: list[QuestionReport]


def analyse(study: Study, votes: Sequence[Vote], resamples: int = RESAMPLES) -> StudyReport:
    """Everything the report shows. Raters who failed half of their attention checks or more are left out."""
    failed, passed = checks(votes)
    excluded = {rater for rater, count in failed.items() if count >= passed[rater]}
    kept = [v for v in votes if not v.is_check and v.rater not in excluded]
    return {
        "study": study.id,
        "title": study.title,
        "raters": len({v.rater for v in votes}),
        "excluded": sorted(excluded),
        "checks": {"passed": sum(passed.values()), "failed": sum(failed.values())},
        "inputs": len({v.item for v in kept}),
        "questions": [
            {"id": q.id, "text": q.text, **about_question([v for v in kept if v.question == q.id], resamples)}
            for q in study.design.questions
        ],
    }


def checks(votes: Iterable[Vote]) -> tuple[Counter[int], Counter[int]]:
    """How many answers to attention checks each rater got wrong, and right."""
    failed, passed = Counter[int](), Counter[int]()
    for vote in votes:
        if vote.is_check:
            (passed if vote.answer == "a" else failed)[vote.rater] += 1
    return failed, passed


def about_question(votes: Sequence[Vote], resamples: int = RESAMPLES) -> QuestionFigures:
    """The figures of one question."""
    return {
        "votes": len(votes),
        "alpha": krippendorff((v.pair, v.answer) for v in votes),
        "strengths": strengths(votes, resamples),
        "wins": win_rates(votes),
        "judges": judges(votes, resamples),
    }


def strengths(votes: Sequence[Vote], resamples: int = RESAMPLES) -> list[Strength]:
    """Bradley–Terry strengths with intervals over inputs and raters, the strongest first.

    Systems that no chain of votes connects stand in different groups: only strengths of one group can be compared.
    """
    if not votes:
        return []
    names = sorted({v.system_a for v in votes} | {v.system_b for v in votes})
    met = sorted({(names.index(v.system_a), names.index(v.system_b)) for v in votes})
    column = np.array(
        [3 * met.index((names.index(v.system_a), names.index(v.system_b))) + ANSWERS.index(v.answer) for v in votes]
    )
    cells = np.eye(3 * len(met))[column]

    def fitted(sums: np.ndarray) -> np.ndarray:
        return fit(sums.reshape(*sums.shape[:-1], len(met), 3), np.array(met), len(names))

    values, reach = two_way(cells, *_owners(votes), fitted, resamples)
    groups = connected(len(names), met)
    rows: list[Strength] = [
        {"system": name, "strength": float(values[i]), **_reach(values[i], reach, i), "group": groups[i]}
        for i, name in enumerate(names)
    ]
    return sorted(rows, key=lambda row: (row["group"], -row["strength"]))


def connected(systems: int, met: Iterable[tuple[int, int]]) -> list[int]:
    """The number of the group that each system belongs to."""
    group = list(range(systems))
    for a, b in met:
        group = [min(group[a], group[b]) if g in (group[a], group[b]) else g for g in group]
    return [sorted(set(group)).index(g) for g in group]


def win_rates(votes: Sequence[Vote]) -> list[WinRate]:
    """Per comparison: how often each won, and a's share of the votes that preferred one, with Wilson's interval."""
    counts = {(v.system_a, v.system_b): Counter[str]() for v in votes}
    for vote in votes:
        counts[vote.system_a, vote.system_b][vote.answer] += 1
    rows: list[WinRate] = []
    for (a, b), counts_of_pair in sorted(counts.items()):
        decided = counts_of_pair["a"] + counts_of_pair["b"]
        low, high = wilson(counts_of_pair["a"], decided) or (None, None)
        rows.append(
            {
                "a": a,
                "b": b,
                "a_wins": counts_of_pair["a"],
                "b_wins": counts_of_pair["b"],
                "neither": counts_of_pair["neither"],
                "rate": counts_of_pair["a"] / decided if decided else None,
                "low": low,
                "high": high,
            }
        )
    return rows


def krippendorff(answers: Iterable[tuple[Any, Any]]) -> float | None:
    """Krippendorff's α of nominal answers from (unit, answer): 1 is full agreement, 0 what chance would give."""
    units: dict[Any, Counter[Any]] = {}
    for unit, answer in answers:
        units.setdefault(unit, Counter())[answer] += 1
    paired = [counts for counts in units.values() if counts.total() > 1]
    totals = sum(paired, Counter[Any]())
    n = totals.total()
    expected = n * n - sum(count * count for count in totals.values())
    if not expected:  # nobody answered twice, or all said the same
        return None
    observed = sum((c.total() ** 2 - sum(k * k for k in c.values())) / (c.total() - 1) for c in paired)
    return 1 - (n - 1) * observed / expected


def preference(judge: str, vote: Vote) -> str:
    """Which caption this judge prefers."""
    if judge not in vote.scores_a or judge not in vote.scores_b:
        return "neither"
    gain = JUDGES[judge] * (vote.scores_a[judge] - vote.scores_b[judge])
    return "a" if gain > 0 else "b" if gain < 0 else "neither"


def judges(votes: Sequence[Vote], resamples: int = RESAMPLES) -> list[JudgeAgreement]:
    """How often people who preferred a caption preferred the judge's: over everything, then per comparison."""
    comparisons = sorted({(v.system_a, v.system_b) for v in votes})
    rows: list[JudgeAgreement] = []
    for judge in JUDGES:
        preferred = [(v, preference(judge, v)) for v in votes if v.answer != "neither"]
        preferred = [(v, verdict) for v, verdict in preferred if verdict != "neither"]
        for pair in [None, *comparisons]:
            of_pair = [(v, verdict) for v, verdict in preferred if pair in (None, (v.system_a, v.system_b))]
            if of_pair:
                rows.append(
                    {"judge": judge, "a": pair and pair[0], "b": pair and pair[1], **_agreement(of_pair, resamples)}
                )
    return rows


def _agreement(preferred: Sequence[tuple[Vote, str]], resamples: int) -> Agreement:
    agreed = np.array([v.answer == verdict for v, verdict in preferred], dtype=float)
    columns = np.stack([agreed, np.ones_like(agreed)], axis=1)
    rate, reach = two_way(
        columns, *_owners([v for v, _ in preferred]), lambda sums: sums[..., :1] / sums[..., 1:], resamples
    )
    interval = _reach(rate[0], reach, 0)
    return {
        "agreed": int(agreed.sum()),
        "of": len(preferred),
        "rate": float(rate[0]),
        "low": _as_share(interval["low"]),
        "high": _as_share(interval["high"]),
    }


def _as_share(value: float | None) -> float | None:
    return None if value is None else min(1.0, max(0.0, value))


def _owners(votes: Sequence[Vote]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([v.item for v in votes]), np.array([v.rater for v in votes])


def _reach(value: float, reach: np.ndarray | None, i: int) -> Bounds:
    return {
        "low": None if reach is None else float(value - reach[i]),
        "high": None if reach is None else float(value + reach[i]),
    }
