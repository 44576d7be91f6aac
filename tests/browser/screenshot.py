"""PYTHONPATH=.:tests python tests/browser/screenshot.py OUT.webp [WIDTH] [HEIGHT]: the page once every card has its
caption.
"""

import sys
from io import BytesIO

from conftest import CHROMIUM, FLAGS, NO_TOUR
from PIL import Image
from playwright.sync_api import sync_playwright

from captioners import registry
from captioners.lab import Lab
from captioners.ui.page import build, launch_options
from captioners.ui.runtime.studio import Studio


def main(out: str, width: str = "1440", height: str = "900") -> None:
    """Serve, open, wait, save."""
    page = build(Studio(lambda: Lab("embedded")), device="cpu")
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        view = browser.new_page(viewport={"width": int(width), "height": int(height)})
        view.add_init_script(NO_TOUR)
        view.goto(url)
        for spec in registry.available():
            view.wait_for_selector(f"#cl-card-{spec.id} .cl-body[data-done=yes]", timeout=300_000)
            view.wait_for_selector(f"#cl-card-{spec.id} .main-svg", timeout=300_000)
        view.wait_for_timeout(1000)
        Image.open(BytesIO(view.screenshot())).save(out, quality=80)
        browser.close()
    page.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
