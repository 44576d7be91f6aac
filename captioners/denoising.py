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
from typing import Any

import torch
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
    forbidden: Tensor  # (vocab,) True for what a caption may not hold
    bias: Tensor | None = None  # (vocab,)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, d) → (…, vocab), −inf on what is forbidden."""
        logits = hidden @ self.table.T
        if self.bias is not None:
            logits = logits + self.bias
        return logits.index_fill_(-1, self.forbidden.nonzero()[:, 0], -torch.inf)

    def logp(self, hidden: Tensor) -> Tensor:
        """(…, d) → log-probabilities (…, vocab)."""
        return self.logits(hidden).log_softmax(-1)


@dataclass
class Canvas:
    """What the captions of all rows look like after a step."""

    tokens: Tensor  # (rows, n): the word at each position, where there is one
    covered: Tensor  # (rows, n) True where a position is still masked
    settled: Tensor  # (rows, n) True where a word will not change any more
    decided: Tensor  # (rows, n): the step whose distribution the word was taken from
    logp: Tensor  # (rows, n): the guided log-probability it had there


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
    def advance(self, rows: Tensor, k: int, hidden: Tensor, guided: Tensor) -> None:
        """Move the rows' states to step k + 1 and write the canvas: guided vectors (r, n, d), log-probabilities (r, n, vocab)."""

    def details(self, row: int) -> dict[str, Any]:
        """What else a Result should tell of this row."""
        return {}


@dataclass
class Moment:
    """One step of all rows that took it."""

    rows: Tensor  # (r,)
    cond: Tensor  # (r, n, d)
    uncond: Tensor  # (s, n, d)
    second: Tensor  # (s,)
    tokens: Tensor  # (all rows, n) and so on: the canvas after the step
    covered: Tensor
    settled: Tensor
    logp: Tensor  # (all rows, n), of the words on the canvas now


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
        logp = self.moments[-1].logp.clone() if self.moments else torch.zeros_like(canvas.logp)
        logp[rows] = guided.gather(-1, canvas.tokens[rows][..., None])[..., 0]
        self.moments.append(Moment(rows, cond, uncond, second, canvas.tokens.clone(), canvas.covered.clone(), canvas.settled.clone(), logp))

    def text(self, row: int, moment: Moment | None = None) -> str:
        """The row's words, as far as there are any."""
        moment = moment or self.moments[-1]
        ids, covered = (x[row, : self.rows[row].length].tolist() for x in (moment.tokens, moment.covered))
        return self.tokenizer.decode([i for i, gone in zip(ids, covered, strict=True) if not gone])

    def step_tokens(self, row: int, k: int) -> list[StepToken]:
        """The row's caption after its k-th step."""
        moment, n = self.moments[k], self.rows[row].length
        columns = (x[row, :n].tolist() for x in (moment.tokens, moment.covered, moment.settled, moment.logp))
        last = k == self.rows[row].steps - 1
        found = []
        for token, covered, settled, logp in zip(*columns, strict=True):
            shown = StepToken(self.tokenizer.piece(token), "final" if settled or last else "draft", math.exp(logp))
            found.append(StepToken("", "masked", 0.0) if covered else shown)
        return found

    def trace(self, row: int) -> list[TokenTrace]:
        """One entry per position, with the distributions that its word was taken from; inside, its log-probabilities along all steps."""
        mine, words, canvas = self.rows[row], self.process.words, self.process.canvas
        n, steps = mine.length, mine.steps
        cond = torch.stack([m.cond[m.rows == row][0, :n] for m in self.moments[:steps]])  # (steps, n, d)
        uncond = self._second(row)
        tokens, decided = canvas.tokens[row, :n], canvas.decided[row, :n]
        at = torch.arange(n, device=tokens.device)
        along, distributions = {}, {}
        vectors = {"cond": cond, "uncond": uncond} | ({"guided": guidance.cfg(cond, uncond, mine.weight)} if mine.weight != 1 else {})
        for name, hidden in vectors.items():
            logp = words.logp(hidden)  # (steps, n, vocab)
            along[name] = logp.gather(-1, tokens.expand(steps, n)[..., None])[..., 0].T.tolist()
            distributions[name] = logp[decided, at]
        if mine.weight == 1:
            along["guided"], distributions["guided"] = along["cond"], distributions["cond"]
        columns = TraceColumns(self.tokenizer)
        for position in range(n):
            columns.add(tokens[position, None], {name: logp[position, None] for name, logp in distributions.items()})
        found = []
        for entry in columns.row(0, n):
            values = zip(*(along[name][entry.position] for name in along), strict=True)
            found.append(dataclasses.replace(entry, steps=[dict(zip(along, step, strict=True)) for step in values]))
        return found

    def _second(self, row: int) -> Tensor:
        """The second branch's vectors (steps, n, d); where guidance was off, one pass over the kept states gives them."""
        mine = self.rows[row]
        if mine.weight != 1:
            return torch.stack([m.uncond[m.second == row][0, : mine.length] for m in self.moments[: mine.steps]])
        self.clock.call(self.process.calls)
        return self.process.again(row, mine.steps)[:, : mine.length]

    def details(self, row: int) -> dict[str, Any]:
        """How the caption came about, step by step."""
        steps = [[[t.text, t.state, round(t.probability, 4)] for t in self.step_tokens(row, k)] for k in range(self.rows[row].steps)]
        return {"denoising": [{"step": k + 1, "tokens": tokens} for k, tokens in enumerate(steps)], **self.process.details(row)}


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
            hidden = cond.clone()
            pushed = weights[active] != 1
            hidden[pushed] = guidance.cfg(cond[pushed], uncond, weights[second][:, None])
            guided = process.words.logp(hidden)
            process.advance(active, k, hidden, guided)
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
    step = finished(
        spec,
        players,
        media,
        settings,
        [history.text(i) for i in mine],
        [history.rows[i].logprob for i in mine],
        lambda best: history.trace(mine[best]),
        clock,
        share,
        lambda best: history.details(mine[best]),
    )
    total = history.rows[mine[0]].steps
    return dataclasses.replace(step, position=total, total=total)
