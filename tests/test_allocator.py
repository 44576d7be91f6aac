"""What is freed is kept: large blocks do not go back to the system between two calls."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
import torch
from captioners.allocator import keep_freed_memory

if sys.argv[1] == "kept" and not keep_freed_memory():
    print(-1)
    sys.exit()
faults = []
for _ in range(24):
    torch.ones(64 << 20, dtype=torch.uint8)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[-9])  # of the last eight: the first ones make room
"""


def faults(how: str) -> int:
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], cwd=root, capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


def test_a_large_block_is_not_faulted_in_again():
    kept = faults("kept")
    if kept < 0:
        pytest.skip("this C library has no such setting")
    pages = (64 << 20) // resource.getpagesize()
    assert faults("given back") > 4 * pages  # what the setting is for
    assert kept < pages
