"""What the tests share: small pictures and short sounds, and the embedded profile loaded once."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a bare `pytest` does not look for the package here

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from captioners import registry
from captioners.captioner import Captioner
from captioners.media import load_media
from captioners.profiles.base import Profile, load_profile
from captioners.types import Media

os.environ["CAPTION_LAB_CACHE"] = tempfile.mkdtemp(prefix="caption-lab-")  # not the user's own
torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(scope="session")
def draw() -> Callable[[int], Media]:
    """A picture of a few coloured shapes, another for each seed."""

    def picture(seed: int) -> Media:
        rng = np.random.default_rng(seed)
        image = Image.new("RGB", (260, 230), tuple(rng.integers(0, 256, 3).tolist()))
        canvas = ImageDraw.Draw(image)
        for _ in range(6):
            x, y, radius = rng.integers(0, 200, 3).tolist()
            canvas.ellipse((x, y, x + radius, y + radius), fill=tuple(rng.integers(0, 256, 3).tolist()))
        return load_media(image, name=f"shapes-{seed}.png")

    return picture


@pytest.fixture(scope="session")
def play() -> Callable[..., Media]:
    """A rising tone in noise, another for each seed."""

    def sound(seed: int, seconds: float = 2.0, rate: int = 16_000) -> Media:
        rng = np.random.default_rng(seed)
        t = np.arange(round(seconds * rate)) / rate
        tone = np.sin(2 * np.pi * (rng.uniform(150, 900) * t + rng.uniform(20, 200) * t**2))
        return load_media(
            (rate, (0.3 * tone + 0.02 * rng.normal(size=len(t))).astype(np.float32)), name=f"tone-{seed}.wav"
        )

    return sound


@pytest.fixture(scope="session")
def picture(draw) -> Media:
    return draw(0)


@pytest.fixture(scope="session")
def sound(play) -> Media:
    return play(0)


@pytest.fixture(scope="session")
def embedded() -> Profile:
    return load_profile("embedded", "cpu")


@pytest.fixture(scope="session")
def cfg(embedded) -> Captioner:
    return registry.load("cfg", embedded)


@pytest.fixture
def one_thread(monkeypatch):
    """This process and those it starts add up in the same order, so that their numbers can be compared exactly."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: while they run, made-up methods stand in the register and Playwright's event loop is
    open.
    """
    items.sort(key=lambda item: "browser" in item.path.parts)
