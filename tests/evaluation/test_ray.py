"""Two Ray workers, one of them killed on the way, give the numbers of one plain process."""

import json
import os
import signal
import sys

import pytest
from fakes import evaluate_folder
from PIL import Image

from captioners.evaluation.ray_engine import RayEngine
from captioners.profiles.base import load_profile
from captioners.types import CaptionLabError


def test_two_workers_one_of_them_killed_give_the_same_numbers(tmp_path, draw, embedded, one_thread):
    (tmp_path / "images").mkdir()
    for i in range(16):
        Image.fromarray(draw(i).data).save(tmp_path / f"images/{i}.png")
    (tmp_path / "images/3.png").write_bytes(b"not a picture")
    lines = [json.dumps({"image": f"{i}.png", "captions": ["a red ball", "circles"]}) for i in range(16)]
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    engine, killed = RayEngine("embedded", "cpu", workers=2), []

    def kill_one(done: int, total: int) -> None:
        if done and not killed:
            killed.append(engine.pids[0])
            os.kill(engine.pids[0], signal.SIGKILL)

    report = evaluate_folder(embedded, tmp_path, ["cfg"], batch_size=2, engine=engine, progress=kill_one)
    # a new one: it has seen none of the pictures
    plain = evaluate_folder(load_profile("embedded", "cpu"), tmp_path, ["cfg"], batch_size=2)
    assert killed
    assert len({*engine.pids}) == 2
    for run in (*report["runs"], *plain["runs"]):
        run.pop("seconds")
    assert report == plain
    assert report["runs"][0]["n"] == 15
    assert [f["id"] for f in report["runs"][0]["failed"]] == ["3.png"]


def test_without_ray_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CaptionLabError, match="pip install ray"):
        RayEngine("embedded", "cpu")


def test_an_impossible_number_of_workers_is_refused():
    with pytest.raises(CaptionLabError, match="--workers 0 is not possible"):
        RayEngine("embedded", "cpu", workers=0)


def test_workers_find_relative_paths_from_where_they_were_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine = RayEngine("hub", "cpu", "models.toml", ["mine", str(tmp_path / "yours")], "features")
    assert engine.recipe[2:] == (
        f"{tmp_path}/models.toml",
        (f"{tmp_path}/mine", f"{tmp_path}/yours"),
        f"{tmp_path}/features",
    )
    assert RayEngine("embedded", "cpu").recipe[2:] == (None, (), None)
