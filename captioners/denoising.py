"""The loop that the two diffusion methods share: noisy captions, guided step by step, watched and traced.

A `DiffusionProcess` owns what differs: the state, the model behind it, and how a state moves to the next time. Its
model speaks in hidden vectors h; an `OutputLayer` makes h into logits over the vocabulary, and because logits are
linear in h, guided logits are the logits of guided vectors. So the vectors of every step are all that is kept, and
distributions are made again only where a trace shows them.
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
from captioners.captioner import Captioner
from captioners.contract import Tokenizer
from captioners.decoding import SAMPLING_TEMPERATURE, TraceColumns, chosen_logp, forced_ids, generator, trace_ids
from captioners.run_record import RunRecord, current_run
from captioners.types import Media, Modality, Result, Settings, Step, StepToken, TokenTrace


@dataclass
class NoisyCaption:
    """One candidate caption of one input, all positions at once."""

    item: int  # which input it is of
    kind: Modality
    weight: float  # of the full condition; the second branch has 1 − weight, so 1 is off
    temperature: float
    steps: int
    max_tokens: int
    forced: dict[int, int]
    source: torch.Generator
    length: int = 0  # tokens, once the process knows
    logprob: float = 0.0  # of what was drawn, under the guided distributions


def noisy_captions(
    tokenizer: Tokenizer, media: Sequence[Media], settings: Sequence[Settings], weights: Sequence[float], longest: int
) -> list[NoisyCaption]:
    """The candidates of every input, one behind the other; no caption has more than `longest` tokens."""
    captions = []
    for item, (m, s, weight) in enumerate(zip(media, settings, weights, strict=True)):
        most = min(s.get("max_tokens", longest), longest)
        forced = forced_ids(tokenizer, s, most)
        for candidate in range(s["num_candidates"]):
            temperature = s["temperature"] or (SAMPLING_TEMPERATURE if candidate else 0.0)
            source = generator(s["seed"], m, candidate)
            captions.append(NoisyCaption(item, m.kind, weight, temperature, s["num_steps"], most, forced, source))
    return captions


@dataclass(frozen=True)
class OutputLayer:
    """Hidden vectors → logits: h · e + bias for each word e."""

    table: Tensor  # (vocab, d)
    bias: Tensor  # (vocab,), −inf for what a caption may not hold

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, d) → (…, vocab)."""
        return F.linear(hidden, self.table, self.bias)

    def logp(self, hidden: Tensor) -> Tensor:
        """(…, d) → log-probabilities (…, vocab)."""
        return self.logits(hidden).log_softmax(-1)


def sample_tokens(logp: Tensor, chance: Tensor) -> Tensor:
    """One draw per position: (m, vocab) → (m,).

    One number of chance (m,) decides each: a row's randomness is its own and little.
    """
    total = logp.softmax(-1).cumsum(-1)
    return torch.searchsorted(total, chance[:, None] * total[:, -1:], right=True)[:, 0].clamp(max=logp.shape[-1] - 1)


@dataclass
class Canvas:
    """What all captions look like after a step."""

    tokens: Tensor  # (rows, n): the word at each position, where there is one
    covered: Tensor  # (rows, n) True where a position is still masked
    settled: Tensor  # (rows, n) True where a word will not change any more
    decided: Tensor  # (rows, n): the step whose distribution the word was taken from


class DiffusionProcess(ABC):
    """One method's diffusion of all captions of a batch.

    They differ in number of steps: those that are done are not asked again.
    """

    output: OutputLayer
    canvas: Canvas
    calls: str = "denoiser"  # the model's name in Result.calls

    @abstractmethod
    def predict(self, rows: Tensor, k: int, second: Tensor) -> tuple[Tensor, Tensor]:
        """At the rows' k-th step, hidden vectors of x0: of rows (r,) under the full condition, and of second (s,) under
        the other one.

        Both (·, n, d), made in one batch.
        """

    @abstractmethod
    def replay_second_branch(self, row: int, steps: int) -> Tensor:
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
class DenoisingStep:
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
class DenoisingHistory:
    """Every step of a run."""

    tokenizer: Tokenizer
    captions: list[NoisyCaption]
    process: DiffusionProcess
    record: RunRecord
    steps: list[DenoisingStep] = field(default_factory=list)

    def add(self, rows: Tensor, second: Tensor, cond: Tensor, uncond: Tensor, guided: Tensor) -> None:
        """Keep one step, after the canvas was written."""
        canvas = self.process.canvas
        shown = canvas.tokens.clone(), canvas.covered.clone(), canvas.settled.clone()
        self.steps.append(DenoisingStep(rows, second, cond, uncond, guided, *shown))

    def rows_of(self, item: int) -> list[int]:
        """The rows of one input's candidates."""
        return [row for row, caption in enumerate(self.captions) if caption.item == item]

    def text(self, row: int) -> str:
        """The row's words, as far as there are any."""
        last, length = self.steps[-1], self.captions[row].length
        ids, covered = (x[row, :length].tolist() for x in (last.tokens, last.covered))
        return self.tokenizer.decode([token for token, masked in zip(ids, covered, strict=True) if not masked])

    def step_tokens(self, row: int, k: int) -> list[StepToken]:
        """The row's caption after its k-th step."""
        step, n = self.steps[k], self.captions[row].length
        logp = self.process.output.logp(step.guided[step.rows == row][0, :n])
        return self.frame(row, k, chosen_logp(logp, step.tokens[row, :n]))

    def frame(self, row: int, k: int, logp: Tensor) -> list[StepToken]:
        """The same, where the words' guided log-probabilities (n,) are known."""
        step, n = self.steps[k], self.captions[row].length
        columns = (x.tolist() for x in (step.tokens[row, :n], step.covered[row, :n], step.settled[row, :n], logp))
        last = k == self.captions[row].steps - 1
        tokens = []
        for token, covered, settled, value in zip(*columns, strict=True):
            shown = StepToken(self.tokenizer.piece(token), "final" if settled or last else "draft", math.exp(value))
            tokens.append(StepToken("", "masked", 0.0) if covered else shown)
        return tokens


class DenoisingTrace:
    """How one caption came about: what both branches and the guided distribution said of its words at every step."""

    def __init__(self, history: DenoisingHistory, row: int) -> None:
        self.history, self.row, self.caption = history, row, history.captions[row]
        canvas, kept = history.process.canvas, history.steps[: self.caption.steps]
        n = self.caption.length
        shown = torch.stack([step.tokens[row, :n] for step in kept])  # (steps, n): the words as they were then
        self.tokens, decided = canvas.tokens[row, :n], canvas.decided[row, :n]
        positions = torch.arange(n, device=decided.device)
        self.along: dict[str, Tensor] = {}  # (steps, n): log p of the last words at every step
        self.distributions: dict[str, Tensor] = {}  # (n, vocab): what the last words were taken from
        for name, hidden in self._vectors(kept).items():
            logp = history.process.output.logp(hidden)  # (steps, n, vocab)
            self.along[name] = chosen_logp(logp, self.tokens)
            self.distributions[name] = logp[decided, positions]
            if name == ("cond" if self.caption.weight == 1 else "guided"):
                self.along["guided"], self.distributions["guided"] = self.along[name], self.distributions[name]
                self.shown = chosen_logp(logp, shown)  # (steps, n)

    def _vectors(self, kept: list[DenoisingStep]) -> dict[str, Tensor]:
        """Hidden vectors (steps, n, d).

        Where guidance is off, one pass over the kept states gives the second branch's.
        """
        caption, process, n = self.caption, self.history.process, self.caption.length
        cond = torch.stack([step.cond[step.rows == self.row][0, :n] for step in kept])
        if caption.weight == 1:
            self.history.record.call(process.calls)
            return {"cond": cond, "uncond": process.replay_second_branch(self.row, caption.steps)[:, :n]}
        uncond = torch.stack([step.uncond[step.second == self.row][0, :n] for step in kept])
        return {"cond": cond, "uncond": uncond, "guided": guidance.cfg(cond, uncond, caption.weight)}

    def trace(self) -> list[TokenTrace]:
        """One entry per position, with the distributions that its word was taken from; inside, its log-probabilities
        along all steps.
        """
        columns, along = (
            TraceColumns(self.history.tokenizer),
            {name: logp.T.tolist() for name, logp in self.along.items()},
        )
        for position, token in enumerate(self.tokens):
            columns.add(token[None], {name: logp[position, None] for name, logp in self.distributions.items()})
        entries = []
        for entry in columns.row([0] * len(self.tokens)):
            values = zip(*(along[name][entry.position] for name in along), strict=True)
            entries.append(dataclasses.replace(entry, steps=[dict(zip(along, step, strict=True)) for step in values]))
        return entries

    def details(self) -> dict[str, Any]:
        """Its words step by step, and what the process tells."""
        frames = [self.history.frame(self.row, k, logp) for k, logp in enumerate(self.shown)]
        denoising = [
            {"step": k, "tokens": [[t.text, t.state, round(t.probability, 4)] for t in tokens]}
            for k, tokens in enumerate(frames, 1)
        ]
        return {"denoising": denoising, **self.history.process.details(self.row)}


@dataclass(frozen=True)
class Decision:
    """Words that were decided at about the same time, and what stood there before."""

    step: int
    positions: list[int]  # of the words
    known: list[int | None]  # the token at every position before, None where none was


def decisions(tokenizer: Tokenizer, result: Result, drafts: bool, most: int = 4) -> list[Decision] | None:
    """When the words of a finished caption were decided, in at most `most` groups; None if it has no record of its
    steps.

    `drafts` counts words that may still change among what was known.
    """
    frames, final = result.details.get("denoising"), trace_ids(tokenizer, result.trace)
    if not frames or not final:
        return None
    at_hand = ("draft", "final") if drafts else ("final",)
    forced = {int(position): tokenizer.token_id(word) for position, word in result.settings.get("forced", {}).items()}
    states = [[forced.get(position) for position in range(len(final))]]  # before each step
    for frame in frames:
        states.append(
            [tokenizer.token_id(text) if state in at_hand else None for text, state, _ in frame["tokens"][: len(final)]]
        )
    decided = []  # the step that each word stands from
    for position, token in enumerate(final):
        step = len(frames) - 1
        while step and states[step][position] == token:
            step -= 1
        decided.append(step)
    order = sorted(range(len(final)), key=decided.__getitem__)
    size = math.ceil(len(order) / most)
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    return [Decision(decided[group[0]], group, states[decided[group[0]]]) for group in groups]


class DenoisingCaptioner(Captioner):
    """The base of the methods whose captions come out of noise: `decode` ends in `yield from self.denoise(…)`."""

    @torch.no_grad()
    def denoise(
        self,
        media: Sequence[Media],
        settings: Sequence[Settings],
        captions: list[NoisyCaption],
        process: DiffusionProcess,
        live: bool,
    ) -> Iterator[list[Step]]:
        """One Step per input after every step of the diffusion if `live`, and at the end the ones that hold the
        Results.
        """
        record = current_run()
        history = DenoisingHistory(self.models.tokenizer, captions, process, record)
        device = process.canvas.tokens.device
        weights = torch.tensor([c.weight for c in captions], device=device)
        ends = torch.tensor([c.steps for c in captions], device=device)
        for k in range(int(ends.max())):
            with record.stage("decode"):
                # what both branches believe: of the rows with steps to take, and of those of them that are guided
                active = (ends > k).nonzero()[:, 0]
                second = active[weights[active] != 1]
                cond, uncond = process.predict(active, k, second)
                record.call(process.calls)
                # the guided belief, for the rows that are guided
                guided = cond
                if len(second):
                    pushed = weights[active] != 1
                    guided = cond.index_put((pushed,), guidance.cfg(cond[pushed], uncond, weights[second][:, None]))
                # one step of the diffusion, kept for steps and traces
                process.advance(active, k, guided)
                history.add(active, second, cond, uncond, guided)
            if live:
                yield [self._step(history, item, k) for item in range(len(media))]
        # candidates are ranked and results made
        yield [self._finish(history, item, media[item], settings[item]) for item in range(len(media))]

    def _step(self, history: DenoisingHistory, item: int, k: int) -> Step:
        first, *others = history.rows_of(item)
        total = history.captions[first].steps
        k = min(k, total - 1)
        texts = [history.text(row) for row in others]
        return Step(k + 1, total, history.step_tokens(first, k), others=texts, progress="denoising")

    def _finish(self, history: DenoisingHistory, item: int, media: Media, settings: Settings) -> Step:
        rows = history.rows_of(item)
        trace = cache(lambda best: DenoisingTrace(history, rows[best]))
        step = self.finish(
            media,
            settings,
            [history.text(row) for row in rows],
            logprobs=[history.captions[row].logprob for row in rows],
            trace_of=lambda best: trace(best).trace(),
            details_of=lambda best: trace(best).details(),
        )
        total = history.captions[rows[0]].steps
        return dataclasses.replace(step, position=total, total=total, progress="denoising")
