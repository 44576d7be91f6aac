"""The store of studies: every vote once, shares balanced and resumable, two databases with the same statements."""

import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from captioners.study import schema
from captioners.study import store as store_module
from captioners.study.design import QUESTIONS, Design, System
from captioners.study.store import Pair, Store, Study, TooFast
from captioners.types import CaptionLabError

ITEMS = 6
DESIGN = Design(
    "A study", QUESTIONS, (System("x"), System("y"), System("z")), (("x", "y"), ("x", "z"), ("y", "z")), 9, 5
)
ALL_A = {q.id: "a" for q in QUESTIONS}


def add_study(store: Store, design: Design = DESIGN, items: int = ITEMS) -> Study:
    study = store.add_study("s", design)
    for i in range(items):
        pairs = [
            Pair(a, b, f"{a} {i}", f"{b} {i}", {"clipscore": 1.0}, {"clipscore": 0.5}) for a, b in design.comparisons
        ]
        store.add_item(
            "s", f"{i}.png", "image", [*pairs, Pair("check", "", "choose this", "not this", {}, {}, is_check=True)]
        )
    return study


def vote_all(store: Store, study: Study, rater: str, answer: str = "a", most: int = 1000) -> list:
    ballots, ballot = [], store.ballot(study, rater)
    while ballot and len(ballots) < most:
        ballots.append(ballot)
        ballot = store.vote(study, rater, ballot.position, {q.id: answer for q in study.design.questions})
    return ballots


# --------------------------------------------------------------------------------------------------- both databases


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own, from Debian's package, which root may install."""
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not find_postgres() and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "postgresql"]
        subprocess.run(["apt-get", "-qq", "update"], env=environment, capture_output=True, check=False, timeout=300)
        subprocess.run(command, env=environment, capture_output=True, check=False, timeout=600)
    programs = find_postgres()
    if not programs:
        pytest.skip("there is no PostgreSQL, and only root can install it: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="caption-lab-postgres-"))
    run_as: dict = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        run_as = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    data, port = folder / "data", 5000 + os.getpid() % 20_000
    quiet = {"check": True, "capture_output": True, "cwd": folder, "timeout": 120, **run_as}
    options = f"-p {port} -k {folder} -c listen_addresses=''"
    try:
        subprocess.run([programs / "initdb", "-D", data, "-A", "trust", "-U", "lab", "--no-sync"], **quiet)
        subprocess.run([programs / "pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start"], **quiet)
        yield f"postgresql+psycopg://lab@/postgres?host={folder}&port={port}"
    finally:
        subprocess.run([programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **{**quiet, "check": False})
        shutil.rmtree(folder, ignore_errors=True)


def find_postgres() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(p) for p in [shutil.which("initdb")] if p]
    return found[-1].parent if found else None


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path) -> Iterator[Store]:
    where = str(tmp_path / "votes.sqlite") if request.param == "sqlite" else request.getfixturevalue("postgres")
    store = Store(where)
    yield store
    with store.database.transaction() as execute:
        execute("DELETE FROM study", {})
    store.close()


def test_a_share_is_voted_on_once_and_ends(store):
    study = add_study(store)
    rater = store.join("s")
    ballots = vote_all(store, study, rater)
    real = [b for b in ballots if not b.is_check]
    assert len(real) == DESIGN.share
    assert len({(b.item, *sorted(b.systems)) for b in real}) == len(real)
    assert [b.position for b in ballots] == list(range(len(ballots)))
    assert store.ballot(study, rater) is None
    votes = store.votes("s")
    assert len(votes) == 2 * len(ballots)
    assert {v.answer for v in votes} == {"a"}
    assert {v.rater for v in votes} == {1}
    assert store.progress(study, rater) == (len(ballots), len(ballots))


def test_a_share_of_all_pairs_ends_where_its_length_says_and_never_on_a_check(store):
    study = add_study(store, replace(DESIGN, share=0), items=2)  # six pairs: a check may fall right behind the last
    for _ in range(12):
        rater = store.join("s")
        ballots = vote_all(store, study, rater)
        assert store.progress(study, rater) == (len(ballots), len(ballots))
        assert not ballots[-1].is_check


def test_a_vote_sent_twice_counts_once_and_the_first_one_stays(store):
    study = add_study(store)
    rater = store.join("s")
    ballot = store.ballot(study, rater)
    after = store.vote(study, rater, ballot.position, ALL_A)
    again = store.vote(study, rater, ballot.position, {q.id: "b" for q in QUESTIONS})
    assert after == again
    assert [v.answer for v in store.votes("s")] == ["a", "a"]


def test_a_rater_finds_his_ballot_again(store):
    study = add_study(store)
    rater = store.join("s")
    assert store.ballot(study, rater) == store.ballot(study, rater)
    with ThreadPoolExecutor(8) as pool:  # eight pages of one rater
        assert len(set(pool.map(lambda _: store.ballot(study, rater).position, range(16)))) == 1


def test_shares_are_balanced_over_pairs_and_sides(store):
    study = add_study(store)
    seen, left = Counter(), Counter()
    for _ in range(10):  # 10 shares of 9 over 18 pairs: five for each
        for ballot in vote_all(store, study, store.join("s")):
            if not ballot.is_check:
                seen[ballot.item, *sorted(ballot.systems)] += 1
                left[ballot.systems[0] < ballot.systems[1]] += 1
    assert set(seen.values()) == {5}
    assert abs(left[True] - left[False]) <= 18


def test_one_rater_meets_every_input_before_he_meets_one_twice(store):
    study = add_study(store)
    items = [b.item for b in vote_all(store, study, store.join("s")) if not b.is_check]
    assert len(set(items[:ITEMS])) == ITEMS


def test_attention_checks_come_once_in_a_block(store):
    study = add_study(store)
    ballots = vote_all(store, study, store.join("s"))
    assert [sum(b.is_check for b in ballots[i : i + 5]) for i in (0, 5)] == [1, 1]
    assert not ballots[0].is_check


def test_a_rater_is_forgotten_with_all_votes_and_others_stay(store):
    study = add_study(store)
    mine, theirs = store.join("s"), store.join("s")
    cast = len(vote_all(store, study, mine))
    vote_all(store, study, theirs, "b", most=3)
    assert store.forget("s", mine) == cast
    assert not store.knows("s", mine)
    assert {v.answer for v in store.votes("s")} == {"b"}
    with store.database.transaction() as execute:
        ((shown, swapped),) = execute("SELECT SUM(shown), SUM(swapped) FROM pair", {})
        ((ballots, flipped),) = execute("SELECT COUNT(*), SUM(swapped) FROM ballot", {})
    assert (shown, swapped) == (ballots, flipped)
    with pytest.raises(CaptionLabError, match="reload the page"):
        store.ballot(study, mine)


def test_nobody_votes_faster_than_people_can(store, monkeypatch):
    monkeypatch.setattr(store_module, "MOST_VOTES", 3)
    study = add_study(store)
    rater, other = store.join("s"), store.join("s")
    with pytest.raises(TooFast, match="faster than 3 votes a minute"):
        vote_all(store, study, rater)
    assert len({(v.pair) for v in store.votes("s")}) == 3
    assert len(vote_all(store, study, other, most=3)) == 3  # others are not held up


def test_new_raters_are_limited_too(store, monkeypatch):
    monkeypatch.setattr(store_module, "MOST_RATERS", 2)
    add_study(store)
    store.join("s"), store.join("s")
    with pytest.raises(TooFast, match="try again in a minute"):
        store.join("s")


@pytest.mark.parametrize(
    "answers", [{}, {"specific": "a"}, {"specific": "a", "fluent": "maybe"}, {**ALL_A, "more": "a"}]
)
def test_answers_that_do_not_fit_are_refused(store, answers):
    study = add_study(store)
    rater = store.join("s")
    store.ballot(study, rater)
    with pytest.raises(CaptionLabError, match="Answer every question"):
        store.vote(study, rater, 0, answers)


def test_somebody_elses_ballot_cannot_be_cast(store):
    study = add_study(store)
    rater = store.join("s")
    with pytest.raises(CaptionLabError, match="not yours"):
        store.vote(study, rater, 7, ALL_A)
    with pytest.raises(CaptionLabError, match="has not joined"):
        store.vote(study, "' OR 1=1 --", 0, ALL_A)


def test_captions_come_back_as_they_were(store):
    study = store.add_study("s", DESIGN)
    text = 'a <b>"dog"</b> :name %s \' ; DROP TABLE vote; -- 犬 😀'
    store.add_item("s", "odd :name.png", "image", [Pair("x", "y", text, "plain", {"clipscore": 0.25}, {})])
    ballot = store.ballot(study, store.join("s"))
    assert set(ballot.captions) == {text, "plain"}
    assert ballot.item == "odd :name.png"


def test_twenty_raters_at_once_lose_and_double_nothing(store):
    study = add_study(store)
    with ThreadPoolExecutor(20) as pool:
        ballots = list(pool.map(lambda _: vote_all(store, study, store.join("s")), range(20)))
    assert len(store.votes("s")) == 2 * sum(map(len, ballots))
    with store.database.transaction() as execute:
        assert not execute("SELECT 1 FROM ballot GROUP BY study, rater, pair HAVING COUNT(*) > 1", {})


# ------------------------------------------------------------------------------------------------- versions, mistakes


def test_a_store_is_brought_to_the_newest_version_and_keeps_its_votes(tmp_path, monkeypatch):
    path = str(tmp_path / "votes.sqlite")
    store = Store(path)
    study = add_study(store)
    vote_all(store, study, store.join("s"))
    before = store.votes("s")
    store.close()
    monkeypatch.setattr(
        schema, "MIGRATIONS", (*schema.MIGRATIONS, ("ALTER TABLE rater ADD COLUMN language TEXT NOT NULL DEFAULT ''",))
    )
    newer = Store(path)
    assert newer.votes("s") == before
    with newer.database.transaction() as execute:
        assert execute("SELECT version FROM schema_version ORDER BY version", {}) == [(1,), (2,)]
        assert execute("SELECT DISTINCT language FROM rater", {}) == [("",)]
    newer.close()
    monkeypatch.undo()
    with pytest.raises(CaptionLabError, match="use a newer Caption Lab"):
        Store(path)


def test_a_failed_migration_leaves_the_store_as_it_was(tmp_path, monkeypatch):
    path = str(tmp_path / "votes.sqlite")
    Store(path).close()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE more (id INTEGER)", "nonsense")))
        with pytest.raises(sqlite3.OperationalError):
            Store(path)
    with Store(path).database.transaction() as execute:
        assert not execute("SELECT 1 FROM sqlite_master WHERE name = 'more'", {})


def test_mistakes_are_told_in_a_sentence(tmp_path):
    broken = tmp_path / "broken.sqlite"
    broken.write_text("this is not a database, it is a text of some length " * 20)
    for where, sentence in (
        (str(broken), "give another --store"),
        (str(tmp_path / "nowhere" / "votes.sqlite"), "a folder that is there"),
        ("nonsense://x", "check the URL"),
    ):
        with pytest.raises(CaptionLabError, match=sentence):
            Store(where)
    store = Store()
    with pytest.raises(CaptionLabError, match="holds no study"):
        store.study()
    store.add_study("one", DESIGN)
    store.add_study("two", DESIGN)
    with pytest.raises(CaptionLabError, match=r"choose one with --study: one .*two"):
        store.study()


# ------------------------------------------------------------------------------------------------------- kill -9

WRITER = """
import sys, threading
sys.path[:0] = {paths!r}
from test_study_store import QUESTIONS
from captioners.study import store as module
from captioners.study.store import Store
module.MOST_VOTES = 10**9
store = Store({path!r})
study, lock = store.study("s"), threading.Lock()
def run(rater):
    ballot = store.ballot(study, rater)
    while ballot:
        place = ballot.position
        ballot = store.vote(study, rater, place, {{q.id: "b" for q in QUESTIONS}})
        with lock:
            print(rater, place, flush=True)  # the confirmation
threads = [threading.Thread(target=run, args=(r,)) for r in {raters!r}]
print("ready", flush=True)
[t.start() for t in threads]
[t.join() for t in threads]
"""


def kill_rounds(tmp_path: Path, rounds: int) -> int:
    """Four raters vote in a process that is killed again and again; returns how many votes were confirmed."""
    path, random = str(tmp_path / "votes.sqlite"), Random(0)
    store = Store(path)
    add_study(store, Design("A study", QUESTIONS, DESIGN.systems, DESIGN.comparisons, 0, 5), items=700)
    raters = [store.join("s") for _ in range(4)]
    store.close()
    here = Path(__file__).resolve().parent
    program = WRITER.format(paths=[str(here), str(here.parent), str(here.parents[1])], path=path, raters=raters)
    confirmed: set[tuple[str, int]] = set()
    for _ in range(rounds):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        timer = threading.Timer(random.uniform(0.02, 0.6), lambda p=process: os.kill(p.pid, signal.SIGKILL))
        timer.start()
        said = process.stdout.read()  # until it is killed
        assert process.wait() == -signal.SIGKILL
        confirmed |= {
            (rater, int(place)) for rater, place in (line.split() for line in said.splitlines() if line.count(" ") == 1)
        }
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        kept = connection.execute("SELECT rater, position FROM vote").fetchall()
        connection.close()
        counts = Counter(kept)
        assert confirmed <= set(counts)
        assert set(counts.values()) == {len(QUESTIONS)}  # all answers of a ballot, each once
        store = Store(path)
        study = store.study("s")
        for rater in raters:  # goes on where he was
            places = sorted(place for who, place in counts if who == rater)
            assert places == list(range(len(places)))
            assert store.ballot(study, rater).position == len(places)
        store.close()
    return len(confirmed)


def test_a_killed_process_loses_no_confirmed_vote(tmp_path):
    assert kill_rounds(tmp_path, 2) > 0


@pytest.mark.slow
def test_twenty_kills_lose_no_confirmed_vote(tmp_path):
    began = time.monotonic()
    print(f"{kill_rounds(tmp_path, 20)} confirmed votes over 20 kills, {time.monotonic() - began:.0f} s")
