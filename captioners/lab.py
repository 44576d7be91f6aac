"""The one way from inputs, a method and settings to scored results: page, API, command line, evaluation and Ray all go
through a `Lab`.

A lab has one profile. Its methods and judges are loaded when first used; the methods caption, the judges only score.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import TypeVar

import numpy as np
from PIL import Image

from captioners import registry
from captioners.attribution import explained
from captioners.captioner import Captioner
from captioners.contract import FluencyJudge, Matcher, TextJudge, YesNoClassifier
from captioners.media.data_uri import png_uri
from captioners.metrics.fluency import log_perplexity
from captioners.metrics.matching import clipscore, embed_captions, embed_media
from captioners.profiles.base import Judges, Profile, ProfileError, load_profile
from captioners.types import CaptionLabError, Media, Modality, Result, Score, Settings, Spec, Step
from captioners.words import count_words

Judge = TypeVar("Judge")

KINDS: dict[Modality, str] = {"image": "pictures", "audio": "sound"}


@dataclass(frozen=True)
class AvailableJudges:
    """The judges that can be had for one kind of media, and a note for each that cannot."""

    matcher: Matcher | None
    fluency: FluencyJudge | None
    audibility: YesNoClassifier | None  # for sound
    notes: tuple[str, ...]


def find_text_judge(judges: Judges) -> tuple[TextJudge | None, tuple[str, ...]]:
    """BERTScore's encoder where a profile has one, or a note why it cannot be had; it is large, and only data sets
    are measured with it.
    """
    try:
        return judges.texts(), ()
    except ProfileError as error:
        return None, (f"bertscore is left out: {error}",)


def find_judges(judges: Judges, kind: Modality) -> AvailableJudges:
    """What can be had: a judge without weights leaves its metrics out instead of stopping the work."""
    from captioners.profiles.store import MissingPart

    notes: list[str] = []

    def available(metrics: str, load: Callable[[], Judge]) -> Judge | None:
        try:
            return load()
        except (MissingPart, ProfileError) as error:
            notes.append(f"{metrics} left out: {error}")
            return None

    matcher = available("clipscore, ref_clipscore and recall are", lambda: judges.matcher(kind))
    fluency = available("perplexity is", judges.fluency)
    audibility = available("audibility is", judges.audibility) if kind == "audio" else None
    return AvailableJudges(matcher, fluency, audibility, tuple(notes))


def choose_methods(kind: Modality, names: list[str] | None = None) -> list[Spec]:
    """The named methods, which must know this kind of media, or all that do."""
    able = [s for s in registry.available() if kind in s.modalities]
    if not able:
        raise CaptionLabError(
            f"No method can caption {KINDS[kind]}: give {' or '.join(w for k, w in KINDS.items() if k != kind)}."
        )
    if not names:
        return able
    specs = [registry.find(name).spec for name in dict.fromkeys(names)]
    for spec in specs:
        if spec not in able:
            raise CaptionLabError(
                f"The method {spec.id} cannot caption {KINDS[kind]}: choose from {', '.join(s.id for s in able)}."
            )
    return specs


class Lab:
    """Captions with any method of one profile, scored."""

    def __init__(
        self,
        profile: str | Profile = "embedded",
        device: str = "auto",
        models: str | None = None,
        checkpoints: Sequence[str] = (),
    ):
        self.profile = load_profile(profile, device, models, checkpoints) if isinstance(profile, str) else profile
        self._methods: dict[str, Captioner] = {}
        self._judges: dict[Modality, AvailableJudges] = {}
        self._lock = Lock()
        self._media_vector = lru_cache(maxsize=32)(self._embed)

    def methods(self) -> list[Spec]:
        """The specs of all methods that this lab can run."""
        return registry.available()

    def method(self, name: str) -> Captioner:
        """The method of that id, on this lab's models."""
        if (
            name not in self._methods
        ):  # what is there is had without the lock, which a forked process would inherit as it was
            with self._lock:
                if name not in self._methods:
                    self._methods[name] = registry.load(name, self.profile)
        return self._methods[name]

    def judges(self, kind: Modality) -> AvailableJudges:
        """The judges for this kind of media."""
        if kind not in self._judges:
            with self._lock:
                if kind not in self._judges:
                    self._judges[kind] = find_judges(self.profile.judges, kind)
        return self._judges[kind]

    def load(self) -> None:
        """Every model is read now, instead of when it is first used."""
        self.profile.load()
        for spec in self.methods():
            self.method(spec.id)
        for kind in KINDS:
            self.judges(kind)

    def run(
        self, media: Sequence[Media], method: str, settings: Sequence[Settings], live: bool = False, scored: bool = True
    ) -> Iterator[list[Step]]:
        """One input per setting, decoded as one batch; yields at every moment, so that a caller may stop.

        A moment is one Step per input if `live`, else an empty list; the last one's Steps hold the results, with what
        the judges say of them if `scored`.
        """
        captioner = self.method(method)
        for item in media:
            captioner.check(item)
        for steps in captioner.run(media, settings, live):
            if scored and steps and steps[0].result:
                steps = [replace(s, result=self.score(s.finished, m)) for s, m in zip(steps, media, strict=True)]
            yield steps

    def results(
        self, media: Sequence[Media], method: str, settings: Sequence[Settings] | None = None, scored: bool = True
    ) -> list[Result]:
        """The finished results alone; without settings, by the method's own defaults."""
        if not media:
            return []
        chosen = settings if settings is not None else [self.method(method).spec.settings()] * len(media)
        (last,) = deque(self.run(media, method, chosen, scored=scored), maxlen=1)
        return [step.finished for step in last]

    def caption(self, media: Media, method: str, settings: Settings | None = None) -> Result:
        """One scored caption, for programs that want no more."""
        return self.results([media], method, [settings or self.method(method).spec.settings()])[0]

    def score(self, result: Result, media: Media) -> Result:
        """The result with what the judges say of its caption."""
        judges = self.judges(media.kind)
        scores = {"words": Score(float(count_words(result.caption)))}
        if judges.matcher:
            text = embed_captions(judges.matcher, [result.caption])[0]
            scores["clipscore"] = Score(float(clipscore(self._media_vector(media), text)), judges.matcher.name)
        if judges.fluency:
            scores["perplexity"] = Score(
                float(np.exp(log_perplexity(judges.fluency, [result.caption])[0])), judges.fluency.name
            )
        if judges.audibility:
            scores["audibility"] = Score(
                float(judges.audibility.probability([result.caption])[0]), judges.audibility.name
            )
        return replace(result, scores={**result.scores, **scores}, notes=[*result.notes, *judges.notes])

    def explain(self, result: Result, media: Media) -> Result:
        """The result with where each of its words comes from in `details["attribution"]`, if its method can tell, and
        with what its model reads of a picture in `details["seen"]`, a PNG as text, if that can be shown.
        """
        method = self.method(result.method)
        seen = method.seen(media)
        if seen is not None:
            result = replace(result, details={**result.details, "seen": png_uri(Image.fromarray(seen))})
        return explained(method, media, result)

    def prepare_scoring(self, media: Media) -> None:
        """Compute and keep what scoring will need of an input, before there is a caption."""
        if self.judges(media.kind).matcher:
            self._media_vector(media)

    def _embed(self, media: Media) -> np.ndarray:
        matcher = self.judges(media.kind).matcher
        assert matcher is not None  # asked only where there is one
        vector: np.ndarray = embed_media(matcher, [media])[0]
        return vector
