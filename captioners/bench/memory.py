"""The most memory that a piece of work holds beyond what was there before it."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import torch

from captioners.allocator import give_back

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_growth(work: Callable[[], object]) -> float | None:
    """MB, of the GPU's memory where there is one, else of the process; None where the system does not tell (only
    Linux does).
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    give_back()  # what earlier work has freed, so that growth is seen
    try:
        RESET.write_text("5")  # the high-water mark falls to what is resident now
    except OSError:
        work()
        return None
    before = _kilobytes("VmRSS")
    work()
    return max(0, _kilobytes("VmHWM") - before) / 1024


def _kilobytes(name: str) -> int:
    line = re.search(rf"^{name}:\s+(\d+)", STATUS.read_text(), re.MULTILINE)
    assert line is not None  # Linux writes every one of them
    return int(line[1])
