"""A real browser on a real page, with methods whose words are known in advance. Skipped where there is no Chromium."""

import shutil
import time
from collections.abc import Iterator

import fakes
import pytest
import torch

from captioners.captioner import Captioner
from captioners.controls import GUIDANCE_SCALE, NUM_CANDIDATES, SEED, TEMPERATURE
from captioners.lab import Lab
from captioners.types import Alternative, Candidate, Result, Spec, Step, StepToken, TokenTrace, to_json
from captioners.ui.page import build, launch_options
from captioners.ui.runtime.studio import Studio

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NO_TOUR = "localStorage.setItem('caption-lab-tour', 'done')"  # somebody who has been here before
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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
        made = Result(
            self.spec.id,
            caption,
            [Candidate(caption)],
            trace,
            to_json(settings),
            settings["seed"],
            "fake",
            {},
            {"decode": 0.01},
        )
        return Step(6, 6, tokens, trace, result=made)


class Counter(Typist):
    """Does not listen to the guidance scale."""

    spec = Spec("counter", "Counter", "Counts.", "https://example.org", ("image",), (NUM_CANDIDATES, TEMPERATURE, SEED))
    runs = 0

    def words(self, media, settings) -> list[str]:
        return [f" {word}" for word in ("best", "of", str(settings["num_candidates"]))]


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of the page, served with four methods."""
    with pytest.MonkeyPatch.context() as patch:
        fakes.use_fakes(patch, Typist, fakes.Mover, fakes.Denoiser, Counter)
        page = build(Studio(lambda: Lab(fakes.profile())))
        _, address, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **launch_options())
        yield address
        page.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    """Debian's Chromium, or a reason why not."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, url):
    """visit(query, width, height, first) opens the page and waits for the first captions; `visit.said` holds what
    the console said.
    """
    contexts = []

    def open_page(query: str = "", width: int = 1440, height: int = 900, first: bool = False, **more):
        context = chromium.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **more)
        if not first:
            context.add_init_script(NO_TOUR)
        context.set_default_timeout(180_000)  # a busy machine may take its time
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: open_page.said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: open_page.said.append(str(e)))
        page.goto(url + query)
        page.wait_for_selector("#cl-card-typist .cl-body[data-done=yes]")
        return page

    open_page.said = []
    yield open_page
    for context in contexts:
        context.close()
