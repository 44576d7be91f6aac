"""What somebody waits for goes first; what is computed ahead waits until no foreground work has run for a moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

QUIET_SECONDS = 0.3  # seconds without foreground work: longer than the gap between two tokens of a stream
PATIENCE_SECONDS = 20.0  # seconds that background work waits before it is given up
POLL_SECONDS = 0.05  # seconds between two looks


class ForegroundGate:
    """Counts the foreground work of all threads and lets background work through when there is none."""

    def __init__(self) -> None:
        self._lock, self._working, self._last = Lock(), 0, -QUIET_SECONDS

    @contextmanager
    def foreground(self) -> Iterator[None]:
        """A context around every stretch of foreground work."""
        with self._lock:
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1
                self._last = time.monotonic()

    @property
    def quiet(self) -> bool:
        """Whether no foreground work is going on, or was just now."""
        with self._lock:
            return self._working == 0 and time.monotonic() - self._last >= QUIET_SECONDS

    def wait_for_quiet(self) -> bool:
        """Blocks background work; False when it has waited long enough."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.quiet:
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True
