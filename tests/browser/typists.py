"""Methods without a model for the page in a browser: a caption is typed word by word, as slowly as a test wants."""

import time

import fakes
import torch

from captioners.captioner import Captioner
from captioners.controls import GUIDANCE_SCALE, NUM_CANDIDATES, SEED, TEMPERATURE
from captioners.types import Alternative, Spec, Step, StepToken, TokenTrace


class Typist(Captioner):
    """Types a caption that says its guidance scale; slowly when the temperature is high."""

    spec = Spec(
        "typist",
        "Typist",
        "Types.",
        "https://example.org",
        ("image", "audio"),
        (GUIDANCE_SCALE, TEMPERATURE, SEED),
        formula="s = γ·c",
        unguided={"guidance_scale": 1.0},
    )
    runs = 0

    def decode(self, media, settings, live):
        type(self).runs += 1
        rows = [self.words(m, s) for m, s in zip(media, settings, strict=True)]
        for position in range(1, max(map(len, rows))):
            time.sleep(settings[0]["temperature"])
            yield [self.step(row[:position]) for row in rows] if live else []
        yield [self.step(row, s) for row, s in zip(rows, settings, strict=True)]

    def words(self, media, settings) -> list[str]:
        text = [
            "a",
            {"image": "picture", "audio": "sound"}[media.kind],
            "at",
            f"{settings['guidance_scale']:.1f}",
            "of",
            "many",
        ]
        return [settings.forced.get(i, f" {word}") for i, word in enumerate(text)]

    def score_without(self, media, result, hidden):
        """The second word comes from the upper left."""
        scores = torch.zeros(len(hidden), len(result.trace))
        scores[:, 1] -= 2.0 * hidden[:, 0]
        return scores

    def step(self, words, settings=None) -> Step:
        options = [Alternative(" word", -0.5), Alternative(" other", -1.5)]
        trace = [
            TokenTrace(i, w, -0.5, -1.0 - i / 2, -0.3, {"guided": options, "cond": options}, 0.2, 1.0)
            for i, w in enumerate(words)
        ]
        tokens, caption = [StepToken(w, "final", 0.7) for w in words], "".join(words).strip()
        if settings is None:
            return Step(len(words), 6, tokens, trace)
        return Step(6, 6, tokens, trace, result=fakes.finished(self.spec, caption, trace, settings))


class Counter(Typist):
    """Does not listen to the guidance scale."""

    spec = Spec("counter", "Counter", "Counts.", "https://example.org", ("image",), (NUM_CANDIDATES, TEMPERATURE, SEED))
    runs = 0

    def words(self, media, settings) -> list[str]:
        return [f" {word}" for word in ("best", "of", str(settings["num_candidates"]))]
