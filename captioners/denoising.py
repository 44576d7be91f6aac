"""The loop that the two diffusion methods share: rows of noisy captions, guided step by step, watched and traced.

A `Process` owns what differs: the state, the model behind it, and how a state moves to the next time. Its model speaks in hidden vectors h;
`Words` makes h into logits over the vocabulary, and because logits are linear in h, guided logits are the logits of guided vectors. So the
vectors of every step are all that is kept, and distributions are made again only where a trace shows them.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners import guidance
from captioners.decoding import Clock, TraceColumns, finished, forced_ids, generator
from captioners.text import CaptionTokenizer
from captioners.types import Media, Settings, Spec, Step, StepToken, TokenTrace

DRAWN_AT = 0.7  # temperature of the further candidates when the first one is greedy


@dataclass
class Row:
    """One candidate of one input."""

    item: int
    candidate: int
    kind: str
    weight: float  # of the full condition; the second branch has 1 − weight, so 1 is off
    temperature: float
    steps: int
    max_tokens: int
    forced: dict[int, int]
    source: torch.Generator
    length: int = 0  # tokens, once the process knows
    logprob: float = 0.0  # of what was drawn, under the guided distributions


def rows_of(
    tokenizer: CaptionTokenizer, media: Sequence[Media], settings: Sequence[Settings], weights: Sequence[float], longest: int
) -> list[Row]:
    """The candidates of every input, one behind the other; no caption has more than `longest` tokens."""
    rows = []
    for item, (m, s, weight) in enumerate(zip(media, settings, weights, strict=True)):
        most = min(s.get("max_tokens", longest), longest)
        forced = forced_ids(tokenizer, s, most)
        for candidate in range(s["num_candidates"]):
            temperature = s["temperature"] or (DRAWN_AT if candidate else 0.0)
            rows.append(Row(item, candidate, m.kind, weight, temperature, s["num_steps"], most, forced, generator(s["seed"], m, candidate)))
    return rows


@dataclass(frozen=True)
class Words:
    """Hidden vectors → logits: h · e + bias for each word e."""

    table: Tensor  # (vocab, d)
    bias: Tensor  # (vocab,), −inf for what a caption may not hold

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, d) → (…, vocab)."""
        return F.linear(hidden, self.table, self.bias)

    def logp(self, hidden: Tensor) -> Tensor:
        """(…, d) → log-probabilities (…, vocab)."""
        return self.logits(hidden).log_softmax(-1)


def drawn(logp: Tensor, chance: Tensor) -> Tensor:
    """One draw per position: (m, vocab) → (m,). One number of chance (m,) decides each: a row's randomness is its own and little."""
    total = logp.softmax(-1).cumsum(-1)
    return torch.searchsorted(total, chance[:, None] * total[:, -1:], right=True)[:, 0].clamp(max=logp.shape[-1] - 1)


def unlike_neighbours(words: Tensor, at: Tensor, logp: Tensor) -> Tensor:
    """logp (m, vocab) of the positions at (r, n), with −inf on the words that stand beside them: words (r, n), −1 where none does."""
    logp = logp.clone()
    beside = F.pad(words, (1, 1), value=-1)
    for word in (beside[:, :-2][at], beside[:, 2:][at]):
        known = (word >= 0).nonzero()[:, 0]
        logp[known, word[known]] = -torch.inf
    return logp


@dataclass
class Canvas:
    """What the captions of all rows look like after a step."""

    tokens: Tensor  # (rows, n): the word at each position, where there is one
    covered: Tensor  # (rows, n) True where a position is still masked
    settled: Tensor  # (rows, n) True where a word will not change any more
    decided: Tensor  # (rows, n): the step whose distribution the word was taken from


class Process(ABC):
    """One method's diffusion of all rows of a batch. Rows differ in number of steps: those that are done are not asked again."""

    words: Words
    canvas: Canvas
    calls: str = "denoiser"  # the model's name in Result.calls

    @abstractmethod
    def predict(self, rows: Tensor, k: int, second: Tensor) -> tuple[Tensor, Tensor]:
        """At the rows' k-th step, hidden vectors of x0: of rows (r,) under the full condition, and of second (s,) under the other one.

        Both (·, n, d), made in one batch.
        """

    @abstractmethod
    def again(self, row: int, steps: int) -> Tensor:
        """The second branch's hidden vectors (steps, n, d) over all states that this row had: one pass."""

    @abstractmethod
    def advance(self, rows: Tensor, k: int, hidden: Tensor) -> None:
        """Move the rows' states to step k + 1 and write the canvas, by guided vectors (r, n, d).

        A distribution over all words is made only at positions that are still open: it is what costs most.
        """

    def details(self, row: int) -> dict[str, Any]:
        """What else a Result should tell of this row."""
        return {}


@dataclass
class Moment:
    """One step of all rows that took it."""

    rows: Tensor  # (r,)
    second: Tensor  # (s,)
    cond: Tensor  # (r, n, d)
    uncond: Tensor  # (s, n, d)
    guided: Tensor  # (r, n, d)
    tokens: Tensor  # (all rows, n) and so on: the canvas after the step
    covered: Tensor
    settled: Tensor


@dataclass
class History:
    """Every step of a run."""

    tokenizer: CaptionTokenizer
    rows: list[Row]
    process: Process
    clock: Clock
    moments: list[Moment] = field(default_factory=list)

    def add(self, rows: Tensor, second: Tensor, cond: Tensor, uncond: Tensor, guided: Tensor) -> None:
        """One step, after the canvas was written."""
        canvas = self.process.canvas
        shown = canvas.tokens.clone(), canvas.covered.clone(), canvas.settled.clone()
        self.moments.append(Moment(rows, second, cond, uncond, guided, *shown))

    def text(self, row: int) -> str:
        """The row's words, as far as there are any."""
        ids, covered = (x[row, : self.rows[row].length].tolist() for x in (self.moments[-1].tokens, self.moments[-1].covered))
        return self.tokenizer.decode([i for i, gone in zip(ids, covered, strict=True) if not gone])

    def step_tokens(self, row: int, k: int) -> list[StepToken]:
        """The row's caption after its k-th step."""
        moment, n = self.moments[k], self.rows[row].length
        logp = self.process.words.logp(moment.guided[moment.rows == row][0, :n])
        return self.shown(row, k, logp.gather(-1, moment.tokens[row, :n, None])[:, 0])

    def shown(self, row: int, k: int, logp: Tensor) -> list[StepToken]:
        """The same, where the words' guided log-probabilities (n,) are known."""
        moment, n = self.moments[k], self.rows[row].length
        columns = (x.tolist() for x in (moment.tokens[row, :n], moment.covered[row, :n], moment.settled[row, :n], logp))
        last = k == self.rows[row].steps - 1
        found = []
        for token, covered, settled, value in zip(*columns, strict=True):
            shown = StepToken(self.tokenizer.piece(token), "final" if settled or last else "draft", math.exp(value))
            found.append(StepToken("", "masked", 0.0) if covered else shown)
        return found


class Story:
    """How one row's caption came about: what both branches and the guided distribution said of its words at every step."""

    def __init__(self, history: History, row: int):
        self.history, self.row = history, row
        mine, canvas, moments = history.rows[row], history.process.canvas, history.moments[: history.rows[row].steps]
        n, steps = mine.length, mine.steps
        shown = torch.stack([m.tokens[row, :n] for m in moments])  # (steps, n): the words as they were then
        self.tokens, decided = canvas.tokens[row, :n], canvas.decided[row, :n]
        at = torch.arange(n, device=decided.device)
        self.along, self.distributions = {}, {}  # (steps, n) of the last words, and (n, vocab) that they were taken from
        for name, hidden in self._vectors(moments).items():
            logp = history.process.words.logp(hidden)  # (steps, n, vocab)
            self.along[name] = logp.gather(-1, self.tokens.expand(steps, n)[..., None])[..., 0]
            self.distributions[name] = logp[decided, at]
            if name == ("cond" if mine.weight == 1 else "guided"):
                self.along["guided"], self.distributions["guided"] = self.along[name], self.distributions[name]
                self.shown = logp.gather(-1, shown[..., None])[..., 0]  # (steps, n)

    def _vectors(self, moments: list[Moment]) -> dict[str, Tensor]:
        """Hidden vectors (steps, n, d). Where guidance is off, one pass over the kept states gives the second branch's."""
        mine, process = self.history.rows[self.row], self.history.process
        cond = torch.stack([m.cond[m.rows == self.row][0, : mine.length] for m in moments])
        if mine.weight == 1:
            self.history.clock.call(process.calls)
            return {"cond": cond, "uncond": process.again(self.row, mine.steps)[:, : mine.length]}
        uncond = torch.stack([m.uncond[m.second == self.row][0, : mine.length] for m in moments])
        return {"cond": cond, "uncond": uncond, "guided": guidance.cfg(cond, uncond, mine.weight)}

    def trace(self) -> list[TokenTrace]:
        """One entry per position, with the distributions that its word was taken from; inside, its log-probabilities along all steps."""
        columns, along = TraceColumns(self.history.tokenizer), {name: logp.T.tolist() for name, logp in self.along.items()}
        for position, token in enumerate(self.tokens):
            columns.add(token[None], {name: logp[position, None] for name, logp in self.distributions.items()})
        found = []
        for entry in columns.row(0, len(self.tokens)):
            values = zip(*(along[name][entry.position] for name in along), strict=True)
            found.append(dataclasses.replace(entry, steps=[dict(zip(along, step, strict=True)) for step in values]))
        return found

    def details(self) -> dict[str, Any]:
        """Its words step by step, and what the process tells."""
        steps = [self.history.shown(self.row, k, logp) for k, logp in enumerate(self.shown)]
        told = [{"step": k + 1, "tokens": [[t.text, t.state, round(t.probability, 4)] for t in tokens]} for k, tokens in enumerate(steps)]
        return {"denoising": told, **self.history.process.details(self.row)}


@torch.no_grad()
def denoise(
    spec: Spec, players, media: Sequence[Media], settings: Sequence[Settings], rows: list[Row], process: Process, clock: Clock, live: bool
) -> Iterator[list[Step]]:
    """One Step per input after every step of the diffusion if `live`, and at the end the ones that hold the Results."""
    history = History(players.tokenizer, rows, process, clock)
    device = process.canvas.tokens.device
    weights = torch.tensor([r.weight for r in rows], device=device)
    ends = torch.tensor([r.steps for r in rows], device=device)
    for k in range(int(ends.max())):
        with clock.stage("decode"):
            active = (ends > k).nonzero()[:, 0]
            second = active[weights[active] != 1]
            cond, uncond = process.predict(active, k, second)
            clock.call(process.calls)
            guided = cond
            if len(second):
                pushed = weights[active] != 1
                guided = cond.index_put((pushed,), guidance.cfg(cond[pushed], uncond, weights[second][:, None]))
            process.advance(active, k, guided)
            history.add(active, second, cond, uncond, guided)
        if live:
            yield [_step(history, item, k) for item in range(len(media))]
    yield [_finish(spec, players, media[item], settings[item], item, history, clock, len(media)) for item in range(len(media))]


def _mine(history: History, item: int) -> list[int]:
    return [i for i, row in enumerate(history.rows) if row.item == item]


def _step(history: History, item: int, k: int) -> Step:
    first, *others = _mine(history, item)
    total = history.rows[first].steps
    k = min(k, total - 1)
    return Step(k + 1, total, history.step_tokens(first, k), others=[history.text(i) for i in others])


def _finish(spec: Spec, players, media: Media, settings: Settings, item: int, history: History, clock: Clock, share: int) -> Step:
    mine = _mine(history, item)
    story = cache(lambda best: Story(history, mine[best]))
    step = finished(
        spec,
        players,
        media,
        settings,
        [history.text(i) for i in mine],
        [history.rows[i].logprob for i in mine],
        lambda best: story(best).trace(),
        clock,
        share,
        lambda best: story(best).details(),
    )
    total = history.rows[mine[0]].steps
    return dataclasses.replace(step, position=total, total=total)
