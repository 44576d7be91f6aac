"""Figures about votes: against textbook examples, against hand counts, and against simulated raters whose strengths
are known.
"""

import csv
import io
import itertools
import json
import math

import numpy as np
import pytest

from captioners.study.analysis import about_question, analyse, connected, judges, krippendorff, strengths, win_rates
from captioners.study.bradley_terry import fit, probabilities
from captioners.study.design import QUESTIONS, Design
from captioners.study.intervals import student, two_way, wilson
from captioners.study.report import csv_report, html_report, text_report
from captioners.study.store import Study, Vote
from captioners.types import to_json

STUDY = Study("s", "Dogs <and> boats", Design("Dogs <and> boats", QUESTIONS, (), ()), "secret")


def vote(rater=1, item="1.png", a="x", b="y", answer="a", question="specific", check=False, better="a") -> Vote:
    scores = ({"clipscore": 1.0, "perplexity": 20.0}, {"clipscore": 0.5, "perplexity": 40.0})
    first, second = scores if better == "a" else reversed(scores)
    pair = hash((item, a, b))
    return Vote(rater, pair, item, a, b, "=a <b>dog</b>", "a boat", first, second, check, question, answer, "a", 2.5)


# ---------------------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    ("wins", "of", "low", "high"), [(10, 10, 0.7225, 1.0), (0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433)]
)
def test_wilsons_interval_is_that_of_the_textbook(wins, of, low, high):
    assert wilson(wins, of) == pytest.approx((low, high), abs=1e-4)
    assert wilson(0, 0) is None


def test_krippendorffs_alpha_is_that_of_his_own_example():
    """Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", example C: four observers, nominal, missing
    values: 0.743.
    """
    table = (
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    )
    said = [(unit, value) for row in table for unit, value in enumerate(row.split()) if value != "."]
    assert krippendorff(said) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff([(1, "a"), (2, "b")]) is None  # nobody was asked the same
    assert krippendorff([(1, "a"), (1, "a"), (2, "a"), (2, "a")]) is None  # no choice was made
    assert krippendorff([(1, "a"), (1, "a"), (2, "b"), (2, "b")]) == 1


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_students_quantile_is_that_of_the_tables(freedom, quantile):
    assert student(freedom) == pytest.approx(quantile, abs=0.015)


def test_two_systems_have_the_log_odds_between_them():
    (a, b) = fit(np.array([[30, 10, 0]]), np.array([(0, 1)]), 2)
    assert a - b == pytest.approx(math.log(3), abs=0.01)
    assert a + b == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("nu", [0.0, 0.7])
def test_the_model_is_found_again_from_its_own_probabilities(nu):
    truth, pairs = np.array([1.2, 0.1, -0.4, -0.9]), np.array(list(itertools.combinations(range(4), 2)))
    found = fit(1e6 * probabilities(truth[pairs[:, 0]] - truth[pairs[:, 1]], nu), pairs, 4)
    assert found == pytest.approx(truth, abs=1e-3)


def test_a_system_that_always_wins_stays_finite():
    (a, b) = fit(np.array([[40, 0, 0]]), np.array([(0, 1)]), 2)
    assert 3 < a - b < 20


def test_systems_that_never_met_stand_in_groups_of_their_own():
    assert connected(5, [(0, 1), (3, 4), (1, 2)]) == [0, 0, 0, 1, 1]
    votes = [vote(r, f"{i}.png", a, b) for r in range(3) for i in range(3) for a, b in (("x", "y"), ("p", "q"))]
    assert [(row["system"], row["group"]) for row in strengths(votes, 20)] == [("p", 0), ("q", 0), ("x", 1), ("y", 1)]


def test_one_rater_has_strengths_and_no_interval():
    rows = strengths([vote(1, f"{i}.png") for i in range(5)], 20)
    assert rows[0]["strength"] > 0 > rows[1]["strength"]
    assert rows[0]["low"] is rows[0]["high"] is None


def test_an_interval_is_wider_when_raters_disagree_as_wholes():
    """The same counts: in the one half of the raters always says a, in the other each is of two minds."""

    def reach(answer) -> float:
        rows = strengths([vote(r, f"{i}.png", answer="ab"[answer(r, i)]) for r in range(10) for i in range(10)], 200)
        return rows[0]["high"] - rows[0]["low"]

    assert reach(lambda r, i: r % 2) > 2 * reach(lambda r, i: (r + i) % 2)


# --------------------------------------------------------------------------------------------------------- coverage


def coverage(
    raters: int, inputs: int, each: int, of_inputs: float, of_raters: float, nu: float, rounds: int
) -> np.ndarray:
    """How often the intervals hold the truth, for each of four systems. Inputs and raters have tastes of their own, of
    these deviations.

    The truth is then what the model says of the average over tastes, by Gauss–Hermite quadrature.
    """
    truth, pairs = np.array([0.9, 0.3, -0.2, -1.0]), np.array(list(itertools.combinations(range(4), 2)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    spread = math.sqrt(2 * (of_inputs**2 + of_raters**2))
    gaps = truth[pairs[:, 0]] - truth[pairs[:, 1]]
    average = (probabilities(gaps[:, None] + spread * nodes, nu) * (weights / weights.sum())[:, None]).sum(1)
    target = fit(1e7 * average, pairs, 4)
    covered = []
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        taste = rng.normal(0, of_inputs, (inputs, 4)), rng.normal(0, of_raters, (raters, 4))
        rater = np.repeat(np.arange(raters), each)
        item, pair = np.divmod(np.concatenate([rng.permutation(inputs * 6)[:each] for _ in range(raters)]), 6)
        felt, vote = truth + taste[0][item] + taste[1][rater], np.arange(len(rater))
        chances = probabilities(felt[vote, pairs[pair, 0]] - felt[vote, pairs[pair, 1]], nu)
        answer = (rng.random((len(vote), 1)) > chances.cumsum(1)[:, :2]).sum(1)
        cells = np.eye(18)[3 * pair + answer]
        found, reach = two_way(
            cells, item, rater, lambda sums: fit(sums.reshape(*sums.shape[:-1], 6, 3), pairs, 4), 200, seed
        )
        covered.append(np.abs(found - target) <= reach)
    return np.mean(covered, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raters", "inputs", "each", "of_inputs", "of_raters", "nu"),
    [
        (20, 30, 25, 0.0, 0.0, 0.0),
        (40, 30, 25, 0.5, 0.5, 0.5),
        (40, 60, 25, 1.0, 0.3, 0.0),
        (30, 60, 25, 0.3, 1.0, 0.3),
    ],
    ids=["no tastes", "both, with ties", "inputs differ", "raters differ"],
)
def test_intervals_hold_the_truth_in_90_to_98_of_100_studies(raters, inputs, each, of_inputs, of_raters, nu):
    found = coverage(raters, inputs, each, of_inputs, of_raters, nu, 200)
    print(f"{raters} raters, {inputs} inputs: {found}, mean {found.mean():.3f}")
    assert found.min() >= 0.90
    assert found.max() <= 0.98


# ----------------------------------------------------------------------------------------------------------- reports


def some_votes() -> list[Vote]:
    """Rater 3 fails his check; the others prefer x four times in five, and the judge is right as often as they are."""
    votes = [
        vote(r, f"{i}.png", answer="b" if i % 5 == 0 else "a", question=q.id, better="b" if i % 5 == 1 else "a")
        for r in (1, 2, 3)
        for i in range(10)
        for q in QUESTIONS
    ]
    return [
        *votes,
        *(
            vote(r, a="check", b="", answer="ab"[r == 3], check=True, question=q.id)
            for r in (1, 2, 3)
            for q in QUESTIONS
        ),
    ]


def test_who_fails_the_checks_is_left_out():
    report = analyse(STUDY, some_votes(), 50)
    assert (report["raters"], report["excluded"], report["checks"]) == (3, [3], {"passed": 4, "failed": 2})
    assert report["questions"][0]["votes"] == 20


def test_win_rates_and_judges_are_counted():
    votes = [v for v in some_votes() if not v.is_check and v.question == "specific" and v.rater < 3]
    (row,) = win_rates([*votes, vote(answer="neither")])
    assert (row["a_wins"], row["b_wins"], row["neither"], row["rate"]) == (16, 4, 1, 0.8)
    assert (row["low"], row["high"]) == wilson(16, 20)
    overall, per = (r for r in judges(votes, 50) if r["judge"] == "clipscore")
    assert (overall["agreed"], overall["of"]) == (12, 20)  # wrong where people said b, and where it said b
    assert (overall["a"], per["a"], per["b"]) == (None, "x", "y")
    assert 0 <= per["low"] < per["rate"] < per["high"] <= 1


def test_a_report_is_made_of_nothing_too():
    report = analyse(STUDY, [])
    assert [q["strengths"] for q in report["questions"]] == [[], []]
    assert "0 raters" in text_report(report)
    assert "0 votes" in html_report(report)


def test_reports_say_it_in_text_html_csv_and_json():
    votes = some_votes()
    report = analyse(STUDY, votes, 50)
    assert json.loads(json.dumps(to_json(report)))["questions"][0]["wins"][0]["a"] == "x"
    text, page = text_report(report), html_report(report)
    assert "x beats y: 80% [" in text
    assert "clipscore agrees with people, all comparisons: 60%" in text
    assert "Dogs &lt;and&gt; boats" in page
    assert "<and>" not in page
    assert page.count("<svg") == 6
    assert "<script" not in page
    rows = list(csv.DictReader(io.StringIO(csv_report(votes))))
    assert len(rows) == len(votes)
    assert rows[0]["caption_a"].startswith("'=")  # no formula
    assert {row["check"] for row in rows} == {"0", "1"}


def test_a_question_that_all_leave_undecided_has_a_report():
    report = about_question([vote(r, f"{i}.png", answer="neither") for r in range(3) for i in range(3)], 20)
    assert report["wins"][0]["rate"] is None
    assert report["judges"] == []
