"""Captions broken on purpose, as a denoiser or a steered language model may break them: a ranker that has never read
such text may like it for the words in it.
"""

from __future__ import annotations

import random

SHORTEST = 3  # tokens; what is shorter cannot be told from a caption


def broken(row: list[int], other: list[int], rng: random.Random) -> list[int]:
    """A token row (at least SHORTEST tokens) with a run said twice, with tokens out of order, or with some of another
    row's in place of its own. Never the row itself, unless all of its tokens are one.
    """
    if len(row) < SHORTEST:
        return row
    made = row
    for _ in range(10):
        first, second = sorted(rng.sample(range(len(row) + 1), 2))
        how = rng.randrange(3)
        if how == 0:  # a run again, somewhere else
            at = rng.randrange(len(row) + 1)
            made = row[:at] + row[first:second] + row[at:]
        elif how == 1:  # out of order
            made = row[:first] + rng.sample(row[first:second], second - first) + row[second:]
        elif other:  # another caption's tokens
            made = [rng.choice(other) if rng.random() < 1 / 3 else token for token in row]
        if made != row:
            break
    return made
