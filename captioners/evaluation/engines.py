"""What runs the batches: this process, or Ray (`on_ray`). Outcomes come as they are finished, in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from captioners.evaluation.dataset import Item
from captioners.evaluation.work import Outcome, Plan, Worker
from captioners.profiles.base import Profile

Batches = Sequence[Sequence[Item]]


class Engine(Protocol):
    """Runs a plan over batches of items."""

    def outcomes(self, profile: Profile, plan: Plan, batches: Batches) -> Iterator[Outcome]: ...


class Local:
    """One batch after the other; the next one's files are decoded meanwhile."""

    def outcomes(self, profile: Profile, plan: Plan, batches: Batches) -> Iterator[Outcome]:
        """In order."""
        worker = Worker(profile, plan)
        with ThreadPoolExecutor(1) as ahead:
            reading = None
            for batch in batches:
                following = ahead.submit(worker.read, batch)
                if reading is not None:
                    yield worker.caption(reading.result())
                reading = following
            if reading is not None:
                yield worker.caption(reading.result())
