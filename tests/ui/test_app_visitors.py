"""Eight visitors at once: every one gets the answer to what was asked, and memory does not grow."""

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gradio_client import Client, handle_file

from captioners import registry
from captioners.lab import Lab
from captioners.media import load_media
from captioners.ui.components import examples
from captioners.ui.page import build, launch_options
from captioners.ui.runtime.studio import Studio

VISITORS, COMPARISONS, TOKENS = 8, 5, 8


def resident() -> float:
    """Megabytes in use now; the highest so far where /proc does not tell."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


@pytest.mark.slow
def test_eight_visitors_get_their_own_answers_in_flat_memory(embedded):
    page = build(Studio(lambda: Lab(embedded)))
    _, url, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **launch_options())
    memory: list[float] = []

    def asked(visitor: int, turn: int) -> tuple[str, dict]:
        return examples.PICTURES[(visitor + turn) % len(examples.PICTURES)], {
            "seed": 100 * visitor + turn,
            "max_tokens": TOKENS,
        }

    def visit(visitor: int) -> list[list[str]]:
        client, said = Client(url, verbose=False), []
        for turn in range(COMPARISONS):
            picture, controls = asked(visitor, turn)
            answer = client.predict(handle_file(picture), **controls, api_name="/compare")
            said.append([r["caption"] for r in answer["results"] if r["seed"] == controls["seed"]])
            memory.append(resident())
        return said

    try:
        with ThreadPoolExecutor(VISITORS) as pool:
            answers = list(pool.map(visit, range(VISITORS)))
    finally:
        page.close()
    print(
        f"{sum(map(len, answers))} answers, {len(registry.available())} methods, {memory[9]:.0f} → {memory[-1]:.0f} MB"
    )
    alone = Lab(embedded)
    for visitor, said in enumerate(answers):
        for turn, captions in enumerate(said):
            picture, controls = asked(visitor, turn)
            heard = {s: {k: v for k, v in controls.items() if s.listens_to(k)} for s in registry.available()}
            assert captions == [
                alone.caption(load_media(picture), s.id, s.settings(**values)).caption for s, values in heard.items()
            ]
    assert memory[-1] == pytest.approx(memory[9], rel=0.05)
