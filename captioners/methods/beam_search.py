"""Beam search by the rules of transformers' `generate(num_beams=…)`, for one input; it is handed log-probabilities.

A finished caption's score is the mean log-probability of its tokens, the end included. The search is over when as many
captions have ended as there are beams and the best one that goes on scores no better than the worst of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

T = TypeVar("T")  # a caption so far: whatever `grow` makes of the one before and a token
NEVER = -1e9  # score of all beams but the first before the first token: they are the same and may not be counted twice


class BeamSearch(Generic[T]):
    """The best beginnings of one caption, and the captions that have ended."""

    def __init__(self, beams: list[T], grow: Callable[[T, int], T], end: int, longest: int) -> None:
        """`beams`: an empty caption for each beam; a caption ends with the token `end` or at `longest` tokens."""
        self.beams, self.grow, self.end, self.longest = beams, grow, end, longest
        self.scores = [0.0] + [NEVER] * (len(beams) - 1)  # Σ log p of each beam, best first
        self.finished: list[tuple[float, T]] = []  # score and caption, best first, no more than there are beams
        self.ended: list[tuple[int, int, T]] = []  # by the last step: the beam it comes from, its token, the caption
        self.length, self.done = 0, False

    def step(self, logp: Tensor) -> tuple[list[int], list[int]]:
        """logp (beams, vocab) of the next token → of the new beams, best first: the beam each comes from, its token."""
        self.length += 1
        over = self.length == self.longest
        count, vocab = logp.shape
        # twice as many options as beams: where all of the better half end, the other half goes on
        totals, places = (logp + logp.new_tensor(self.scores)[:, None]).flatten().topk(2 * count)
        options = [
            (total, *divmod(place, vocab)) for total, place in zip(totals.tolist(), places.tolist(), strict=True)
        ]
        # captions that end, if they are among the better half
        ending = [option for option in options[:count] if over or option[2] == self.end]
        self.ended = [(beam, token, self.grow(self.beams[beam], token)) for _, beam, token in ending]
        scored = [
            (total / self.length, caption) for (total, _, _), (_, _, caption) in zip(ending, self.ended, strict=True)
        ]
        self.finished = sorted(self.finished + scored, key=lambda pair: -pair[0])[:count]
        # captions that go on
        going = [option for option in options if option[2] != self.end][:count]
        self.scores = [total for total, _, _ in going]
        self.beams = [self.grow(self.beams[beam], token) for _, beam, token in going]
        worst = self.finished[-1][0] if len(self.finished) == count else NEVER
        self.done = over or self.scores[0] / self.length <= worst
        return [beam for _, beam, _ in going], [token for _, _, token in going]

    def best(self, count: int) -> list[T]:
        """The best captions: the finished ones when the search is over, before that the beams as they are."""
        return [caption for _, caption in self.finished[:count]] if self.done else self.beams[:count]
