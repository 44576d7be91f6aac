"""Small stand-ins for methods and judges: deterministic, no weights."""

import zlib

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from captioners import registry
from captioners.profiles.base import Calibration, Profile
from captioners.profiles.store import MissingPart
from captioners.registry import Captioner
from captioners.types import Candidate, Control, Result, Spec, Step, StepToken, to_json

WORDS = ("dog", "boat", "tree", "house", "bird", "car", "lamp", "hill")


def unit(text: str) -> torch.Tensor:
    """A direction for a text."""
    vector = torch.randn(8, generator=torch.Generator().manual_seed(zlib.crc32(text.encode())))
    return vector / vector.norm()


class HashMatcher:
    """Text and media at directions that their content decides."""

    name = "hash-8"
    prompt = "A photo depicts "
    calibration = Calibration(random=0.1, human=0.9)

    def embed_text(self, texts):
        return torch.stack([unit(t) for t in texts])

    def embed_media(self, media):
        return torch.stack([unit(m.hash) for m in media])


class LengthJudge:
    """A language model that finds every word equally likely."""

    name = "length-lm"

    def log_likelihood(self, texts):
        return [-2.0 * (len(t.split()) + 1) for t in texts]


class FakeJudges:
    def matcher(self, kind):
        return HashMatcher()

    def fluency(self):
        return LengthJudge()

    def audibility(self):
        return LetterJudge()


class LetterJudge:
    """Calls audible what has an "a" in it."""

    name = "letter-a"

    def probability(self, texts):
        return torch.tensor([float("a" in t) for t in texts])


class NoJudges:
    def matcher(self, kind):
        raise MissingPart(f"There is no {kind}-judge.safetensors: run `python -m captioners train {kind}-judge`.")

    def fluency(self):
        raise MissingPart("There is no fluency-judge.safetensors: run `python -m captioners train fluency-judge`.")

    def audibility(self):
        raise MissingPart("There is no audibility-judge.safetensors: run `python -m captioners train audibility-judge`.")


SEED = Control("seed", "number", "Seed", "Chooses the words.", 0, 0, 1000, 1)


class Echo(Captioner):
    """Says a word that media and seed decide, after any forced words."""

    spec = Spec(
        "echo",
        "Echo",
        "One word.",
        "https://example.org/echo",
        ("image", "audio"),
        (Control("guidance_scale", "number", "Guidance", "How strong.", 1.0, 0, 5, 0.1, front=True), SEED),
    )
    batches: list[int] = []

    def decode(self, media, settings, live):
        self.batches.append(len(media))
        captions = []
        for item, values in zip(media, settings, strict=True):
            word = WORDS[zlib.crc32(f"{item.hash} {values['seed']}".encode()) % len(WORDS)]
            captions.append(" ".join(["a", word, *(t for _, t in sorted(values.forced.items()))]))
        yield [Step(0, 1, [StepToken("a", "final", 1.0)]) for _ in media] if live else []
        yield [
            Step(1, 1, [StepToken(c, "final", 1.0)], result=self.result(c, values)) for c, values in zip(captions, settings, strict=True)
        ]

    def result(self, caption, values):
        return Result(self.spec.id, caption, [Candidate(caption)], [], to_json(values), values["seed"], "fake", {}, {"decode": 0.01})


class Shout(Echo):
    """Knows pictures only and has a control of its own."""

    spec = Spec(
        "shout",
        "Shout",
        "One loud word.",
        "https://example.org/shout",
        ("image",),
        (SEED, Control("volume", "choice", "Volume", "How loud.", "loud", choices=("loud", "louder"))),
    )


def use_fakes(monkeypatch: pytest.MonkeyPatch, *methods: type[Captioner]) -> None:
    """Only these methods exist for the length of a test."""
    monkeypatch.setattr(registry, "_methods", lambda: {m.spec.id: m for m in methods})
    Echo.batches.clear()


def profile(judges=None) -> Profile:
    return Profile("fake", players=None, judges=judges or FakeJudges())


def picture(path, seed: int) -> None:
    """A small picture of noise, readable by anything."""
    pixels = np.random.default_rng(seed).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def sound(path, seed: int) -> None:
    """Half a second of noise."""
    soundfile.write(path, np.random.default_rng(seed).normal(0, 0.1, 8000).astype(np.float32), 16000)
