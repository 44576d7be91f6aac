"""Where the page is served: a ZeroGPU Space lends its GPU only to functions that ask for it; everywhere else nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def on_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function or generator with a GPU for the time of its run where the `spaces` package is there, else itself.

    It may run in a process of its own: what it changes is lost, what it returns is copied.
    """
    try:
        import spaces
    except ImportError:
        return function
    return spaces.GPU(function)
