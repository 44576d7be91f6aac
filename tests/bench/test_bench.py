"""bench reports ratios in the shape that the command line promises; how fast anything is, is not tested."""

import json
import time

import pytest
from fakes import Echo, profile, use_fakes

from captioners.bench import contest
from captioners.bench.contest import Contest, bench, chosen, contests, run
from captioners.bench.memory import STATUS, peak_growth
from captioners.cli import main
from captioners.profiles.store import MissingPart
from captioners.types import CaptionLabError

REQUIRED = {
    *("coca_vs_open_clip", "cfg_vs_transformers", "classifier_fast_vs_faithful", "mc_20_vs_100", "prefix_50_vs_1000"),
    *("candidates_64_vs_1", "batch_32_vs_1", "evaluate_32_vs_1", "page_vs_open_clip", "cfg_two_branches_vs_one"),
    *("prefix_candidates_64_vs_1", "text_tower_trimmed", "blip_vs_transformers", "blip_guided_vs_transformers"),
    *("gpt2_cache_shared_vs_copied", "mc_20_vs_method_1", "prefix_30_vs_method_1"),
}


def works(seconds: float, units: int):
    def work() -> int:
        time.sleep(seconds)
        return units

    return work


def missing(profile):
    raise MissingPart("There is no wheels.safetensors: run `python -m captioners train wheels`.")


TWICE = Contest("twice", "as much work in the same time", "thing", lambda profile: (works(0.02, 4), works(0.02, 1)))
SLOWER = Contest(
    "slower", "the same work in more time", "thing", lambda profile: (works(0.03, 1), works(0.01, 1)), repeats=1
)
ABSENT = Contest("absent", "what is not there", "thing", missing)


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr(contest, "contests", lambda: {c.name: c for c in (TWICE, SLOWER, ABSENT)})


def test_a_ratio_is_the_peers_time_per_unit_over_ours():
    row = run(TWICE, profile(), repeats=3)
    assert {"name", "ours", "peer", "unit", "ratio", "spread"} <= set(row)
    assert row["unit"] == "s/thing"
    assert row["ratio"] > 1.5
    assert row["spread"] >= 0
    assert row["ours"] < row["peer"]
    assert row["repeats"] == 3


def test_a_contest_without_its_parts_is_skipped_with_the_reason_and_the_others_run(three):
    seen = []
    report = bench(profile(), repeats=2, progress=seen.append)
    assert [row["name"] for row in report["rows"]] == ["twice", "slower"]
    assert report["rows"][1]["ratio"] < 1
    assert report["rows"][1]["repeats"] == 1
    assert [(s["name"], "train wheels" in s["reason"]) for s in report["skipped"]] == [("absent", True)]
    assert seen == report["rows"] + report["skipped"]


def test_the_command_writes_json_and_says_where_we_lose(three, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("captioners.lab.load_profile", lambda *_: profile())
    assert main(["bench", "--only", "slower", "absent", "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert "slower: 0." in out
    assert "(slower; spread" in out
    assert "absent: skipped. There is no wheels" in out
    report = json.loads((tmp_path / "out.json").read_text())
    assert [row["name"] for row in report["rows"]] == ["slower"]


def test_a_name_that_no_contest_has_is_refused(three):
    with pytest.raises(CaptionLabError, match="no contest called 'thrice': choose from twice, slower, absent"):
        chosen(["thrice"])


def test_the_promised_contests_are_found():
    assert set(contests()) >= REQUIRED


def test_a_contest_of_a_method_that_is_not_there_says_so(monkeypatch):
    use_fakes(monkeypatch, Echo)
    with pytest.raises(CaptionLabError, match="no method called 'mc-diffusion'"):
        contests()["mc_20_vs_100"].sides(profile())


@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells the peak of a process")
def test_the_peak_is_what_the_work_held_and_let_go():
    assert peak_growth(lambda: bytearray(80 * 2**20) and None) == pytest.approx(80, abs=8)
