"""What several visitors need for the first time at the same moment."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from captioners.nets.schedules import sampler

together = Barrier(8)


def visit(_):
    together.wait()
    return type(sampler("ddim", "truncated-linear", 5)).__name__


with ThreadPoolExecutor(8) as pool:
    print(set(pool.map(visit, range(8))))
"""


def test_samplers_are_first_made_by_many_threads_at_once():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'DDIMScheduler'}\n", done.stderr
