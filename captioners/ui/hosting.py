"""How the page is served: how much work goes on at once, and that a ZeroGPU Space lends its GPU only to functions that ask for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# Gradio sums up all past events after each one, for a page that is switched off here (`enable_monitoring`): never is often enough
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(2**62))
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "1")

HEAVY: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 4}  # one visitor's four cards come on together; others wait


def gpu_lender() -> Any | None:
    """The `spaces` package of a ZeroGPU Space, nothing elsewhere."""
    try:
        import spaces
    except ImportError:
        return None
    return spaces


def on_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function or generator with a GPU for the time of its run where one is lent, else itself.

    It may run in a process of its own: what it changes is lost, what it returns is copied.
    """
    lender = gpu_lender()
    return lender.GPU(function) if lender else function
