"""How the page is served: how much work goes on at once, and that a ZeroGPU Space lends its GPU only to functions
that ask for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

# Gradio sums up all past events after each one, for a page that is switched off here (`enable_monitoring`):
# never is often enough
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(2**62))
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "1")

# one visitor's four cards come on together; others wait
HEAVY: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 4}

F = TypeVar("F", bound=Callable[..., Any])


def gpu_is_lent() -> bool:
    """Whether this is a ZeroGPU Space. Its package `spaces` says nothing: every Gradio Space has it."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def on_gpu(function: F, seconds: Callable[..., int]) -> F:
    """The function or generator with a GPU for the time of its run where one is lent, else itself.

    `seconds` gets the same arguments and says how long the GPU is asked for. The run may be in a process of its own:
    what it changes is lost, what it returns is copied, and of what it raises only the class's name arrives.
    """
    if not gpu_is_lent():
        return function
    import spaces

    lent: F = spaces.GPU(duration=seconds)(function)
    return lent
