"""What is freed is kept: large blocks do not go back to the system between two calls.

Too little memory is told in a sentence.
"""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from captioners.captioner import Captioner
from captioners.types import CaptionLabError, Spec

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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], cwd=root, capture_output=True, text=True, timeout=120, check=True
    )
    return int(done.stdout)


def test_a_large_block_is_not_faulted_in_again():
    kept = faults("kept")
    if kept < 0:
        pytest.skip("this C library has no such setting")
    pages = (64 << 20) // resource.getpagesize()
    assert faults("given back") > 4 * pages  # what the setting is for
    assert kept < pages


class Hungry(Captioner):
    """Runs into an error after its first moment."""

    spec = Spec("hungry", "Hungry", "Eats.", "https://example.org", ("image", "audio"), ())

    def __init__(self, error: Exception):
        super().__init__(None)
        self.error = error

    def decode(self, media, settings, live):
        yield []
        raise self.error


LACKS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
    MemoryError(),
    RuntimeError("can't allocate memory"),
]


@pytest.mark.parametrize("error", LACKS, ids=lambda e: type(e).__name__)
def test_too_little_memory_for_a_caption_is_told_in_a_sentence(error, picture):
    with pytest.raises(CaptionLabError, match=r"not enough memory for what Hungry was asked: choose fewer candidates"):
        Hungry(error).caption(picture)


def test_other_errors_stay_what_they_are(picture):
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        Hungry(RuntimeError("shapes do not fit")).caption(picture)
