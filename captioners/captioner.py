"""The base of every method: subclasses write `decode`, one loop behind a single caption, a batch and a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from captioners.allocator import lacks_memory
from captioners.contract import MethodModels
from captioners.decoding import diversity, rank, step_tokens
from captioners.run_record import RunRecord, current_run, recorded
from captioners.types import CaptionLabError, Media, Modality, Result, Score, Settings, Spec, Step, TokenTrace, to_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

INPUT_WORDS = {"image": "a picture", "audio": "a sound clip"}


class Captioner(ABC):
    """One guided captioning method, on the models of one profile."""

    spec: ClassVar[Spec]

    def __init__(self, models: MethodModels) -> None:
        self.models = models
        self._others: dict[Modality, Captioner] = {}

    @abstractmethod
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        """The loop: yields at every moment, so that a caller may stop: one Step per input if `live`, else an empty
        list.

        The last moment's Steps are made by `finish` and hold the Results.
        """

    def finish(
        self,
        media: Media,
        settings: Settings,
        captions: Sequence[str],
        *,
        logprobs: Sequence[float] | None = None,
        trace_of: Callable[[int], list[TokenTrace]] = lambda best: [],
        details_of: Callable[[int], dict[str, Any]] = lambda best: {},
        scores_of: Callable[[int], dict[str, Score]] = lambda best: {},
    ) -> Step:
        """The last Step of one input: its candidate captions ranked, the best one's trace, and how it came about.

        `logprobs` are the captions' own, where known; `trace_of(i)`, `details_of(i)` and `scores_of(i)`, numbers of the
        method's own beside the judges', are asked for the best caption only.
        """
        record = current_run()
        ranking = settings.get("ranking", "ranker")
        with record.stage("rank"):
            ranker = self.models.ranker(media.kind) if len(captions) > 1 and ranking == "ranker" else None
            candidates, order = rank(ranker, media, captions, logprobs)
        with record.stage("trace"):
            trace, details = (trace_of(order[0]), details_of(order[0])) if settings.traced else ([], {})
            scores = scores_of(order[0]) if settings.traced else {}
        if len(captions) > 1:
            details = {**details, "diversity": diversity(captions)}
        result = Result(
            method=self.spec.id,
            caption=candidates[0].caption,
            candidates=candidates,
            trace=trace,
            settings=to_json(settings),
            seed=settings["seed"],
            profile=self.models.profile,
            weights=dict(sorted(record.weights.items())),
            seconds={name: value / record.inputs for name, value in record.seconds.items()},
            calls=dict(record.calls),
            scores=scores,
            notes=[*media.notes, *self.models.notes, *self.remarks(settings)],
            details=details,
        )
        return Step(len(trace), len(trace), step_tokens(trace), trace, [c.caption for c in candidates[1:]], result)

    def for_kind(self, kind: Modality) -> Captioner:
        """This method for one kind of media: on other models, where the profile has others for it."""
        choose = getattr(self.models, "for_kind", None)
        models = choose(kind) if choose else self.models
        if models is self.models:
            return self
        if kind not in self._others:
            self._others[kind] = type(self)(models)
        return self._others[kind]

    def run(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        """`decode` with a record of its own; a lack of memory is told in a sentence.

        Kinds with models of their own run one by one.
        """
        groups: dict[Captioner, list[int]] = {}
        for place, item in enumerate(media):
            groups.setdefault(self.for_kind(item.kind), []).append(place)
        if len(groups) == 1:
            (method,) = groups
            yield from method._run(media, settings, live)
            return
        last: dict[int, Step] = {}
        for method, places in groups.items():
            for moment in method._run([media[i] for i in places], [settings[i] for i in places], live=False):
                last |= zip(places, moment, strict=False)
                yield []
        yield [last[place] for place in range(len(media))]

    def _run(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        try:
            yield from recorded(self.decode(media, settings, live), RunRecord(len(media)))
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            advice = "choose fewer candidates, a smaller --batch, a smaller model with --models FILE, or --device cpu."
            raise CaptionLabError(
                f"There is not enough memory for what {self.spec.title} was asked: {advice}"
            ) from error

    def caption_batch(self, media: Sequence[Media], settings: Sequence[Settings]) -> list[Result]:
        """One result per input. Inputs may differ in everything: media, scales, seeds."""
        if len(media) != len(settings):
            raise ValueError(f"{len(media)} media but {len(settings)} settings")
        if not media:
            return []
        for item in media:
            self.check(item)
        (last,) = deque(self.run(media, settings, live=False), maxlen=1)
        return [step.finished for step in last]

    def stream(self, media: Media, settings: Settings) -> Iterator[Step]:
        """The same work for one input, live."""
        self.check(media)
        for (step,) in self.run([media], [settings], live=True):
            yield step

    def caption(self, media: Media, settings: Settings | None = None) -> Result:
        """One caption."""
        return self.caption_batch([media], [settings or self.spec.settings()])[0]

    def score_without(self, media: Media, result: Result, hidden: Tensor) -> Tensor | None:
        """log p of each token of a finished caption (m, tokens) when some cells of the input cannot be seen: hidden (m,
        cells).

        None if the method cannot tell. `captioners/attribution.py` makes of it where words come from.
        """
        return None

    def seen(self, media: Media) -> np.ndarray | None:
        """The picture (h, w, 3) uint8 that is left of an input by what the method's model reads of it.

        None where that cannot be shown.
        """
        return None

    @classmethod
    def passes(cls, settings: Settings) -> int:
        """About how many passes of its model a caption takes, one behind the other: steps where there are steps,
        else tokens.
        """
        return int(settings.get("num_steps", settings.get("max_tokens", 1)))

    @classmethod
    def remarks(cls, settings: Settings) -> tuple[str, ...]:
        """Sentences for the card on how these settings stand to the paper."""
        return ()

    @classmethod
    def check(cls, media: Media) -> None:
        """Refuse a modality that the method does not know."""
        if media.kind not in cls.spec.modalities:
            kinds = " or ".join(INPUT_WORDS[m] for m in cls.spec.modalities)
            raise CaptionLabError(f"{cls.spec.title} cannot caption this kind of input: give {kinds}.")
