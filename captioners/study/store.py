"""The store of studies: who is asked what, and every vote, once.

A vote and the ballot that follows it are one transaction: what was confirmed is on the disk, and a rater always stands
somewhere.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from captioners.study.databases import MEMORY, Execute, open_database
from captioners.study.design import Design
from captioners.study.schema import migrate
from captioners.types import CaptionLabError, Modality, from_json, to_json

ANSWERS = ("a", "b", "neither")
# so many votes of one rater, and new raters of one study, in so many seconds
MOST_VOTES, MOST_RATERS, WINDOW = 30, 120, 60.0


class TooFast(CaptionLabError):
    """More votes, or more raters, than people could bring."""


@dataclass(frozen=True)
class Study:
    """One study of a store."""

    id: str
    title: str
    design: Design
    secret: str  # opens its results


@dataclass(frozen=True)
class Pair:
    """Two captions of one input that are to be compared. In an attention check, a is the right answer."""

    system_a: str
    system_b: str
    caption_a: str
    caption_b: str
    scores_a: dict[str, float]  # judge → what it says of a
    scores_b: dict[str, float]
    is_check: bool = False


@dataclass(frozen=True)
class Ballot:
    """What one rater sees: the captions in the order of the page."""

    position: int
    item: str
    kind: Modality
    captions: tuple[str, str]
    swapped: bool  # the left caption is b
    is_check: bool
    systems: tuple[str, str]
    scores: tuple[dict[str, float], dict[str, float]]


@dataclass(frozen=True)
class Vote:
    """One answer of one rater to one question about one pair."""

    rater: int  # in the order of joining: a rater's id stays in the store
    pair: int
    item: str
    system_a: str
    system_b: str
    caption_a: str
    caption_b: str
    scores_a: dict[str, float]
    scores_b: dict[str, float]
    is_check: bool
    question: str
    answer: str
    left: str  # a or b
    seconds: float


def is_check_position(study: str, rater: str, position: int, every: int) -> bool:
    """Whether this ballot is an attention check: one at random of every `every`, never the very first."""
    if not every:
        return False
    block, offset = divmod(position, every)
    return offset == Random(f"{study} {rater} {block}").randrange(1, every)


class Store:
    """Studies, pairs, raters, ballots and votes."""

    def __init__(self, where: str = MEMORY):
        self.database = open_database(where)
        migrate(self.database)

    def close(self) -> None:
        """Let go of the database."""
        self.database.close()

    # ------------------------------------------------------------------------------------------------ studies

    def add_study(self, id: str, design: Design) -> Study:
        """The study of that id, made if it is not there."""
        values = {"id": id, "title": design.title, "design": json.dumps(to_json(design), ensure_ascii=False)}
        with self.database.transaction() as execute:
            execute(
                "INSERT INTO study VALUES (:id, :title, :design, :secret, :created) ON CONFLICT DO NOTHING",
                {**values, "secret": secrets.token_hex(16), "created": time.time()},
            )
        return self.study(id)

    def studies(self) -> list[Study]:
        """All of them, the oldest first."""
        with self.database.transaction() as execute:
            rows = execute("SELECT id, title, design, secret FROM study ORDER BY created, id", {})
        return [Study(id, title, from_json(Design, json.loads(design)), secret) for id, title, design, secret in rows]

    def study(self, id: str | None = None) -> Study:
        """The study of that id, or the only one."""
        matching = [study for study in self.studies() if id in (None, study.id)]
        if not matching:
            raise CaptionLabError(f"There is no study {id!r} in this store." if id else "This store holds no study.")
        if len(matching) > 1:
            listed = ", ".join(f"{study.id} ({study.title})" for study in matching)
            raise CaptionLabError(f"This store holds {len(matching)} studies: choose one with --study: {listed}.")
        return matching[0]

    def add_item(self, study: str, name: str, kind: Modality, pairs: Sequence[Pair]) -> None:
        """An input with everything that will be asked about it; nothing happens when it is there already."""
        with self.database.transaction() as execute:
            if execute("SELECT 1 FROM item WHERE study = :study AND name = :name", {"study": study, "name": name}):
                return
            execute("INSERT INTO item VALUES (:study, :name, :kind)", {"study": study, "name": name, "kind": kind})
            ((number,),) = execute("SELECT COALESCE(MAX(number), 0) FROM pair WHERE study = :study", {"study": study})
            for pair in pairs:
                number += 1
                values = {key: json.dumps(v) if isinstance(v, dict) else v for key, v in vars(pair).items()}
                execute(
                    "INSERT INTO pair VALUES (:study, :number, :item, :system_a, :system_b, :caption_a, :caption_b,"
                    " :scores_a, :scores_b, :is_check, 0, 0)",
                    {**values, "study": study, "number": number, "item": name, "is_check": int(pair.is_check)},
                )

    def items(self, study: str) -> set[str]:
        """The names of the inputs that have been captioned."""
        with self.database.transaction() as execute:
            return {name for (name,) in execute("SELECT name FROM item WHERE study = :study", {"study": study})}

    def count_pairs(self, study: str) -> int:
        """How many pairs there are to ask about, checks left out."""
        with self.database.transaction() as execute:
            return _count(execute, "pair WHERE study = :study AND is_check = 0", {"study": study})

    # -------------------------------------------------------------------------------------------------- raters

    def join(self, study: str) -> str:
        """A new rater: a random id and nothing else."""
        rater, now = secrets.token_hex(16), time.time()
        with self.database.transaction() as execute:
            if (
                _count(
                    execute, "rater WHERE study = :study AND joined > :since", {"study": study, "since": now - WINDOW}
                )
                >= MOST_RATERS
            ):
                raise TooFast("Many people are joining this study right now: try again in a minute.")
            execute(
                "INSERT INTO rater VALUES (:study, :rater, :now, :now)", {"study": study, "rater": rater, "now": now}
            )
        return rater

    def knows(self, study: str, rater: str) -> bool:
        """Whether this rater has joined and was not forgotten."""
        with self.database.transaction() as execute:
            return bool(_count(execute, "rater WHERE study = :study AND id = :rater", {"study": study, "rater": rater}))

    def progress(self, study: Study, rater: str) -> tuple[int, int]:
        """How many ballots this rater has cast, and how many his share has with its attention checks."""
        whose = {"study": study.id, "rater": rater}
        with self.database.transaction() as execute:
            cast = _count(execute, "ballot WHERE study = :study AND rater = :rater AND " + CAST, whose)
            pairs = _count(execute, "pair WHERE study = :study AND is_check = 0", whose)
            checks = _count(execute, "pair WHERE study = :study AND is_check = 1", whose)
        remaining = min(study.design.share, pairs) if study.design.share else pairs
        size = 0
        while remaining:
            if checks and is_check_position(study.id, rater, size, study.design.check_every):
                checks -= 1
            else:
                remaining -= 1
            size += 1
        return cast, size

    def forget(self, study: str, rater: str) -> int:
        """Delete a rater and all of his votes; returns how many ballots went with him."""
        whose = {"study": study, "rater": rater}
        with self.database.transaction() as execute:
            cast = _count(execute, "ballot WHERE study = :study AND rater = :rater AND " + CAST, whose)
            execute(
                "UPDATE pair SET shown = shown - 1, swapped = swapped - ("
                "SELECT swapped FROM ballot"
                " WHERE ballot.study = pair.study AND ballot.pair = pair.number AND ballot.rater = :rater)"
                " WHERE study = :study AND number IN (SELECT pair FROM ballot WHERE study = :study AND rater = :rater)",
                whose,
            )
            execute("DELETE FROM rater WHERE study = :study AND id = :rater", whose)
        return cast

    # ------------------------------------------------------------------------------------------------- ballots

    def ballot(self, study: Study, rater: str) -> Ballot | None:
        """What this rater is to decide now; None when his share is done."""
        with self.database.transaction() as execute:
            _take_turn(execute, study, rater)
            return _open_ballot(execute, study, rater)

    def find_ballot(self, study: Study, rater: str, position: int) -> Ballot:
        """The ballot at a position of this rater, cast or not."""
        with self.database.transaction() as execute:
            return _read_ballot(execute, study, rater, position)

    def vote(self, study: Study, rater: str, position: int, answers: Mapping[str, str]) -> Ballot | None:
        """Keep the answers to one ballot, as a, b or neither, and give the next. Sent twice, it counts once."""
        if set(answers) != {q.id for q in study.design.questions} or not {*answers.values()} <= {*ANSWERS}:
            raise CaptionLabError("Answer every question with one of the choices.")
        where, now = {"study": study.id, "rater": rater, "position": position}, time.time()
        with self.database.transaction() as execute:
            _take_turn(execute, study, rater)
            _read_ballot(execute, study, rater, position)
            lately = {"study": study.id, "rater": rater, "since": now - WINDOW}
            if (
                _count(execute, f"ballot WHERE study = :study AND rater = :rater AND {CAST_LATELY}", lately)
                >= MOST_VOTES
            ):
                raise TooFast(
                    f"That was faster than {MOST_VOTES} votes a minute: take your time and vote again in a moment."
                )
            for question, answer in answers.items():
                execute(
                    "INSERT INTO vote VALUES (:study, :rater, :position, :question, :answer, :now)"
                    " ON CONFLICT DO NOTHING",
                    {**where, "question": question, "answer": answer, "now": now},
                )
            return _open_ballot(execute, study, rater)

    def votes(self, study: str, rater: str | None = None) -> list[Vote]:
        """Every answer, or those of one rater, by rater and in the order in which they were given."""
        with self.database.transaction() as execute:
            raters = execute("SELECT id FROM rater WHERE study = :study ORDER BY joined, id", {"study": study})
            rows = execute(
                "SELECT vote.rater, pair.number, item, system_a, system_b, caption_a, caption_b, scores_a, scores_b,"
                " is_check, question, answer, ballot.swapped, cast_at - shown_at FROM vote"
                " JOIN ballot ON ballot.study = vote.study AND ballot.rater = vote.rater"
                " AND ballot.position = vote.position"
                " JOIN pair ON pair.study = ballot.study AND pair.number = ballot.pair"
                " WHERE vote.study = :study AND (vote.rater = :rater OR :everyone = 1)"
                " ORDER BY vote.rater, vote.position, question",
                {"study": study, "rater": rater or "", "everyone": int(rater is None)},
            )
        numbers = {id: number for number, (id,) in enumerate(raters, 1)}
        return [
            Vote(
                rater=numbers[id],
                pair=pair,
                item=item,
                system_a=system_a,
                system_b=system_b,
                caption_a=caption_a,
                caption_b=caption_b,
                scores_a=json.loads(scores_a),
                scores_b=json.loads(scores_b),
                is_check=bool(is_check),
                question=question,
                answer=answer,
                left="ba"[not swapped],
                seconds=seconds,
            )
            for (
                id,
                pair,
                item,
                system_a,
                system_b,
                caption_a,
                caption_b,
                scores_a,
                scores_b,
                is_check,
                question,
                answer,
                swapped,
                seconds,
            ) in rows
        ]


VOTED = (
    "SELECT 1 FROM vote"
    " WHERE vote.study = ballot.study AND vote.rater = ballot.rater AND vote.position = ballot.position"
)
CAST = f"EXISTS ({VOTED})"
CAST_LATELY = f"EXISTS ({VOTED} AND cast_at > :since)"

# The pair that the fewest people were given; among those, the input and then the comparison that this rater has
# met least.
NEXT_PAIR = """
WITH met AS (
    SELECT pair.number, item, system_a, system_b, is_check FROM ballot
    JOIN pair ON pair.study = ballot.study AND pair.number = ballot.pair WHERE ballot.study = :study AND rater = :rater),
    inputs AS (SELECT item, COUNT(*) AS times FROM met WHERE is_check = 0 GROUP BY item),
    comparisons AS (SELECT system_a, system_b, COUNT(*) AS times FROM met WHERE is_check = 0 GROUP BY system_a, system_b)
SELECT number, shown, swapped FROM pair
LEFT JOIN inputs ON inputs.item = pair.item
LEFT JOIN comparisons ON comparisons.system_a = pair.system_a AND comparisons.system_b = pair.system_b
WHERE study = :study AND is_check = :is_check AND number NOT IN (SELECT number FROM met)
ORDER BY shown, COALESCE(inputs.times, 0), COALESCE(comparisons.times, 0), RANDOM()
LIMIT 1"""


def _count(execute: Execute, table_and_condition: str, values: Mapping[str, Any]) -> int:
    ((count,),) = execute(f"SELECT COUNT(*) FROM {table_and_condition}", values)
    return int(count)


def _take_turn(execute: Execute, study: Study, rater: str) -> None:
    """Locks the rater's row, so that two pages of one rater do not draw two ballots; refuses who has not joined."""
    whose = {"study": study.id, "rater": rater}
    execute("UPDATE rater SET seen = :now WHERE study = :study AND id = :rater", {**whose, "now": time.time()})
    if not _count(execute, "rater WHERE study = :study AND id = :rater", whose):
        raise CaptionLabError("This rater has not joined the study: reload the page and begin.")


def _open_ballot(execute: Execute, study: Study, rater: str) -> Ballot | None:
    """The ballot that has not been cast, else a new one, else nothing."""
    whose = {"study": study.id, "rater": rater}
    open_rows = execute(f"SELECT position FROM ballot WHERE study = :study AND rater = :rater AND NOT {CAST}", whose)
    position = open_rows[0][0] if open_rows else _draw(execute, study, rater)
    return None if position is None else _read_ballot(execute, study, rater, position)


def _read_ballot(execute: Execute, study: Study, rater: str, position: int) -> Ballot:
    rows = execute(
        "SELECT item, kind, caption_a, caption_b, ballot.swapped, is_check, system_a, system_b, scores_a, scores_b"
        " FROM ballot"
        " JOIN pair ON pair.study = ballot.study AND pair.number = ballot.pair"
        " JOIN item ON item.study = pair.study AND item.name = pair.item"
        " WHERE ballot.study = :study AND rater = :rater AND position = :position",
        {"study": study.id, "rater": rater, "position": position},
    )
    if not rows:
        raise CaptionLabError("This ballot is not yours: reload the page.")
    item, kind, caption_a, caption_b, swapped, is_check, system_a, system_b, scores_a, scores_b = rows[0]
    sides = [(caption_a, system_a, json.loads(scores_a)), (caption_b, system_b, json.loads(scores_b))]
    captions, systems, scores = zip(*reversed(sides) if swapped else sides, strict=True)
    return Ballot(position, item, kind, captions, bool(swapped), bool(is_check), systems, scores)


def _draw(execute: Execute, study: Study, rater: str) -> int | None:
    """A new ballot for this rater; its position, or None when nothing is left of his share."""
    whose = {"study": study.id, "rater": rater}
    ((position, checks),) = execute(
        "SELECT COUNT(*), COALESCE(SUM(is_check), 0) FROM ballot"
        " JOIN pair ON pair.study = ballot.study AND pair.number = ballot.pair"
        " WHERE ballot.study = :study AND rater = :rater",
        whose,
    )
    if study.design.share and position - checks >= study.design.share:
        return None
    pair = execute(NEXT_PAIR, {**whose, "is_check": 0})
    if not pair:  # a check behind the last pair would tell nothing of what was voted
        return None
    check = is_check_position(study.id, rater, position, study.design.check_every)
    ((number, shown, swapped),) = (execute(NEXT_PAIR, {**whose, "is_check": 1}) if check else []) or pair
    # sides stay balanced for every pair
    swap = secrets.randbelow(2) if 2 * swapped == shown else int(2 * swapped < shown)
    values = {**whose, "position": position, "pair": number, "swap": swap, "now": time.time()}
    execute("INSERT INTO ballot VALUES (:study, :rater, :position, :pair, :swap, :now)", values)
    execute(
        "UPDATE pair SET shown = shown + 1, swapped = swapped + :swap WHERE study = :study AND number = :pair", values
    )
    return int(position)
