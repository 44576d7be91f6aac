"""What runs the batches: this process, or Ray (`on_ray`). Results come as they are finished, in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from captioners.evaluation.dataset import Item
from captioners.evaluation.worker import BatchResult, Plan, Worker
from captioners.lab import Lab

Batches = Sequence[Sequence[Item]]


class Engine(Protocol):
    """Runs a plan over batches of items."""

    def results(self, lab: Lab, plan: Plan, batches: Batches) -> Iterator[BatchResult]:
        """One result per batch, as they are finished."""
        ...


class LocalEngine:
    """One batch after the other; the next one's files are decoded meanwhile."""

    def results(self, lab: Lab, plan: Plan, batches: Batches) -> Iterator[BatchResult]:
        """The batches' results, in the order of the batches."""
        worker = Worker(lab, plan)
        with ThreadPoolExecutor(1) as ahead:
            reading = None
            for batch in batches:
                following = ahead.submit(worker.read, batch)
                if reading is not None:
                    yield worker.caption(reading.result())
                reading = following
            if reading is not None:
                yield worker.caption(reading.result())
