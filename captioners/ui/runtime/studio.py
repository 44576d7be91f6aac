"""Runs methods for the page and the API: one lab for everyone, opened when first needed, and what was computed is kept.

A lab reads each weights file once, so within one studio (media, method, settings) names a result for good.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock

from captioners import registry
from captioners.allocator import give_back
from captioners.lab import Lab
from captioners.media import load_media
from captioners.recently_used import RecentlyUsed
from captioners.types import CaptionLabError, Media, Result, Settings, Step
from captioners.ui.runtime.foreground_gate import ForegroundGate
from captioners.ui.runtime.hosting import gpu_is_lent
from captioners.ui.runtime.loans import Job, Loans, Moment
from captioners.ui.runtime.model_threads import ModelThreads

CACHED_RESULTS = 512  # finished captions, each with its trace: some 20 kB
CACHED_MEDIA = 16  # decoded files

Key = tuple[str, str, Settings]


class Studio:
    """Everything that is computed on the page is computed here."""

    def __init__(self, open_lab: Callable[[], Lab]):
        self._open_lab = open_lab
        self._opening = Lock()
        self._gate, self._threads = ForegroundGate(), ModelThreads()
        self.lent = gpu_is_lent()
        self._loans = Loans(self._work) if self.lent else None
        self._compute = self._loans.run if self._loans else self._decode
        self._kept: RecentlyUsed[Key, Step] = RecentlyUsed(CACHED_RESULTS)
        self._load = lru_cache(maxsize=CACHED_MEDIA)(lambda path, _changed: load_media(path))

    @cached_property
    def _lab(self) -> Lab:
        return self._open_lab()

    @property
    def lab(self) -> Lab:
        """The one lab; whoever comes first waits until it is open."""
        if "_lab" in self.__dict__:  # no lock: a process forked while another thread holds one would wait for ever
            return self._lab
        with self._opening:
            return self._lab

    def status(self) -> str:
        """What the profile is loading right now, in words; nothing before anybody has opened the lab."""
        lab = self.__dict__.get("_lab")
        return lab.profile.status() if lab else ""

    def media(self, path: str | None) -> Media:
        """A file's picture or sound, or a MediaError."""
        if not path or not Path(path).is_file():
            return load_media(path or None)
        return self._load(path, Path(path).stat().st_mtime_ns)

    def prefetch(self, media: Media) -> None:
        """Compute what scoring a new input will need, while the cards are being asked.

        What goes wrong here is told there.
        """
        if not self.lent:  # what is kept in another process would be lost
            self._threads.next(self._prepare(media))

    def _prepare(self, media: Media) -> Iterator[None]:
        self.lab.prepare_scoring(media)
        yield

    def stream(
        self, media: Media, method: str, settings: Sequence[Settings], live: bool = True
    ) -> Iterator[list[Step]]:
        """One Step per setting at every moment, the last ones with scored results.

        What is not known yet is one batch.
        """
        moments = self._moments(media, method, settings, live)
        if self.lent:  # nothing is computed in this process
            yield from filter(None, moments)
            return
        coming = self._threads.next(moments)
        try:
            while True:
                with self._gate.foreground():
                    steps = coming.result()
                if steps is None:
                    return
                coming = self._threads.next(moments)  # is being made while this one is drawn
                if steps:
                    yield steps
        finally:
            coming.cancel()

    def ahead(self, media: Media, method: str, settings: Sequence[Settings]) -> Iterator[None]:
        """The same work for later: goes on only while nobody waits for an answer, and gives up when that lasts too
        long.

        Yields at every moment, so that it can be stopped there. Nothing is computed ahead on a borrowed GPU.
        """
        if self.lent:
            return
        moments = self._moments(media, method, settings, live=False)
        while self._gate.wait_for_quiet() and self._threads.next(moments).result() is not None:
            yield

    def _moments(self, media: Media, method: str, settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        registry.find(method).check(media)
        cached = {s: self._find(media, method, s) for s in settings}
        steps = {s: step for s, step in cached.items() if step is not None}
        missing = [s for s in cached if s not in steps]
        if missing:
            for moment in self._compute(Job(media, method, missing, live)):
                steps |= dict(zip(missing, moment, strict=False))
                if not moment:
                    yield []
                elif not moment[0].result:
                    yield [steps[s] for s in settings]
            for s in missing:
                self._kept.keep((media.hash, method, s), steps[s])
            give_back()
        yield [steps[s] for s in settings]

    def _decode(self, job: Job) -> Iterator[list[Step]]:
        """What needs the models and nothing else: decoding, and at the end the judges."""
        return self.lab.run([job.media] * len(job.settings), job.method, job.settings, job.live)

    def _work(self, jobs: Sequence[Job]) -> Generator[tuple[int, Moment], None, None]:
        """Several jobs on one loan, coming on together.

        A sentence for the visitor is a value: raised, it would not arrive.
        """
        going = {number: self._decode(job) for number, job in enumerate(jobs)}
        while going:
            for number, moments in list(going.items()):
                try:
                    if moment := next(moments):
                        yield number, moment
                except StopIteration:
                    del going[number]
                except CaptionLabError as error:
                    del going[number]
                    yield number, error

    def results(self, media: Media, method: str, settings: Sequence[Settings]) -> list[Result]:
        """The finished results alone."""
        *_, last = self.stream(media, method, settings, live=False)
        return [step.finished for step in last]

    def each(self, media: Media, runs: Sequence[tuple[str, Settings]]) -> Iterator[Result | CaptionLabError]:
        """One input by several methods: what each answers, or why it cannot. A lent GPU is borrowed once for all."""
        failed = self._borrow(self._loans, media, runs) if self._loans else {}
        for method, settings in runs:
            try:
                yield failed[method] if method in failed else self.results(media, method, [settings])[0]
            except CaptionLabError as error:
                yield error

    def _borrow(self, loans: Loans, media: Media, runs: Sequence[tuple[str, Settings]]) -> dict[str, CaptionLabError]:
        """All that is not known yet is made on one loan and kept; what cannot be made is told, by method."""
        jobs = [Job(media, method, [s]) for method, s in runs if self._find(media, method, s) is None]
        answers = dict(zip([job.method for job in jobs], loans.run_all(jobs) if jobs else [], strict=True))
        for job in jobs:
            answer = answers[job.method]
            if not isinstance(answer, CaptionLabError):
                self._kept.keep((media.hash, job.method, job.settings[0]), answer[0])
        return {method: error for method, error in answers.items() if isinstance(error, CaptionLabError)}

    def explain(self, media: Media, result: Result, waits: bool = False) -> Result:
        """The result with where its words come from.

        Captions that somebody waits for go first, unless it is this that is waited for.
        """
        if self.lent or not (
            waits or self._gate.wait_for_quiet()
        ):  # a lent GPU is given back when the captions are there
            return result

        def explaining() -> Iterator[Result]:
            yield self.lab.explain(result, media)

        return self._threads.next(explaining()).result() or result

    def known(self, media: Media, method: str, settings: Sequence[Settings]) -> list[Step] | None:
        """The finished steps if every one has been computed before."""
        steps = [step for s in settings if (step := self._find(media, method, s)) is not None]
        return steps if len(steps) == len(settings) else None

    def warm_up(self, path: str) -> None:
        """Caption one file by every method that can, so that the first visitor does not wait for weights."""
        media = self.media(path)
        for spec in registry.available():
            if media.kind in spec.modalities and spec.id not in self.lab.profile.slow:
                try:
                    self.results(media, spec.id, [spec.settings(), spec.without_guidance(spec.settings())])
                except CaptionLabError as error:
                    print(f"{spec.id} is not ready: {error}")

    def _find(self, media: Media, method: str, settings: Settings) -> Step | None:
        return self._kept.get((media.hash, method, settings))
