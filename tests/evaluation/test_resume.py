"""An evaluation that was killed goes on and ends with the numbers of one that was not; features on disk change no
number.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import Echo, Shout, evaluate_folder, picture, profile, use_fakes
from PIL import Image

from captioners.cli import main
from captioners.evaluation.worker import Worker
from captioners.profiles.base import load_profile
from captioners.types import CaptionLabError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "images").mkdir()
    for i in range(9):
        picture(tmp_path / f"images/{i}.png", i)
    (tmp_path / "images/4.png").write_bytes(b"not a picture")
    lines = [json.dumps({"image": f"{i}.png", "captions": ["a dog", "a boat in the sun"]}) for i in range(9)]
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    return tmp_path


def timeless(report: dict) -> list[dict]:
    return [{key: value for key, value in run.items() if key != "seconds"} for run in report["runs"]]


class Killed(Exception):
    pass


def killed_after(batches: int, monkeypatch) -> None:
    """The process dies in the batch after so many."""
    whole, done = Worker.caption, []

    def caption(self, read):
        if len(done) == batches:
            raise Killed
        done.append(read)
        return whole(self, read)

    monkeypatch.setattr(Worker, "caption", caption)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_killed_run_goes_on_and_ends_with_the_same_report(pictures, monkeypatch, batches):
    use_fakes(monkeypatch, Echo, Shout)
    plain = evaluate_folder(profile(), pictures, batch_size=3)
    with monkeypatch.context() as patch:
        killed_after(batches, patch)
        with pytest.raises(Killed):
            evaluate_folder(profile(), pictures, batch_size=3, journal=pictures / "out.journal")
    Echo.batches.clear()
    seen = []
    resumed = evaluate_folder(
        profile(),
        pictures,
        batch_size=3,
        journal=pictures / "out.journal",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert timeless(resumed) == timeless(plain)
    assert [f["id"] for f in resumed["runs"][0]["failed"]] == ["4.png"]
    assert len(Echo.batches) == 2 * (3 - batches)
    assert seen[0] == (6 * batches, 18)
    assert seen[-1] == (18, 18)


def test_a_line_that_was_cut_by_the_kill_is_done_again(pictures, monkeypatch):
    use_fakes(monkeypatch, Echo)
    journal = pictures / "out.journal"
    plain = evaluate_folder(profile(), pictures, batch_size=3, journal=journal)
    text = journal.read_text()
    journal.write_text(text[:-40])
    Echo.batches.clear()
    assert timeless(evaluate_folder(profile(), pictures, batch_size=3, journal=journal)) == timeless(plain)
    assert Echo.batches == [3]
    assert timeless({"runs": [json.loads(line) for line in journal.read_text().splitlines()]}) == timeless(
        {"runs": [json.loads(line) for line in text.splitlines()]}
    )


def test_a_journal_of_another_run_is_refused(pictures, monkeypatch):
    use_fakes(monkeypatch, Echo)
    evaluate_folder(profile(), pictures, journal=pictures / "out.journal")
    with pytest.raises(CaptionLabError, match="other items or settings"):
        evaluate_folder(profile(), pictures, limit=5, journal=pictures / "out.journal")
    with pytest.raises(CaptionLabError, match="other items or settings"):
        evaluate_folder(
            profile(), pictures, settings={"echo": [Echo.spec.settings(seed=3)]}, journal=pictures / "out.journal"
        )


def test_weights_that_changed_since_the_kill_are_refused(pictures, monkeypatch):
    use_fakes(monkeypatch, Echo)
    journal = pictures / "out.journal"
    with monkeypatch.context() as patch:
        killed_after(1, patch)
        with pytest.raises(Killed):
            evaluate_folder(profile(), pictures, batch_size=3, journal=journal)
    journal.write_text(journal.read_text().replace("hash-8", "hash-9"))
    with pytest.raises(CaptionLabError, match=r"The weights of matcher have changed .* remove .*out\.journal"):
        evaluate_folder(profile(), pictures, batch_size=3, journal=journal)


def test_a_command_that_is_really_killed_ends_with_the_same_file(tmp_path, draw, capsys, one_thread):
    """SIGKILL on the real thing, the embedded models included."""
    (tmp_path / "images").mkdir()
    for i in range(12):
        Image.fromarray(draw(i).data).save(tmp_path / f"images/{i}.png")
    lines = [json.dumps({"image": f"{i}.png", "captions": ["a red ball", "circles"]}) for i in range(12)]
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))

    out, journal = tmp_path / "killed.json", tmp_path / "killed.json.journal"
    options = [
        "--method",
        "cfg",
        "--batch",
        "1",
        "--device",
        "cpu",
        "--features",
        str(tmp_path / "features"),
        "--json",
        str(out),
    ]
    command = ["evaluate", str(tmp_path), *options]
    with subprocess.Popen(
        [sys.executable, "-m", "captioners", *command], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as process:
        until = time.monotonic() + 120
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 2) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert not out.exists()
    assert 2 <= journal.read_bytes().count(b"\n") - 1 < 12
    assert main(command) == 0
    assert "Going on with" in capsys.readouterr().err
    assert not journal.exists()
    # a new one: it has seen none of the pictures
    plain = evaluate_folder(load_profile("embedded", "cpu"), tmp_path, ["cfg"], batch_size=1)
    assert timeless(json.loads(out.read_text())) == timeless(json.loads(json.dumps(plain)))
    assert len(list((tmp_path / "features").rglob("*.npy"))) == 2 * 12  # by the methods' encoder and the judge's
