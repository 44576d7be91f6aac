"""The store's tables. A store knows its version; what is missing is applied in order when it is opened.

A migration that has been released is never changed: what comes later is a new one at the end.
"""

from __future__ import annotations

import time

from captioners.study.databases import Database
from captioners.types import CaptionLabError

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE study (
            id TEXT PRIMARY KEY, title TEXT NOT NULL, design TEXT NOT NULL, secret TEXT NOT NULL UNIQUE,
            created DOUBLE PRECISION NOT NULL)""",
        """CREATE TABLE item (
            study TEXT NOT NULL REFERENCES study (id) ON DELETE CASCADE, name TEXT NOT NULL, kind TEXT NOT NULL,
            PRIMARY KEY (study, name))""",
        # shown and swapped count the raters who were given the pair, and those who saw b on the left
        """CREATE TABLE pair (
            study TEXT NOT NULL, number INTEGER NOT NULL, item TEXT NOT NULL,
            system_a TEXT NOT NULL, system_b TEXT NOT NULL, caption_a TEXT NOT NULL, caption_b TEXT NOT NULL,
            scores_a TEXT NOT NULL, scores_b TEXT NOT NULL, is_check INTEGER NOT NULL,
            shown INTEGER NOT NULL DEFAULT 0, swapped INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (study, number), UNIQUE (study, item, system_a, system_b),
            FOREIGN KEY (study, item) REFERENCES item (study, name) ON DELETE CASCADE)""",
        """CREATE TABLE rater (
            study TEXT NOT NULL REFERENCES study (id) ON DELETE CASCADE, id TEXT NOT NULL,
            joined DOUBLE PRECISION NOT NULL, seen DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (study, id))""",
        """CREATE TABLE ballot (
            study TEXT NOT NULL, rater TEXT NOT NULL, position INTEGER NOT NULL, pair INTEGER NOT NULL,
            swapped INTEGER NOT NULL, shown_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (study, rater, position), UNIQUE (study, rater, pair),
            FOREIGN KEY (study, rater) REFERENCES rater (study, id) ON DELETE CASCADE,
            FOREIGN KEY (study, pair) REFERENCES pair (study, number) ON DELETE CASCADE)""",
        """CREATE TABLE vote (
            study TEXT NOT NULL, rater TEXT NOT NULL, position INTEGER NOT NULL, question TEXT NOT NULL,
            answer TEXT NOT NULL CHECK (answer IN ('a', 'b', 'neither')), cast_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (study, rater, position, question),
            FOREIGN KEY (study, rater, position) REFERENCES ballot (study, rater, position) ON DELETE CASCADE)""",
    ),
)


def migrate(database: Database) -> None:
    """Bring the tables to the version that this code knows."""
    with database.transaction() as execute:
        execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, "
            "applied DOUBLE PRECISION NOT NULL)",
            {},
        )
        ((version,),) = execute("SELECT COALESCE(MAX(version), 0) FROM schema_version", {})
        if version > len(MIGRATIONS):
            raise CaptionLabError(
                f"This store is of version {version}, "
                f"this program knows up to {len(MIGRATIONS)}: use a newer Caption Lab."
            )
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            for statement in statements:
                execute(statement, {})
            execute(
                "INSERT INTO schema_version VALUES (:version, :applied)", {"version": number, "applied": time.time()}
            )
