"""p(x) as the mixture of what a captioner says of K reference inputs: the mean of their probabilities.

For captioners that were never trained without an input. A `MixtureDecoder` is asked as any other decoder is: rows whose
condition is removed are read K times, once beside each reference, and come back as one. An input that is itself among
the references is left out of its own mixture: p(x) would know it, and no word could gain more than log K by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


SAME_INPUT = 0.01  # of its length: two grids this near are of one input, rounded otherwise


@dataclass(frozen=True)
class Row:
    """One row of a batch."""

    mixed: bool = False  # whether it is a mixture instead of seeing its own input
    own: int | None = None  # which of the references its own input is, if it is one


@dataclass(frozen=True)
class MixtureCondition(Condition):
    """What rows see: keys, values and mask are of those rows alone that see their own input."""

    rows: tuple[Row, ...] = ()

    @property
    def mixed(self) -> list[bool]:
        """Of each row, whether it is a mixture."""
        return [row.mixed for row in self.rows]

    @cached_property
    def seen(self) -> Condition:
        """The condition of the rows that see their own input."""
        return Condition(self.keys_values, self.mask, self.nulls)

    def __getitem__(self, rows: Tensor) -> MixtureCondition:
        chosen: list[int] = rows.tolist()
        return self._with(chosen, [self.rows[row] for row in chosen])

    def removed(self, rows: Tensor | None = None) -> MixtureCondition:
        """The same rows (all, or those where `rows` (b,) is True) as mixtures."""
        gone = [True] * len(self.rows) if rows is None else rows.tolist()
        kept = [place for place, removed in enumerate(gone) if not removed]
        return self._with(
            kept, [replace(row, mixed=row.mixed or removed) for row, removed in zip(self.rows, gone, strict=True)]
        )

    def without(self, hidden: Tensor) -> MixtureCondition:
        """The same rows, blind to some cells of their own input: hidden (b, cells)."""
        return mixture_condition(self.seen.without(hidden[seen_rows(self.mixed)]), self.rows)

    def joined(self, other: Condition) -> MixtureCondition:
        """Both sets of rows, one behind the other."""
        if not isinstance(other, MixtureCondition):
            raise TypeError("only conditions of the same decoder can be joined.")
        return mixture_condition(self.seen.joined(other.seen), self.rows + other.rows)

    def _with(self, kept: list[int], rows: Sequence[Row]) -> MixtureCondition:
        """Other rows, of which those at the places `kept` that see their input go on to see it."""
        places = torch.tensor(places_among_seen(self.mixed, kept), dtype=torch.long, device=self.mask.device)
        return mixture_condition(self.seen[places], rows)


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
        ((self.kind, self.grids),) = references.items()
        self.decoder, self.seeing, self.count = decoder, seeing or decoder, len(self.grids)
        self.references = decoder.condition(references, torch.arange(self.count, device=self.grids.device))

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> MixtureCondition:
        """{modality: (n, cells, width)} → what the rows, put into `order`, attend to."""
        own = [place for kind, grid in grids.items() for place in self._own(kind, grid)]
        return mixture_condition(self.seeing.condition(grids, order), [Row(own=own[i]) for i in order.tolist()])

    def _own(self, kind: str, grid: Tensor) -> list[int | None]:
        """Which of the references each input (n, cells, width) is; one reference alone is never left out."""
        if kind != self.kind or grid.shape[1:] != self.grids.shape[1:] or self.count == 1:
            return [None] * len(grid)
        flat = grid.flatten(1).float()
        distance, nearest = torch.cdist(flat, self.grids.flatten(1).float()).min(1)
        same = distance <= SAME_INPUT * flat.norm(dim=1)
        return [place if found else None for place, found in zip(nearest.tolist(), same.tolist(), strict=True)]

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
        for place, row in enumerate(condition.rows):
            if row.mixed:  # one at a time: the references' keys and values are shared instead of copied
                logits[place], mixtures[place] = self._mixture(ids[place], row.own, mixtures[place])
        return torch.stack([logits[place] for place in range(len(ids))]), MixtureCache(seen, mixtures)

    def _mixture(self, ids: Tensor, own: int | None, past: list[KeysValues] | None) -> tuple[Tensor, list[KeysValues]]:
        """log (1/K) Σ p(x | reference) for the tokens (t,) of one row: (t, vocab), and the cache of its K rows."""
        logits, cache = self.decoder(ids.expand(self.count, -1), self.references, past)
        others = [place for place in range(self.count) if place != own]
        return logits[others].log_softmax(-1).logsumexp(0) - math.log(len(others)), cache


def mixture_condition(seen: Condition, rows: Sequence[Row]) -> MixtureCondition:
    """The condition of the rows that see their own input, among rows some of which are mixtures."""
    return MixtureCondition(seen.keys_values, seen.mask, seen.nulls, tuple(rows))


def seen_rows(mixed: Sequence[bool]) -> list[int]:
    """The rows that are no mixtures."""
    return [row for row, is_mixture in enumerate(mixed) if not is_mixture]


def places_among_seen(mixed: Sequence[bool], rows: Sequence[int]) -> list[int]:
    """Where those of some rows that are no mixtures stand among all that are none."""
    count = list(accumulate(not is_mixture for is_mixture in mixed))
    return [count[row] - 1 for row in rows if not mixed[row]]
