"""Decoding on a GPU without waiting for Python: a step is recorded once as a CUDA graph and then replayed.

A step of a few rows is hundreds of small operations, and a GPU is done with each before Python has asked for the next.
A recording works on tensors of its own: rows that begin are copied into them, and they are free again when nobody
holds the rows' cache any more.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners.nets.captioner import Condition
from captioners.nets.transformer import KeysValues

ROOM = 32  # tokens; a cache has room for a multiple of it
MOST = 16  # recordings that are kept

Work = Callable[[], Tensor]
Shape = tuple[torch.Size | torch.dtype | int, ...]


class SteppingDecoder(Protocol):
    """A decoder of the hub profile, `CocaDecoder` or `TextDecoder`."""

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> Condition:
        """What the rows attend to."""
        ...

    def __call__(
        self, ids: Tensor, condition: Condition, past: list[KeysValues] | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache."""
        ...

    def step(self, ids: Tensor, place: Tensor, condition: Condition, room: list[KeysValues]) -> Tensor:
        """ids (b, 1) at `place` (1,) of a cache with room → logits (b, 1, vocab)."""
        ...


def cuda_graph(work: Work) -> Work:
    """The same work, recorded; itself where it cannot be, with a warning. It must not hurt to do it several times."""
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries make their workspaces in the first runs, which may not be recorded
            work(), work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may go on with other work
            result = work()
    except RuntimeError as error:
        warnings.warn(f"This GPU decodes without CUDA graphs: {error}", stacklevel=2)
        return work

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


class Recording:
    """A step for one set of shapes, with tensors of its own."""

    def __init__(
        self,
        decoder: SteppingDecoder,
        ids: Tensor,
        condition: Condition,
        past: list[KeysValues],
        record: Callable[[Work], Work],
    ):
        self.shape, self.given, self.length = shape_of(condition, past), condition, past[0][0].shape[2]
        more = (0, 0, 0, room_for(self.length) - self.length)
        self.room = [(F.pad(k, more), F.pad(v, more)) for k, v in past]
        self.condition = condition[torch.arange(len(ids), device=ids.device)]  # a copy
        self.ids, self.place = ids.clone(), ids.new_full((1,), self.length)
        self.replay = record(lambda: decoder.step(self.ids, self.place, self.condition, self.room))

    def begin(self, condition: Condition, past: list[KeysValues]) -> None:
        """Other rows of the same shapes."""
        self.given, self.length = condition, past[0][0].shape[2]
        self.condition.mask.copy_(condition.mask)
        for recorded, given in zip(self.condition.keys_values, condition.keys_values, strict=True):
            recorded[0].copy_(given[0])
            recorded[1].copy_(given[1])
        for recorded, given in zip(self.room, past, strict=True):
            recorded[0][:, :, : self.length] = given[0]
            recorded[1][:, :, : self.length] = given[1]

    def step(self, ids: Tensor) -> Tensor:
        """The next token (b, 1) of every row → logits (b, 1, vocab)."""
        self.ids.copy_(ids)
        self.place.fill_(self.length)
        logits = self.replay().clone()
        self.length += 1
        return logits


class Tenancy:
    """Held by every cache that lies in a recording's tensors: while it lives, they are taken."""


class RecordedCache(list[KeysValues]):
    """A cache that lies in a recording's tensors, as far as they were filled when it was handed out."""

    def __init__(self, recording: Recording, tenancy: Tenancy):
        self.recording, self.tenancy, self.length = recording, tenancy, recording.length
        super().__init__((k[:, :, : self.length], v[:, :, : self.length]) for k, v in recording.room)

    def goes_on(self, condition: Condition) -> bool:
        """Whether the next token can be written behind it: nobody has yet, and there is room."""
        recording = self.recording
        last = recording.length == self.length and recording.given is condition
        return last and self.length < recording.room[0][0].shape[2]


class ReplayedDecoder:
    """A decoder that records its steps. Safe to use from several threads: each text has a recording of its own."""

    def __init__(self, decoder: SteppingDecoder, record: Callable[[Work], Work] = cuda_graph):
        self.decoder, self.record, self.lock = decoder, record, Lock()
        self.recordings: dict[Recording, weakref.ref[Tenancy]] = {}  # the one that began last comes last

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> Condition:
        """What the rows, put into `order`, attend to."""
        return self.decoder.condition(grids, order)

    def __call__(
        self, ids: Tensor, condition: Condition, past: list[KeysValues] | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache; one token after others is replayed."""
        if past is None or ids.shape[1] > 1:
            return self.decoder(ids, condition, past)
        with torch.inference_mode():
            if not isinstance(past, RecordedCache) or not past.goes_on(condition):
                past = self._begin(ids, condition, past)
            logits = past.recording.step(ids)
            return logits, RecordedCache(past.recording, past.tenancy)

    def _begin(self, ids: Tensor, condition: Condition, past: list[KeysValues]) -> RecordedCache:
        """The rows in a recording that is free, or in a new one."""
        wanted, tenancy = shape_of(condition, past), Tenancy()
        with self.lock:
            free = [recording for recording, taken in self.recordings.items() if taken() is None]
            recording = next((r for r in free if r.shape == wanted), None)
            if recording is not None:
                del self.recordings[recording]
                recording.begin(condition, past)
            else:
                for oldest in free[: max(0, len(self.recordings) - MOST + 1)]:
                    del self.recordings[oldest]
                recording = Recording(self.decoder, ids, condition, past, self.record)
            self.recordings[recording] = weakref.ref(tenancy)
        return RecordedCache(recording, tenancy)


def room_for(length: int) -> int:
    """How many tokens a cache has room for that holds `length` and is to hold more."""
    return (length // ROOM + 1) * ROOM


def shape_of(condition: Condition, past: list[KeysValues]) -> Shape:
    """What rows have in common that can be handled by one recording."""
    k = past[0][0]
    return (
        condition.mask.shape,
        condition.keys_values[0][0].shape,
        condition.nulls,
        len(k),
        room_for(k.shape[2]),
        k.dtype,
    )
