"""One loan of a ZeroGPU Space's GPU for all that a visitor asks at once: the cards of a comparison share it.

The main process holds the models and computes nothing; a loan is a run of `work` in a process that was forked from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread

from captioners import registry
from captioners.types import CaptionLabError, Media, Settings, Step
from captioners.ui.runtime.hosting import on_gpu

GATHERING = 0.4  # seconds that a loan waits for the visitor's other cards
BEGINNING = 10.0  # seconds until the weights are on the GPU
PASS = 0.05  # seconds for one pass of a model
ROW = 0.1  # of a pass: what each further row of a batch costs
LONGEST = 120  # seconds that a visitor may borrow at once

Moment = list[Step] | CaptionLabError


@dataclass(frozen=True)
class Job:
    """One input, one method, some settings."""

    media: Media
    method: str
    settings: list[Settings]
    live: bool = False


# yields (number of a job, what it shows now or why it cannot)
Work = Callable[[list[Job]], Generator[tuple[int, Moment], None, None]]


def loan_seconds(jobs: Sequence[Job]) -> int:
    """How long some jobs will need the GPU."""
    return min(LONGEST, math.ceil(BEGINNING + sum(map(_seconds, jobs))))


def _seconds(job: Job) -> float:
    passes: float = max(registry.find(job.method).passes(s) for s in job.settings)
    rows: int = sum(s.get("num_candidates", 1) for s in job.settings)
    return PASS * passes * (1 + ROW * (rows - 1))


@dataclass
class Loan:
    """Jobs that share a GPU, and a queue for each, which ends with None."""

    jobs: list[Job] = field(default_factory=list)
    queues: list[SimpleQueue[Moment | BaseException | None]] = field(default_factory=list)
    readers: int = 0

    def add(self, job: Job) -> SimpleQueue[Moment | BaseException | None]:
        self.jobs.append(job)
        self.queues.append(SimpleQueue())
        self.readers += 1
        return self.queues[-1]


class Loans:
    """Whoever asks first waits a moment for the others; then all of them are one call of the borrowing function."""

    def __init__(self, work: Work):
        self._work = on_gpu(work, loan_seconds)
        self._lock, self._gathering = Lock(), dict[str, Loan]()

    def run(self, job: Job) -> Iterator[list[Step]]:
        """The moments of one job."""
        visitor = _visitor()
        with self._lock:
            loan = self._gathering.get(visitor)
            first = loan is None
            if loan is None:
                loan = self._gathering[visitor] = Loan()
            moments = loan.add(job)
        if first:
            time.sleep(GATHERING)
            with self._lock:
                del self._gathering[visitor]
            # it knows whose request it is
            Thread(target=copy_context().run, args=(self._lend, loan), daemon=True).start()
        try:
            while (moment := moments.get()) is not None:
                if isinstance(moment, BaseException):
                    raise moment
                yield moment
        finally:
            loan.readers -= 1

    def run_all(self, jobs: list[Job]) -> list[Moment]:
        """The last moment of each, on one loan."""
        last: dict[int, Moment] = dict(self._work(jobs))
        return [last[number] for number in range(len(jobs))]

    def _lend(self, loan: Loan) -> None:
        """Hand every moment to the job it belongs to. What nobody reads any more is stopped."""
        try:
            moments = self._work(loan.jobs)
            for number, moment in moments:
                loan.queues[number].put(moment)
                if not loan.readers:
                    moments.close()
                    break
        except BaseException as error:  # every card tells of it
            for queue in loan.queues:
                queue.put(error)
        for queue in loan.queues:
            queue.put(None)


def _visitor() -> str:
    """Whose request this is; requests from outside of a page have no session."""
    from gradio.context import LocalContext

    return getattr(LocalContext.request.get(None), "session_hash", None) or ""
