"""One profile and its methods, loaded when first used; captions come back with their scores.

The methods play, the judges score here: the command line and the page both go through a `Lab`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock

import numpy as np

from captioners import registry
from captioners.captioner import Captioner
from captioners.contract import FluencyJudge, Matcher, YesNoClassifier
from captioners.metrics.fluency import log_perplexity
from captioners.metrics.matching import clipscore, embed_captions, embed_media
from captioners.metrics.text import count_words
from captioners.profiles.base import Judges, Profile, ProfileError, load_profile
from captioners.types import CaptionLabError, Media, Modality, Result, Score, Settings, Spec, Step

KINDS: dict[Modality, str] = {"image": "pictures", "audio": "sound"}


@dataclass(frozen=True)
class Panel:
    """The judges that are there for one kind of media, and a note for each that is not."""

    matcher: Matcher | None
    fluency: FluencyJudge | None
    audibility: YesNoClassifier | None  # for sound
    notes: tuple[str, ...]


def find_judges(judges: Judges, kind: Modality) -> Panel:
    """What can be had: a judge without weights leaves its metrics out instead of stopping the work."""
    from captioners.profiles.store import MissingPart

    wanted = [
        ("matcher", "clipscore, ref_clipscore and recall are", lambda: judges.matcher(kind)),
        ("fluency", "perplexity is", judges.fluency),
    ]
    if kind == "audio":
        wanted.append(("audibility", "audibility is", judges.audibility))
    found, notes = {}, []
    for name, metrics, load in wanted:
        try:
            found[name] = load()
        except (MissingPart, ProfileError) as error:
            notes.append(f"{metrics} left out: {error}")
    return Panel(found.get("matcher"), found.get("fluency"), found.get("audibility"), tuple(notes))


def choose_methods(kind: Modality, names: list[str] | None = None) -> list[Spec]:
    """The named methods, which must know this kind of media, or all that do."""
    able = [s for s in registry.available() if kind in s.modalities]
    if not able:
        raise CaptionLabError(f"No method can caption {KINDS[kind]}: give {' or '.join(w for k, w in KINDS.items() if k != kind)}.")
    if not names:
        return able
    specs = [registry.find(name).spec for name in dict.fromkeys(names)]
    for spec in specs:
        if spec not in able:
            raise CaptionLabError(f"The method {spec.id} cannot caption {KINDS[kind]}: choose from {', '.join(s.id for s in able)}.")
    return specs


class Lab:
    """Captions with any method of one profile, scored."""

    def __init__(
        self, profile: str | Profile = "embedded", device: str = "auto", models: str | None = None, checkpoints: Sequence[str] = ()
    ):
        self.profile = load_profile(profile, device, models, checkpoints) if isinstance(profile, str) else profile
        self._methods: dict[str, Captioner] = {}
        self._panels: dict[Modality, Panel] = {}
        self._lock = Lock()
        self._media_vector = lru_cache(maxsize=32)(self._embed)

    def methods(self) -> list[Spec]:
        """What there is to choose from."""
        return registry.available()

    def method(self, name: str) -> Captioner:
        """The method of that id, on this lab's models."""
        if name not in self._methods:  # what is there is had without the lock, which a forked process would inherit as it was
            with self._lock:
                if name not in self._methods:
                    self._methods[name] = registry.load(name, self.profile)
        return self._methods[name]

    def panel(self, kind: Modality) -> Panel:
        """The judges for this kind of media."""
        if kind not in self._panels:
            with self._lock:
                if kind not in self._panels:
                    self._panels[kind] = find_judges(self.profile.judges, kind)
        return self._panels[kind]

    def load(self) -> None:
        """Every model is read now, instead of when it is first used."""
        self.profile.load()
        for spec in self.methods():
            self.method(spec.id)
        for kind in KINDS:
            self.panel(kind)

    def caption(self, media: Media, name: str, settings: Settings | None = None) -> Result:
        """One caption and its scores."""
        return self.score(self.method(name).caption(media, settings), media)

    def stream(self, media: Media, name: str, settings: Settings | None = None) -> Iterator[Step]:
        """The same work, live; the last step holds the scored result."""
        method = self.method(name)
        for step in method.stream(media, settings or method.spec.settings()):
            yield replace(step, result=self.score(step.result, media)) if step.result else step

    def score(self, result: Result, media: Media) -> Result:
        """The result with what the judges say of its caption."""
        panel = self.panel(media.kind)
        scores = {"words": Score(float(count_words(result.caption)))}
        if panel.matcher:
            text = embed_captions(panel.matcher, [result.caption])[0]
            scores["clipscore"] = Score(float(clipscore(self._media_vector(media), text)), panel.matcher.name)
        if panel.fluency:
            scores["perplexity"] = Score(float(np.exp(log_perplexity(panel.fluency, [result.caption])[0])), panel.fluency.name)
        return replace(result, scores={**result.scores, **scores}, notes=[*result.notes, *panel.notes])

    def look_at(self, media: Media) -> None:
        """What scoring will need of an input and can be had before there is a caption; it is kept."""
        if self.panel(media.kind).matcher:
            self._media_vector(media)

    def _embed(self, media: Media) -> np.ndarray:
        return embed_media(self.panel(media.kind).matcher, [media])[0]
