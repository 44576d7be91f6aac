"""p(x) as the mixture of what a captioner says of K reference inputs: the mean of their probabilities.

For captioners that were never trained without an input. A `MixtureDecoder` is asked as any other decoder is: rows whose
condition is removed are read K times, once beside each reference, and come back as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from captioners.nets.captioner import Condition
from captioners.nets.key_value_cache import CacheByRow
from captioners.nets.transformer import KeysValues

if TYPE_CHECKING:
    from captioners.contract import ConditionalDecoder


@dataclass(frozen=True)
class MixtureCondition(Condition):
    """What rows see: keys, values and mask are of those rows alone that see their own input."""

    mixed: tuple[bool, ...] = ()  # of each row: whether it is a mixture instead

    @cached_property
    def seen(self) -> Condition:
        """The condition of the rows that see their own input."""
        return Condition(self.keys_values, self.mask, self.nulls)

    def __getitem__(self, rows: Tensor) -> MixtureCondition:
        chosen: list[int] = rows.tolist()
        return self._with(chosen, [self.mixed[row] for row in chosen])

    def removed(self, rows: Tensor | None = None) -> MixtureCondition:
        """The same rows (all, or those where `rows` (b,) is True) as mixtures."""
        gone = [True] * len(self.mixed) if rows is None else rows.tolist()
        kept = [row for row, removed in enumerate(gone) if not removed]
        return self._with(kept, [a or b for a, b in zip(self.mixed, gone, strict=True)])

    def without(self, hidden: Tensor) -> MixtureCondition:
        """The same rows, blind to some cells of their own input: hidden (b, cells)."""
        return mixture_condition(self.seen.without(hidden[seen_rows(self.mixed)]), self.mixed)

    def joined(self, other: Condition) -> MixtureCondition:
        """Both sets of rows, one behind the other."""
        if not isinstance(other, MixtureCondition):
            raise TypeError("only conditions of the same decoder can be joined.")
        return mixture_condition(self.seen.joined(other.seen), self.mixed + other.mixed)

    def _with(self, kept: list[int], mixed: Sequence[bool]) -> MixtureCondition:
        """Of these rows those that see their input, among rows that are `mixed`."""
        places = torch.tensor(places_among_seen(self.mixed, kept), dtype=torch.long, device=self.mask.device)
        return mixture_condition(self.seen[places], mixed)


class MixtureCache(CacheByRow):
    """One cache for all rows that see their own input, and one with K rows for each mixture."""

    def __init__(self, seen: list[KeysValues], mixtures: Sequence[list[KeysValues] | None]):
        """`mixtures` has an entry for every row, None where it sees its own input."""
        super().__init__(seen)
        self.seen, self.mixtures = seen, list(mixtures)  # `seen` itself: it may be a recording's

    def rows(self, rows: Tensor) -> MixtureCache:
        """These rows, in this order."""
        chosen: list[int] = rows.tolist()
        places = places_among_seen([cache is not None for cache in self.mixtures], chosen)
        index = torch.tensor(places, dtype=torch.long, device=rows.device)
        return MixtureCache([(k[index], v[index]) for k, v in self.seen], [self.mixtures[row] for row in chosen])


class MixtureDecoder:
    """A decoder whose rows without their input are a mixture over reference inputs."""

    def __init__(
        self,
        decoder: ConditionalDecoder,
        references: dict[str, Tensor],
        seeing: ConditionalDecoder | None = None,
    ):
        """`references` {modality: (K, cells, width)}; `seeing` reads the rows that see their own input, if it is
        another form of the same decoder: recorded steps hold what they look at, which K references would fill a GPU
        with.
        """
        (grids,) = references.values()
        self.decoder, self.seeing, self.count = decoder, seeing or decoder, len(grids)
        self.references = decoder.condition(references, torch.arange(self.count, device=grids.device))

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> MixtureCondition:
        """{modality: (n, cells, width)} → what the rows, put into `order`, attend to."""
        return mixture_condition(self.seeing.condition(grids, order), [False] * len(order))

    def __call__(
        self, ids: Tensor, condition: Condition, past: list[KeysValues] | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab), of mixtures as log-probabilities, and the cache."""
        if not isinstance(condition, MixtureCondition):
            return self.seeing(ids, condition, past)
        before = past if isinstance(past, MixtureCache) else MixtureCache([], [None] * len(ids))
        logits: dict[int, Tensor] = {}
        seen, mixtures = before.seen, list(before.mixtures)
        if rows := seen_rows(condition.mixed):
            shown, seen = self.seeing(ids[rows], condition.seen, seen or None)
            logits |= dict(zip(rows, shown, strict=True))
        for row, mixed in enumerate(condition.mixed):
            if mixed:  # one at a time: the references' keys and values are shared instead of copied
                logits[row], mixtures[row] = self._mixture(ids[row], mixtures[row])
        return torch.stack([logits[row] for row in range(len(ids))]), MixtureCache(seen, mixtures)

    def _mixture(self, ids: Tensor, past: list[KeysValues] | None) -> tuple[Tensor, list[KeysValues]]:
        """log (1/K) Σ p(x | reference) for the tokens (t,) of one row: (t, vocab), and the cache of its K rows."""
        logits, cache = self.decoder(ids.expand(self.count, -1), self.references, past)
        return logits.log_softmax(-1).logsumexp(0) - math.log(self.count), cache


def mixture_condition(seen: Condition, mixed: Sequence[bool]) -> MixtureCondition:
    """The condition of the rows that see their own input, among rows some of which are mixtures."""
    return MixtureCondition(seen.keys_values, seen.mask, seen.nulls, tuple(mixed))


def seen_rows(mixed: Sequence[bool]) -> list[int]:
    """The rows that are no mixtures."""
    return [row for row, is_mixture in enumerate(mixed) if not is_mixture]


def places_among_seen(mixed: Sequence[bool], rows: Sequence[int]) -> list[int]:
    """Where those of some rows that are no mixtures stand among all that are none."""
    count = list(accumulate(not is_mixture for is_mixture in mixed))
    return [count[row] - 1 for row in rows if not mixed[row]]
