"""PYTHONPATH=.:tests python tests/browser/measure.py: how long a visitor waits, on the real page with the embedded
models.

Prints JSON: seconds from `python app.py` to a page that answers and to its first captions; from a click on an example
to the first token and to the last caption, cold and warm; the share of that time in which no model was at work; and the
weight of the page. On a machine with other work to do, seconds say little: the processor's time is counted too, of the
server and of the models within it.
"""

import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock

import torch
from conftest import CHROMIUM, FLAGS, NO_TOUR
from playwright.sync_api import Page, sync_playwright

from captioners import registry
from captioners.lab import Lab
from captioners.ui.page import build, launch_options
from captioners.ui.runtime.model_threads import THREADS
from captioners.ui.runtime.studio import Studio

ROOT = Path(__file__).resolve().parents[2]
WARM = (1, 2, 3)  # examples that are clicked once everything is loaded
PATIENCE = 300_000  # ms
END = object()


class Meter:
    """When models were at work, on whichever thread, and how much of the processor's time they took: one thread
    each, so it can be told.
    """

    def __init__(self, studio: Studio):
        self.lock, self.inside, self.since, self.busy, self.worked = Lock(), 0, 0.0, 0.0, 0.0
        studio._compute, studio._prepare = self.watched(studio._compute), self.watched(studio._prepare)

    def watched(self, inner: Callable[..., Iterator]) -> Callable[..., Iterator]:
        """A generator whose work is counted."""

        def work(*args):
            moments = inner(*args)
            while True:
                self.enter(1)
                began = time.thread_time()
                try:
                    moment = next(moments, END)
                finally:
                    self.worked += time.thread_time() - began
                    self.enter(-1)
                if moment is END:
                    return
                yield moment

        return work

    def enter(self, change: int) -> None:
        """A thread begins (1) or ends (−1) a stretch of work."""
        with self.lock:
            now = time.perf_counter()
            self.busy += (now - self.since) * (self.inside > 0)
            self.inside, self.since = self.inside + change, now


def start_up(chromium) -> dict[str, float]:
    """`python app.py` in a process of its own, with a visitor who waits for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.perf_counter()
    app = subprocess.Popen(
        [sys.executable, "app.py", "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        found = {"page answers": time.perf_counter() - began}
        view = chromium.new_page(viewport={"width": 1440, "height": 900})
        view.goto(f"http://127.0.0.1:{port}/", timeout=PATIENCE)
        view.wait_for_selector("#cl-run", timeout=PATIENCE)
        found["page drawn"] = time.perf_counter() - began
        view.wait_for_selector(".cl-body[data-done=yes]", timeout=PATIENCE)
        found["first caption"] = time.perf_counter() - began
        wait_for_all(view)
        found["all captions"] = time.perf_counter() - began
        found["megabytes"] = (
            view.evaluate("performance.getEntriesByType('resource').reduce((sum, r) => sum + r.transferSize, 0)")
            / 2**20
        )
        view.close()
        return found
    finally:
        app.terminate()
        app.wait()


def wait_for_all(view: Page) -> None:
    """Every card is done."""
    for spec in registry.available():
        view.wait_for_selector(f"#cl-card-{spec.id} .cl-body[data-done=yes]", timeout=PATIENCE)


def click(view: Page, example: int) -> dict[str, float]:
    """From the click on an example to the first new token, to the last caption and to where all words come from."""
    view.evaluate(
        """() => { window.first = window.last = window.told = null; const bodies = () => [...document.querySelectorAll('.cl-body')];
        const maps = () => [...document.querySelectorAll('.cl-where')];
        for (const old of [...bodies(), ...maps()]) old.dataset.old = 'yes';
        const look = () => { const fresh = bodies().filter(b => !b.dataset.old);
          if (!window.first && fresh.some(b => b.querySelector('.cl-token'))) window.first = performance.now();
          const done = fresh.length === bodies().length && fresh.every(b => b.dataset.done === 'yes');
          if (done && !window.last) window.last = performance.now();
          if (done && maps().length === bodies().length && !maps().some(m => m.dataset.old)) window.told = performance.now();
          else requestAnimationFrame(look); };
        document.addEventListener('click', () => { window.began = performance.now(); look(); }, {once: true, capture: true}); }"""
    )
    view.locator(".gallery-item").nth(example).click(timeout=PATIENCE)
    view.wait_for_function("window.told", timeout=PATIENCE)
    return {name: view.evaluate(f"(window.{name} - window.began) / 1000") for name in ("first", "last", "told")}


def waiting(chromium) -> dict[str, dict[str, float]]:
    """Cold: the first picture that a fresh process captions. Warm: the median over further ones."""
    torch.set_num_threads(THREADS)  # one for each hand
    studio = Studio(lambda: Lab("embedded"))
    meter = Meter(studio)
    page = build(studio)
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    view = chromium.new_page(viewport={"width": 1440, "height": 900})
    view.add_init_script(NO_TOUR)
    began = time.perf_counter()
    view.goto(url, timeout=PATIENCE)
    view.wait_for_selector(".cl-token", timeout=PATIENCE)
    cold = {"first": time.perf_counter() - began}
    wait_for_all(view)
    cold["last"] = time.perf_counter() - began
    warm = []
    for example in WARM:
        wait_until_idle()  # what is decoded ahead shall not count
        busy, worked, used = meter.busy, meter.worked, time.process_time()
        seconds = click(view, example)
        busy, worked, used = meter.busy - busy, meter.worked - worked, time.process_time() - used
        warm.append(
            seconds
            | {"share outside the models": 1 - busy / seconds["last"]}
            | {"processor": used, "processor, models": worked, "processor, share outside the models": 1 - worked / used}
        )
    page.close()
    return {"cold": cold, "warm": {name: statistics.median(w[name] for w in warm) for name in warm[0]}}


def wait_until_idle() -> None:
    """Until this process has done next to nothing for three seconds."""
    while True:
        before = time.process_time()
        time.sleep(3)
        if time.process_time() - before < 0.3:
            return


def main() -> None:
    """Everything, one after the other."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        found = {"methods": [s.id for s in registry.available()], "start-up": start_up(chromium), **waiting(chromium)}
        chromium.close()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
