"""What one run records while it works: the weights it used, seconds per stage, calls per model.

A run may go on in another thread after each of its moments, so its record is made the current one around every one of
them. Whoever hands out a trained part calls `record_weights`, and the run's results name what was recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class RunRecord:
    """The record of one run over `inputs` that are decoded together."""

    inputs: int = 1
    weights: dict[str, str] = field(default_factory=dict)  # part → name of its weights
    seconds: dict[str, float] = field(default_factory=dict)  # stage → wall time of the whole batch
    calls: dict[str, int] = field(default_factory=dict)  # model → forward passes

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time inside to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def call(self, name: str) -> None:
        """Counts one forward pass."""
        self.calls[name] = self.calls.get(name, 0) + 1


_current: ContextVar[RunRecord | None] = ContextVar("run_record", default=None)


def recorded(moments: Iterator[T], record: RunRecord) -> Iterator[T]:
    """The same moments, each made while `record` is the current one."""
    while True:
        before = _current.set(record)
        try:
            moment = next(moments)
        except StopIteration:
            return
        finally:
            _current.reset(before)
        yield moment


def current_run() -> RunRecord:
    """The record of the run that this code is a part of."""
    record = _current.get()
    if record is None:
        raise RuntimeError(
            "`decode` was called by itself: call `caption`, `caption_batch`, `stream` or `run`, which keep a record."
        )
    return record


def record_weights(part: str, name: str) -> None:
    """The current run, if there is one, uses a part whose weights have this name."""
    record = _current.get()
    if record is not None:
        record.weights[part] = name
