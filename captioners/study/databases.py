"""Two ways to run the same statements: SQLite from the standard library, or a server database through SQLAlchemy.

Statements name their parameters as `:name`, which both understand, and keep to SQL that SQLite and PostgreSQL share.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from captioners.types import CaptionLabError

BUSY = 30.0  # seconds to wait for another process that writes
MEMORY = ":memory:"  # a store that ends with the process

Execute = Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]


class Database(Protocol):
    """Where a store keeps its rows."""

    def transaction(self) -> AbstractContextManager[Execute]:
        """Everything executed inside is kept together once the block ends, or not at all when it fails."""
        ...

    def close(self) -> None: ...


def open_database(where: str) -> Database:
    """A path is a SQLite file, which is made if it is not there; anything with `://` is a server's URL."""
    return ServerDatabase(where) if "://" in where else SqliteDatabase(where)


class SqliteDatabase:
    """One connection that all threads share in turn.

    The write-ahead log lets other processes read meanwhile; `synchronous = FULL` puts a vote on the disk before it is
    confirmed, and `secure_delete` overwrites what is deleted.
    """

    def __init__(self, path: str):
        if path != MEMORY and not Path(path).absolute().parent.is_dir():
            raise CaptionLabError(f"The votes cannot be kept in {path}: give a file in a folder that is there.")
        self._turn = Lock()
        try:
            self._connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
                self._connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error as error:
            raise CaptionLabError(f"The votes cannot be kept in {path}: {error}; give another --store.") from error

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        with self._turn:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield lambda statement, values: self._connection.execute(statement, values).fetchall()
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def close(self) -> None:
        with self._turn:
            self._connection.close()


class ServerDatabase:
    """A pool of connections to a server. Values never stand in its messages."""

    def __init__(self, url: str):
        try:
            import sqlalchemy
        except ImportError:
            raise CaptionLabError(
                "A store on a server needs SQLAlchemy: run `pip install sqlalchemy psycopg[binary]`, or give a file."
            ) from None
        self._text = sqlalchemy.text
        try:
            self._engine = sqlalchemy.create_engine(url, pool_pre_ping=True, hide_parameters=True)
            self._engine.connect().close()
        except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
            reason = " ".join(str(getattr(error, "orig", None) or error).split())
            raise CaptionLabError(f"The store's server cannot be reached: {reason}; check the URL.") from None

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        with self._engine.begin() as connection:

            def execute(statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
                result = connection.execute(self._text(statement), dict(values))
                return [tuple(row) for row in result] if result.returns_rows else []

            yield execute

    def close(self) -> None:
        self._engine.dispose()
