"""A running study: many raters at once over HTTP, and a server that is killed again and again."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Barrier, Lock, Timer

import fakes
import pytest

ROOT = Path(__file__).resolve().parents[2]
RATERS, VOTES, KILLS = 40, 25, 20
PATIENCE = 240  # seconds that a server may take to start on a busy machine


class Rater:
    """What a rater's browser does: presses Begin, votes, keeps an id."""

    def __init__(self, port: int):
        self.port, self.id, self.position, self.seconds = port, "", -1, list[float]()
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.request("GET", "/config")
        config = json.loads(self.connection.getresponse().read())
        named = {c["props"].get("elem_id"): c["id"] for c in config["components"] if c["props"].get("elem_id")}
        events = {tuple(target): d["id"] for d in config["dependencies"] for target in d["targets"]}
        self.begin_event, self.vote_event = events[named["cl-next"], "click"], events[named["cl-vote"], "click"]

    def call(self, event: int, *data) -> None:
        body = json.dumps({"fn_index": event, "data": data, "session_hash": "test"})
        self.connection.request("POST", "/gradio_api/run/predict", body, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        self.id, self.position = answer["data"][:2]

    def begin(self) -> None:
        self.call(self.begin_event, self.id)

    def vote(self, choice: str) -> tuple[str, int]:
        """Cast the open ballot; returns what is confirmed by the answer."""
        voted, began = (self.id, self.position), time.monotonic()
        self.call(self.vote_event, self.id, self.position, choice, choice)
        self.seconds.append(time.monotonic() - began)
        return voted


@pytest.fixture
def study(tmp_path) -> Path:
    """A folder of pictures, and two files of captions to compare."""
    (tmp_path / "pictures").mkdir()
    for i in range(30):
        fakes.picture(tmp_path / "pictures" / f"{i}.png", i)
    for name in ("one", "two"):
        lines = [json.dumps({"id": f"{i}.png", "caption": f"caption {i} of {name}"}) for i in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "questions.toml").write_text('captions = ["one.jsonl", "two.jsonl"]\nshare = 25\n', encoding="utf-8")
    return tmp_path


@contextmanager
def running(study: Path, port: int):
    """`python app.py --study …`, until the block ends."""
    command = [sys.executable, "app.py", "--study", study / "pictures", "--questions", study / "questions.toml"]
    options = ["--store", study / "votes.sqlite", "--port", str(port), "--device", "cpu"]
    with (study / "log").open("a") as log:
        process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=log)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (study / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kept(study: Path) -> Counter:
    """How often each (rater, position) stands in the store."""
    connection = sqlite3.connect(study / "votes.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    rows = connection.execute("SELECT rater, position FROM vote").fetchall()
    connection.close()
    return Counter(rows)


@pytest.mark.slow
def test_forty_raters_at_once_have_every_vote_kept_once(study):
    port, together = free_port(), Barrier(RATERS)

    def take_part(number: int) -> tuple[list[tuple[str, int]], list[float]]:
        rater = Rater(port)
        together.wait(timeout=120)
        rater.begin()
        together.wait(timeout=120)
        return [rater.vote(Random(number).choice("AB")) for _ in range(VOTES)], rater.seconds

    with running(study, port), ThreadPoolExecutor(RATERS) as pool:
        Rater(port).begin()  # what the first visitor waits for is no part of this
        answers = list(pool.map(take_part, range(RATERS)))
    confirmed = [vote for votes, _ in answers for vote in votes]
    seconds = sorted(s for _, took in answers for s in took)
    p50, p95 = seconds[len(seconds) // 2], seconds[int(0.95 * len(seconds))]
    print(
        f"{len(confirmed)} votes of {RATERS} raters: p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms, most "
        f"{seconds[-1] * 1000:.0f} ms"
    )
    assert len(set(confirmed)) == len(confirmed) == RATERS * VOTES
    assert kept(study) == Counter(dict.fromkeys(confirmed, 2))  # two questions each, none twice
    assert p95 < 1
    log = (study / "log").read_text()
    assert not [rater for rater, _ in confirmed if rater in log]


@pytest.mark.slow
def test_a_server_killed_twenty_times_loses_no_confirmed_vote(study):
    (study / "questions.toml").write_text('captions = ["one.jsonl", "two.jsonl"]\nshare = 0\n', encoding="utf-8")
    random, port, confirmed, lock = Random(1), free_port(), set(), Lock()
    raters: list[Rater] = []

    def vote_until_it_dies(rater: Rater) -> None:
        try:
            while rater.position >= 0:
                before = rater.vote(Random(rater.position).choice(["A", "B", "no difference"]))
                with lock:
                    confirmed.add(before)
                time.sleep(random.uniform(0.2, 0.6))
        except (OSError, http.client.HTTPException):
            return  # killed: what was not answered may or may not have been kept

    for _ in range(KILLS):
        with running(study, port) as process, ThreadPoolExecutor(3) as pool:
            fresh = [Rater(port) for _ in range(3)]
            for old, new in zip(raters, fresh, strict=False):
                new.id = old.id if old.position >= 0 else ""  # who is done is replaced by a new rater
            raters = fresh
            for rater in raters:
                rater.begin()
                cast = [position for who, position in kept(study) if who == rater.id]
                assert rater.position == len(cast)  # goes on where he was
            Timer(random.uniform(0.1, 2.0), os.kill, (process.pid, signal.SIGKILL)).start()
            list(pool.map(vote_until_it_dies, raters))
            process.wait()
        counts = kept(study)
        assert confirmed <= set(counts)
        assert set(counts.values()) <= {2}
    print(f"{len(confirmed)} confirmed votes, {len(counts)} kept, {KILLS} kills")
    assert confirmed
