"""The few threads that models run on, whoever asks.

Gradio answers on any of forty threads, and the C library keeps a heap for each thread that needed memory: models that
ran on all of them would hold on to many times what they use. Here they run on two, which share the cores, and the rest
of the page goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

THREADS = 2

T = TypeVar("T")


class ModelThreads:
    """A pool that takes work one moment at a time, so that several captions come on together."""

    def __init__(self, count: int = THREADS):
        import torch

        # more threads than cores wait for each other, and wait by spinning
        share = max(1, torch.get_num_threads() // count)
        self._pool = ThreadPoolExecutor(count, "model", torch.set_num_threads, (share,))

    def next(self, moments: Iterator[T]) -> Future[T | None]:
        """The next moment, being made; None at the end.

        It knows whose request it is, which a ZeroGPU Space asks for.
        """
        context = copy_context()
        return self._pool.submit(lambda: context.run(_next_or_none, moments))


def _next_or_none(moments: Iterator[T]) -> T | None:
    return next(moments, None)
