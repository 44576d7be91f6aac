"""Small stand-ins for methods and judges: deterministic, no weights."""

import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from captioners import registry
from captioners.captioner import Captioner
from captioners.contract import Calibration
from captioners.evaluation.dataset import read_dataset
from captioners.evaluation.evaluate import evaluate
from captioners.lab import Lab
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.profiles.base import Profile
from captioners.profiles.store import MissingPart
from captioners.types import (
    Alternative,
    Candidate,
    Control,
    Result,
    Settings,
    Spec,
    Step,
    StepToken,
    TokenTrace,
    to_json,
)
from captioners.words import FUNCTION_WORDS

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


def small_models(tokenizer, **models) -> SimpleNamespace:
    """What a method is handed, with models of random weights."""
    common = {"tokenizer": tokenizer, "start_token": tokenizer.start, "ranker": lambda kind: HashMatcher()}
    return SimpleNamespace(device="cpu", profile="small", weights={}, notes=(), **common, **models)


class LengthJudge:
    """A language model that finds every word equally likely."""

    name = "length-lm"
    human = {"image": 40.0}

    def log_likelihood(self, texts):
        return [-2.0 * (len(t.split()) + 1) for t in texts]


class FakeJudges:
    def matcher(self, kind):
        return HashMatcher()

    def fluency(self):
        return LengthJudge()

    def audibility(self):
        return LetterJudge()

    def texts(self):
        return None


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
        raise MissingPart(
            "There is no audibility-judge.safetensors: run `python -m captioners train audibility-judge`."
        )

    def texts(self):
        return None


SEED = Control("seed", "number", "Seed", "Chooses the words.", 0, 0, 1000, 1)


def finished(spec: Spec, caption: str, trace: list[TokenTrace], settings: Settings) -> Result:
    """The result of a method with one candidate and no model."""
    return Result(
        spec.id,
        caption,
        [Candidate(caption)],
        trace,
        to_json(settings),
        settings["seed"],
        "fake",
        {},
        {"decode": 0.01},
    )


class Echo(Captioner):
    """Says a word that media and seed decide, after any forced words."""

    spec = Spec(
        "echo",
        "Echo",
        "One word.",
        "https://example.org/echo",
        ("image", "audio"),
        (Control("guidance_scale", "number", "Guidance", "How strong.", 1.0, 0, 5, 0.1, front=True), SEED),
        unguided={"guidance_scale": 1.0},
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
            Step(1, 1, [StepToken(c, "final", 1.0)], result=self.result(c, values))
            for c, values in zip(captions, settings, strict=True)
        ]

    def result(self, caption, values):
        return Result(
            self.spec.id,
            caption,
            [Candidate(caption)],
            [],
            to_json(values),
            values["seed"],
            "fake",
            {},
            {"decode": 0.01},
        )


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


SCALE = Control("guidance_scale", "number", "Guidance scale γ", "How strong.", 2.0, 0, 5, 0.1, front=True)
STEPS = Control("num_steps", "number", "Steps", "How many.", 4, 1, 200, 1)
STATES = ("masked", "draft", "final")


def told(position: int, token: str, step: int = 9, **more) -> TokenTrace:
    """A position whose numbers say where it stands."""
    cond = -2.0 / (step + 1)
    options = [Alternative(token, cond), Alternative(" other", cond - 1)]
    return TokenTrace(
        position, token, cond, -1.0 - position / 2, cond / 2, {"guided": options, "cond": options}, 0.2, 1.0, **more
    )


class Denoiser(Captioner):
    """A caption that comes out of noise, position by position, with a masked condition and several candidates."""

    spec = Spec(
        "denoiser",
        "Denoiser",
        "Uncovers words.",
        "https://example.org/denoiser",
        ("image", "audio"),
        (SCALE, Control("num_candidates", "number", "Candidates", "How many.", 3, 1, 64, 1, front=True), STEPS, SEED),
        branches=("full", "masked"),
        unguided={"guidance_scale": 1.0},
    )
    words = (" a", " grey", " cat", " in", " the", " grass")

    def frame(self, step: int, steps: int, words) -> list[StepToken]:
        """Half of the words are drafts one step before they are final."""
        ready = len(words) * step / steps
        return [
            StepToken(w if i < ready + 1 else "", STATES[2 if i < ready else 1 if i < ready + 1 else 0], 0.5)
            for i, w in enumerate(words)
        ]

    def decode(self, media, settings, live):
        texts = [[s.forced.get(i, w) for i, w in enumerate(self.words)] for s in settings]
        for step in range(1, max(s["num_steps"] for s in settings)):
            yield (
                [
                    Step(
                        step,
                        s["num_steps"],
                        self.frame(step, s["num_steps"], t),
                        others=["another"],
                        progress="denoising",
                    )
                    for s, t in zip(settings, texts, strict=True)
                ]
                if live
                else []
            )
        yield [self.last_step(m, s, t) for m, s, t in zip(media, settings, texts, strict=True)]

    def last_step(self, media, settings, words) -> Step:
        steps = settings["num_steps"]
        frames = [self.frame(k, steps, words) for k in range(1, steps + 1)]
        along = [{"cond": -3.0 / k, "uncond": -4.0 / k, "guided": -2.0 / k} for k in range(1, steps + 1)]
        caption = "".join(words).strip()
        made = Result(
            self.spec.id, caption, [Candidate(caption, 0.5, -1.0), Candidate("another", 0.4, -2.0)],
            [told(i, w, steps=along) for i, w in enumerate(words)], to_json(settings), settings["seed"], "fake", {}, {"decode": 0.01},
            details={
                "denoising": [{"step": k, "tokens": [[t.text, t.state, t.probability] for t in f]} for k, f in enumerate(frames, 1)],
                "masked_cells": {"shape": [2, 3] if media.kind == "image" else [2, 10], "cells": [1, 5]},
                "diversity": {"distinct": 0.8},
            },
        )  # fmt: skip
        return Step(
            steps, steps, [StepToken(w, "final", 0.9) for w in words], made.trace, ["another"], made, "denoising"
        )


class Mover(Captioner):
    """A caption that grows, with gradient steps before every word."""

    spec = Spec(
        "mover",
        "Mover",
        "Moves a memory.",
        "https://example.org/mover",
        ("image", "audio"),
        (SCALE, STEPS, SEED),
        branches=("moved", "kept"),
        unguided={"guidance_scale": 1.0},
    )
    words = (" a", " dog", " barks", "<eos>")

    def decode(self, media, settings, live):
        for count in range(1, len(self.words)):
            yield [self.step(s, count) for s in settings] if live else []
        yield [self.step(s, len(self.words), done=True) for s in settings]

    def step(self, settings, count, done=False) -> Step:
        moved = range(settings["num_steps"] if settings["guidance_scale"] > 1 else 0)
        along = [
            {"loss": 4.0 - i, "fluency": 1.0, "classifier": 1.0, "relevance": 2.0 - i, "probability": 0.5}
            for i in moved
        ]
        trace = [told(i, w, classifier=-0.5, steps=along) for i, w in enumerate(self.words[:count])]
        tokens = [StepToken(t.token, "final", 0.9) for t in trace if t.token != "<eos>"]
        made = None
        if done:
            caption = "".join(t.text for t in tokens).strip()
            made = finished(self.spec, caption, trace, settings)
        return Step(count, 20, tokens, trace, result=made)


def use_fakes(monkeypatch: pytest.MonkeyPatch, *methods: type[Captioner]) -> None:
    """Only these methods exist for the length of a test."""
    monkeypatch.setattr(registry, "_methods", lambda: {m.spec.id: m for m in methods})
    Echo.batches.clear()


def profile(judges=None) -> Profile:
    return Profile("fake", models=None, judges=judges or FakeJudges())


def picture(path, seed: int) -> None:
    """A small picture of noise, readable by anything."""
    pixels = np.random.default_rng(seed).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def sound(path, seed: int) -> None:
    """Half a second of noise."""
    soundfile.write(path, np.random.default_rng(seed).normal(0, 0.1, 8000).astype(np.float32), 16000)


def evaluate_folder(
    profile: Profile, folder, *args, split: str | None = None, limit: int | None = None, **more
) -> dict:
    """What `evaluate --json` would write about a folder."""
    return to_json(evaluate(Lab(profile), read_dataset(folder, split, limit), *args, **more))


def restless(vocab: int, regions: int = 1) -> PrefixDenoiser:
    """A denoiser whose words depend on everything it sees, and never get sure."""
    torch.manual_seed(0)
    net = PrefixDenoiser(
        PrefixDenoiserConfig(
            vocab=vocab, embed=48, dim=48, layers=2, heads=2, hidden=32, image_dim=16, audio_dim=12, regions=regions
        )
    )
    for name, parameter in net.named_parameters():
        if parameter.ndim > 1 and name != "directions":
            torch.nn.init.normal_(parameter, std=0.2)
    return net.eval().requires_grad_(False)


def is_content(tokenizer, word: int | str) -> bool:
    """Whether a token, or its text, begins a word that carries content."""
    text = word if isinstance(word, str) else tokenizer.piece(word)
    return text.startswith(" ") and text[1:].isalpha() and len(text) > 2 and text[1:].lower() not in FUNCTION_WORDS
