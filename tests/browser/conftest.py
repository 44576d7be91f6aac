"""A real browser on a real page, with methods whose words are known in advance. Skipped where there is no Chromium."""

import shutil
from collections.abc import Iterator

import fakes
import pytest
from typists import Counter, Typist

from captioners.lab import Lab
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
