"""Method 1: classifier-free and language-model guidance (arXiv 2307.16686).

One decoder gives p(x|y) and, with its condition removed, p(x). At every token s = w · lm + α c − β u, where α = γ and
β = γ − 1 unless they are given: w = 0 is classifier-free guidance, γ = 1 the plain model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from captioners import guidance
from captioners.continuations import Continuations
from captioners.controls import GUIDANCE_SCALE, LM_WEIGHT, MAX_TOKENS, NUM_CANDIDATES, SEED, TEMPERATURE, number, text
from captioners.decoding import Clock, TraceColumns, by_kind, choose, finished, forced_ids, generator, repeats, step_tokens
from captioners.registry import Captioner, register
from captioners.types import Media, Settings, Spec, Step

CROWDED = 7 / 8  # of the batch: when this share or less still goes on, the others leave it
DRAWN_AT = 0.7  # temperature of the further candidates when the first one is greedy

CONTROLS = (
    GUIDANCE_SCALE,
    LM_WEIGHT,
    NUM_CANDIDATES.but(help=f"How many captions are finished and ranked; beside a greedy one they are drawn at temperature {DRAWN_AT}."),
    number("alpha", "Exponent α", "Weight of the conditional log-probability; auto is γ.", None, 0, 5, 0.1, optional=True),
    number(
        "beta", "Exponent β", "Weight of the unconditional log-probability, taken away; auto is γ − 1.", None, -1, 5, 0.1, optional=True
    ),
    text("lm_prompt", "LM prompt", "Captions that the language model reads first, separated by |; the last that fit count."),
    TEMPERATURE,
    number("no_repeat", "No repeat", "Forbids any run of this many tokens to occur twice; 0 is off.", 0, 0, 4, 1),
    MAX_TOKENS,
    SEED,
)


@dataclass
class Row:
    """One candidate of one input."""

    item: int
    candidate: int
    alpha: float
    beta: float
    lm_weight: float
    temperature: float
    forced: dict[int, int]
    no_repeat: int
    max_tokens: int
    source: torch.Generator
    ids: list[int]
    logprob: float = 0.0
    done: bool = False


@register
class ClassifierFree(Captioner):
    """The adapter."""

    spec = Spec(
        id="cfg",
        title="CFG + LM guidance",
        idea="Compare the model with and without the input, and exaggerate the difference.",
        paper="https://arxiv.org/abs/2307.16686",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="s = w·lm + γ·c − (γ − 1)·u",
    )

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        clock, trace, traced = Clock(), TraceColumns(self.players.tokenizer), any(s.traced for s in settings)
        rows = [row for item, (m, s) in enumerate(zip(media, settings, strict=True)) for row in self._rows(item, m, s)]
        with clock.stage("encode"):
            grids = [f.grid for f in self.players.encode(media)]
        with clock.stage("decode"):
            branches = Branches(self.players, rows, grids, [m.kind for m in media], clock)
            lm = language_side(self.players, rows, settings, media, clock)
        first = [next(i for i, r in enumerate(rows) if r.item == item) for item in range(len(media))]
        left = list(range(len(rows)))  # the rows in the batch: those that have ended leave it
        for position in range(max(r.max_tokens for r in rows)):
            with clock.stage("decode"):
                here = [rows[i] for i in left]
                distributions = branches.next()
                distributions |= lm.next(partial(self._scores, here, distributions, position))
                distributions["guided"] = guidance.normalise(self._scores(here, distributions, position))
                tokens = self._choose(here, distributions["guided"].clone(), position)
                if traced:
                    trace.add(tokens, distributions, left)
                self._extend(here, tokens.tolist(), distributions["guided"].gather(1, tokens[:, None])[:, 0].tolist())
            going = [place for place, row in enumerate(here) if not row.done]
            if not going:
                break
            if len(going) <= CROWDED * len(here):
                branches.keep(going)
                lm.keep(going)
                left, tokens = [left[place] for place in going], tokens[going]
            branches.append(tokens)
            lm.append(tokens)
            yield [self._step(rows, row, trace) for row in first] if live else []
        if traced:
            with clock.stage("trace"):
                branches.fill_unconditional(trace, [i for i, r in enumerate(rows) if r.beta == 0])
        yield [self._finish(item, media[item], settings[item], rows, trace, clock, len(media)) for item in range(len(media))]

    # ------------------------------------------------------------------------------------------------- one caption

    def _rows(self, item: int, media: Media, settings: Settings) -> list[Row]:
        scale = settings["guidance_scale"]
        alpha = scale if settings["alpha"] is None else settings["alpha"]
        beta = scale - 1 if settings["beta"] is None else settings["beta"]
        forced = forced_ids(self.players.tokenizer, settings, settings["max_tokens"])
        rows = []
        for candidate in range(settings["num_candidates"]):
            temperature = settings["temperature"] or (DRAWN_AT if candidate else 0.0)
            source = generator(settings["seed"], media, candidate)
            rows.append(
                Row(
                    item,
                    candidate,
                    alpha,
                    beta,
                    settings["lm_weight"],
                    temperature,
                    forced,
                    settings["no_repeat"],
                    settings["max_tokens"],
                    source,
                    [],
                )
            )
        return rows

    def _scores(self, rows: list[Row], distributions: dict[str, Tensor], position: int) -> Tensor:
        """(rows, vocab): the paper's formula, with −inf on what may not be said."""
        cond, uncond = distributions["cond"], distributions["uncond"]
        w, alpha, beta = torch.tensor([[r.lm_weight, r.alpha, r.beta] for r in rows], device=cond.device).T
        if "lm" not in distributions:
            w = torch.zeros_like(w)
        scores = guidance.lm_guided(cond, uncond, distributions.get("lm", cond), alpha, beta, w)
        tokenizer = self.players.tokenizer
        scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos or position == 0]] = -math.inf  # at least one word
        for i, row in enumerate(rows):
            scores[i, repeats(row.ids, row.no_repeat)] = -math.inf
        return scores

    def _choose(self, rows: list[Row], guided: Tensor, position: int) -> Tensor:
        tokens = choose(guided, [r.temperature for r in rows], [r.source for r in rows])
        for i, row in enumerate(rows):
            if row.done:
                tokens[i] = self.players.tokenizer.pad
            elif position in row.forced:
                tokens[i] = row.forced[position]
        return tokens

    def _extend(self, rows: list[Row], tokens: list[int], logprobs: list[float]) -> None:
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if not row.done:
                row.logprob += logprob
                row.ids.append(token)
                row.done = token == self.players.tokenizer.eos or len(row.ids) == row.max_tokens

    def _text(self, row: Row) -> str:
        return self.players.tokenizer.decode(row.ids)

    # ---------------------------------------------------------------------------------------------- steps, results

    def _step(self, rows: list[Row], index: int, trace: TraceColumns) -> Step:
        row = rows[index]
        entries = trace.row(index, len(row.ids))
        others = [self._text(r) for r in rows if r.item == row.item and r is not row]
        return Step(len(row.ids), row.max_tokens, step_tokens(entries), entries, others)

    def _finish(self, item: int, media: Media, settings: Settings, rows: list[Row], trace: TraceColumns, clock: Clock, share: int) -> Step:
        mine = [i for i, r in enumerate(rows) if r.item == item]
        texts, logprobs = [self._text(rows[i]) for i in mine], [rows[i].logprob for i in mine]
        return finished(
            self.spec, self.players, media, settings, texts, logprobs, lambda k: trace.row(mine[k], len(rows[mine[k]].ids)), clock, share
        )


class Branches:
    """Conditional rows, and unconditional ones for those that need them, in one batch with one cache."""

    def __init__(self, players, rows: list[Row], grids: list[Tensor], kinds: list[str], clock: Clock):
        self.decoder, self.clock, self.count = players.caption_decoder(), clock, len(rows)
        self.device = grids[0].device
        self.second = torch.tensor([i for i, r in enumerate(rows) if r.beta != 0], dtype=torch.long, device=self.device)
        order, stacked = by_kind(grids, kinds)
        condition = self.decoder.condition(stacked, order.to(self.device))
        items = torch.tensor([r.item for r in rows], device=self.device)
        self.all = condition[items]
        self.condition = self.all.joined(condition[items[self.second]].removed())
        start = torch.tensor([players.start_token(kind) for kind in kinds], device=self.device)
        self.start = start[items]
        self.ids, self.past = torch.cat([self.start, self.start[self.second]])[:, None], None

    def next(self) -> dict[str, Tensor]:
        """log p(next|y) and log p(next), each (rows, vocab); NaN where the second branch is not run."""
        with torch.inference_mode():  # nobody asks for gradients here, and many small operations have less to remember
            logits, self.past = self.decoder(self.ids, self.condition, self.past)
        self.clock.call("decoder")
        logp = logits[:, -1].log_softmax(-1)
        uncond = torch.full_like(logp[: self.count], math.nan)
        uncond[self.second] = logp[self.count :]
        return {"cond": logp[: self.count], "uncond": uncond}

    def append(self, tokens: Tensor) -> None:
        """Take the chosen tokens (rows,) into both branches."""
        self.ids = torch.cat([tokens, tokens[self.second]])[:, None]

    def keep(self, places: list[int]) -> None:
        """Only the rows at these places go on, in both branches."""
        moved = {place: i for i, place in enumerate(places)}
        second = [(self.count + i, moved[place]) for i, place in enumerate(self.second.tolist()) if place in moved]
        index = torch.tensor(places + [i for i, _ in second], device=self.device)
        self.past = [(k[index], v[index]) for k, v in self.past]
        self.condition = self.condition[index]
        self.second = torch.tensor([i for _, i in second], dtype=torch.long, device=self.device)
        self.count = len(places)

    def fill_unconditional(self, trace: TraceColumns, rows: list[int]) -> None:
        """One teacher-forced pass over finished captions gives the rows without a second branch their missing column."""
        if not rows:
            return
        index = torch.tensor(rows, device=self.device)
        ids = torch.cat([self.start[index, None], trace.tokens(rows)[:, :-1]], 1)
        logp = self.decoder(ids, self.all[index].removed())[0].log_softmax(-1)
        self.clock.call("decoder")
        trace.fill("uncond", rows, logp)


class NoLM:
    """Nobody asks the language model."""

    def next(self, scores: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Nothing to add."""
        return {}

    def append(self, tokens: Tensor) -> None:
        """Nothing to remember."""

    def keep(self, places: list[int]) -> None:
        """Nothing to let go."""


def language_side(players, rows: list[Row], settings: Sequence[Settings], media: Sequence[Media], clock: Clock):
    """What the language model has to say, however its vocabulary relates to the captioner's.

    `next(scores)` gives {"lm": log p (rows, vocab)}; `scores` makes the guided scores without it, for whoever asks about candidates only.
    """
    asking = [i for i, r in enumerate(rows) if r.lm_weight > 0]
    if not asking:
        return NoLM()
    if players.lm_tokenizer is players.tokenizer:
        return PromptedLM(players, rows, settings, media, clock)
    prompts = [settings[rows[i].item]["lm_prompt"] for i in asking]
    return Continuations(players, asking, prompts, len(rows), max(r.max_tokens for r in rows), partial(clock.call, "language model"))


class PromptedLM:
    """The language model's rows, each behind its own prompt, for those rows whose weight is not zero."""

    def __init__(self, players, rows: list[Row], settings: Sequence[Settings], media: Sequence[Media], clock: Clock):
        self.clock, self.count = clock, len(rows)
        self.device = players.device
        self.index = torch.tensor([i for i, r in enumerate(rows) if r.lm_weight > 0], dtype=torch.long, device=self.device)
        self.lm, tokenizer = players.language_model(), players.tokenizer
        prompts = []
        for i in self.index.tolist():
            start = players.start_token(media[rows[i].item].kind)
            captions = [[start, *tokenizer.encode(c), tokenizer.eos] for c in settings[rows[i].item]["lm_prompt"].split("|") if c.strip()]
            while sum(map(len, captions)) + 1 + rows[i].max_tokens > self.lm.config.context:  # the first ones do not fit
                captions = captions[1:]
            prompts.append([*itertools.chain(*captions), start])
        longest = max(map(len, prompts))
        self.ids = torch.tensor([[tokenizer.pad] * (longest - len(p)) + p for p in prompts], device=self.device)
        self.mask = torch.tensor([[False] * (longest - len(p)) + [True] * len(p) for p in prompts], device=self.device)
        self.past = None

    def next(self, scores: Callable[[], Tensor]) -> dict[str, Tensor]:
        """log p under the language model (rows, vocab), NaN for rows that do not ask it; nothing if none does any more."""
        if not len(self.index):
            return {}
        logits, self.past = self.lm(self.ids, self.past, self.mask)
        self.clock.call("language model")
        out = logits.new_full((self.count, logits.shape[-1]), math.nan)
        out[self.index] = logits[:, -1].log_softmax(-1)
        return {"lm": out}

    def keep(self, places: list[int]) -> None:
        """Only the rows at these places go on."""
        moved = {place: i for i, place in enumerate(places)}
        mine = [(i, moved[place]) for i, place in enumerate(self.index.tolist()) if place in moved]
        self.index = torch.tensor([i for _, i in mine], dtype=torch.long, device=self.device)
        self.count = len(places)
        if mine:
            some = torch.tensor([i for i, _ in mine], device=self.device)
            self.past, self.mask = [(k[some], v[some]) for k, v in self.past], self.mask[some]

    def append(self, tokens: Tensor) -> None:
        """Take the chosen tokens (rows,)."""
        if len(self.index):
            self.ids = tokens[self.index, None]
            self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)
