"""Paired tests between two runs, against worked examples and against what chance must give."""

import itertools
import json

import numpy as np
import pytest

from captioners.cli import main
from captioners.evaluation.report import Interval, ItemReport, RunReport
from captioners.evaluation.significance import compare, paired, read_run, sign_flip, sign_test, signed_ranks, text
from captioners.types import CaptionLabError, to_json


def run(values: dict[str, float], name: str = "cfg", encoder: str = "judge", **more) -> RunReport:
    mean = float(np.mean(list(values.values())))
    metrics = {"clipscore": Interval(mean, mean, mean), "vocabulary": Interval(5.0, 5.0, 5.0)}
    items = [ItemReport(i, "a dog", {"clipscore": v}) for i, v in values.items()]
    settings = more.pop("settings", {"seed": 0})
    return RunReport(name, settings, len(items), metrics, items, encoders={"clipscore": encoder}, **more)


def write(path, *runs) -> str:
    path.write_text(json.dumps({"runs": to_json(runs)}))
    return str(path)


def test_wilcoxons_statistic_is_that_of_his_own_example():
    """Darwin's fifteen pairs of maize plants (eighths of an inch), as worked in the textbooks: W− = 24 of 120; exact
    p = 0.0413.
    """
    darwin = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], dtype=float)
    ranks = signed_ranks(darwin)
    assert ranks[ranks < 0].sum() == -24
    assert abs(ranks).sum() == 120
    assert sign_flip(ranks, flips=100_000) == pytest.approx(0.0413, abs=5e-4)
    # Fisher, 1935: 1726 of 32768 arrangements
    assert sign_flip(darwin, flips=100_000) == pytest.approx(0.0529, abs=5e-4)
    assert sign_test(13, 2) == pytest.approx(0.0074, abs=5e-5)


def test_few_values_are_flipped_in_every_way():
    values = np.array([0.3, -0.1, 0.4, 0.25])
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in itertools.product((1, -1), repeat=4)
    ]
    assert sign_flip(values) == np.mean([s >= abs(values.sum()) - 1e-12 for s in sums])


def test_equal_differences_share_their_rank_and_zeros_are_dropped():
    assert signed_ranks(np.array([2.0, -2.0, 0.0, 1.0, 5.0])).tolist() == [2.5, -2.5, 1.0, 4.0]


def test_under_the_null_p_values_are_uniform_and_the_interval_covers():
    rng = np.random.default_rng(0)
    found = [paired(*(rng.normal(size=(2, 40)) + rng.normal(size=40))) for _ in range(60)]
    for name in ("permutation", "wilcoxon"):
        assert 0.35 < np.mean([getattr(f, name) for f in found]) < 0.65
        assert np.mean([getattr(f, name) < 0.05 for f in found]) < 0.15
    assert np.mean([f.low <= 0 <= f.high for f in found]) > 0.85


def test_a_shift_beyond_the_noise_is_found_and_has_its_sign():
    rng = np.random.default_rng(1)
    a = {str(i): v for i, v in enumerate(rng.normal(size=100))}
    b = {i: v + 0.3 + 0.1 * rng.normal() for i, v in a.items()}
    report = compare(run(a, label="a"), run(b, label="b"))
    row = report.metrics[0]
    assert row.difference == pytest.approx(0.3, abs=0.05)
    assert max(row.tests.permutation, row.tests.wilcoxon, row.tests.sign) < 0.001
    assert row.tests.low > 0.2
    assert "B is higher" in text(report)
    back = compare(run(b, label="b"), run(a, label="a")).metrics[0]
    assert (back.tests.wins, back.tests.losses) == (row.tests.losses, row.tests.wins)
    assert "B is lower" in text(compare(run(b, label="b"), run(a, label="a")))


def test_a_run_does_not_differ_from_itself():
    a = run({"x": 1.0, "y": 2.0}, label="a")
    row, whole = compare(a, a).metrics
    assert row.tests.permutation == row.tests.wilcoxon == row.tests.sign == 1.0
    assert whole.tests is None
    assert "permutation" not in to_json(whole)
    assert "no paired test" in text(compare(a, a))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (run({"x": 1.0, "z": 2.0}), r"different items \(2 are in one of them only\)"),
        (run({"x": 1.0}), "different items"),
        (run({"x": 1.0, "y": 2.0}, encoder="another"), "clipscore come from different judges"),
    ],
)
def test_runs_that_cannot_be_paired_are_refused(other, words):
    with pytest.raises(CaptionLabError, match=words):
        compare(run({"x": 1.0, "y": 2.0}), other)


def test_one_run_of_several_is_chosen_by_number(tmp_path):
    first, second = run({"x": 1.0}), run({"x": 2.0}, settings={"seed": 1})
    file = write(tmp_path / "sweep.json", first, second)
    assert read_run(f"{file}#2").items[0].scores["clipscore"] == 2.0
    with pytest.raises(CaptionLabError, match=r"holds 2 runs: choose one as .*#1 \(cfg seed=0\), .*#2 \(cfg seed=1\)"):
        read_run(file)
    with pytest.raises(CaptionLabError, match="no run 3: choose from 1 to 2"):
        read_run(f"{file}#3")


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    a = write(tmp_path / "a.json", run({str(i): float(i) for i in range(30)}))
    b = write(tmp_path / "b.json", run({str(i): i + 1.0 + (i % 3) for i in range(30)}, "mc-diffusion"))
    assert main(["compare-runs", a, b, "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert "A is a.json: cfg" in out
    assert "30 items, paired" in out
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["metrics"][0]["permutation"] < 0.001


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), ("[]", "is not the report"), ('{"runs": [{}]}', "is not the report")],
)
def test_a_file_that_is_no_report_ends_with_2(tmp_path, capsys, content, words):
    path = tmp_path / "x.json"
    if content:
        path.write_text(content)
    assert main(["compare-runs", str(path), str(path)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
