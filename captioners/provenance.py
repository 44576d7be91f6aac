"""Which weights a run used: whoever hands out a trained part notes it, and the run's results name what was noted.

A run may go on in another thread after each of its moments, so the notebook is opened around every one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_notebook: ContextVar[dict[str, str] | None] = ContextVar("notebook", default=None)


def noting(moments: Iterator[T]) -> Iterator[T]:
    """The same moments, with a notebook of their own."""
    used: dict[str, str] = {}
    while True:
        before = _notebook.set(used)
        try:
            moment = next(moments)
        except StopIteration:
            return
        finally:
            _notebook.reset(before)
        yield moment


def note(part: str, name: str) -> None:
    """This run uses a part, whose weights have this name."""
    used = _notebook.get()
    if used is not None:
        used[part] = name


def noted() -> dict[str, str]:
    """{part: name of its weights} of all that this run has used so far."""
    return dict(sorted((_notebook.get() or {}).items()))
