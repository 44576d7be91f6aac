"""Method 3: masked conditional diffusion (Image Captioning via Masked Conditional Diffusion).

The media is a grid of discrete tokens; a caption is denoised from all [MASK] by a mask-and-replace diffusion that looks at them. The
second branch looks at the same tokens with some of them masked (MCS), or all (CFG), and s = γ full + (1 − γ) masked; the paper prints
MCS the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners import guidance
from captioners.controls import GUIDANCE_SCALE, MASK_RATE, MAX_TOKENS, NUM_CANDIDATES, SEED, TEMPERATURE, choice, number
from captioners.decoding import Clock, by_kind, generator
from captioners.denoising import DRAWN_AT, Canvas, Process, Row, Words, denoise, drawn, rows_of, unlike_neighbours
from captioners.nets.d3pm import stride
from captioners.registry import Captioner, register
from captioners.types import Media, Settings, Spec, Step

LENGTH_AT = 0.2  # temperature of a drawn length where words are not drawn

CONTROLS = (
    GUIDANCE_SCALE.but(help="How far the caption is pushed away from the masked condition; 1 is off (with mcs-printed, 0 is)."),
    MASK_RATE,
    NUM_CANDIDATES.but(help=f"How many captions are denoised and ranked; beside a greedy one they are drawn at temperature {DRAWN_AT}."),
    choice(
        "guidance",
        "Guidance rule",
        "mcs compares with a masked condition, cfg with none at all; mcs-printed is the paper's formula, where 0 is the full condition "
        "(off), 1 the masked one alone, and more pushes away from the full one.",
        ("mcs", "cfg", "mcs-printed"),
    ),
    number("num_steps", "Denoising steps", "How many of the 100 steps are taken; fewer are faster.", 20, 5, 100, 1),
    choice(
        "order",
        "Order",
        "confidence uncovers the surest words first; random follows the diffusion's own chance.",
        ("confidence", "random"),
    ),
    choice(
        "length",
        "Length",
        f"drawn takes a length by chance, at the temperature or else at {LENGTH_AT}; likeliest takes the most likely one.",
        ("drawn", "likeliest"),
    ),
    TEMPERATURE,
    number("top_k", "Top k", "Only this many best words may be taken at a position; 0 allows all.", 0, 0, 1000, 1),
    MAX_TOKENS,
    SEED,
)


@register
class MaskedConditionalDiffusion(Captioner):
    """The adapter."""

    spec = Spec(
        id="mc-diffusion",
        title="MC-Diffusion",
        idea="Uncover a masked caption bit by bit, and compare with a model that sees only a part of the input.",
        paper="https://www.semanticscholar.org/search?q=Image+Captioning+via+Masked+Conditional+Diffusion",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="s = γ·log p(x|y) + (1 − γ)·log p(x|y masked)",
        branches=("full input", "masked"),
        off={"guidance": "mcs"},  # where 1 is off, unlike in mcs-printed
    )

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        clock = Clock()
        longest = self.players.mask_denoiser().config.longest
        rows = rows_of(self.players.tokenizer, media, settings, [full_weight(s) for s in settings], longest)
        with clock.stage("encode"):
            codes = self.players.codes(media)
        with clock.stage("decode"):
            process = Uncovering(self.players, rows, media, settings, codes)
        yield from denoise(self.spec, self.players, media, settings, rows, process, clock, live)


def full_weight(settings: Settings) -> float:
    """The weight of the full condition; the masked one has the rest. Both rules in one number: printed(γ) = mcs(1 − γ)."""
    scale = settings["guidance_scale"]
    if settings["guidance"] != "cfg" and settings["mask_rate"] == 0:
        return 1.0  # nothing is masked: both branches are one
    return 1 - scale if settings["guidance"] == "mcs-printed" else scale


def masked_cells(media: Media, settings: Settings, cells: int) -> Tensor:
    """Which cells the second branch does not see (cells,): by seed and media alone, and the same first ones at every rate."""
    rate = 1.0 if settings["guidance"] == "cfg" else settings["mask_rate"]
    order = torch.randperm(cells, generator=generator(settings["seed"], media, -1))
    return torch.zeros(cells, dtype=torch.bool).index_fill(0, order[: round(rate * cells)], True)


class Uncovering(Process):
    """From all [MASK] to a caption, by the strided posterior of the diffusion or in the order of confidence."""

    def __init__(self, players, rows: list[Row], media: Sequence[Media], settings: Sequence[Settings], codes: list[Tensor]):
        self.rows, self.model, self.tokenizer = rows, players.mask_denoiser(), players.tokenizer
        self.media, self.settings = media, settings
        self.device = device = codes[0].device
        self.items = torch.tensor([r.item for r in rows], device=device)
        kinds = [m.kind for m in media]
        self.unseen = [masked_cells(m, s, len(c)).to(device) for m, s, c in zip(media, settings, codes, strict=True)]
        order, stacked = by_kind(codes, kinds)
        _, hidden = by_kind(self.unseen, kinds)
        self.full = self.model.condition(stacked, order.to(device))
        self.part = self.model.condition(
            {kind: self.model.masked(kind, some, hidden[kind]) for kind, some in stacked.items()}, order.to(device)
        )
        self.start = torch.tensor([players.start_token(kind) for kind in kinds], device=device)
        table, special = self.model.tokens.weight, torch.tensor(self.tokenizer.special_ids, device=device)
        self.words = Words(table, table.new_zeros(len(table)).index_fill(0, special, -torch.inf))
        self._measure()
        self._cover()
        total = self.model.config.steps
        most = max(r.steps for r in rows)
        times = [stride(total, r.steps) for r in rows]
        self.times = torch.tensor([t + [0] * (most + 1 - len(t)) for t in times], device=device)  # (rows, steps + 1)
        self._branches: tuple[list[int], object] = ([], None)

    def _measure(self) -> None:
        """The length of each row, from the guided distribution over lengths."""
        full, part = (self.model.length_logits(self.start, c).log_softmax(-1) for c in (self.full, self.part))
        lengths = torch.arange(1, full.shape[1] + 1, device=self.device)
        for row in self.rows:
            logp = guidance.cfg(full[row.item], part[row.item], row.weight)
            ends = [p for p, token in row.forced.items() if token == self.tokenizer.eos]
            least, most = max([0, *row.forced]) + 1, row.max_tokens
            if ends:  # a forced end is a forced length
                least = most = max(1, min(ends))
            logp = guidance.normalise(logp.masked_fill((lengths < least) | (lengths > most), -torch.inf))
            best = logp.argmax()
            if self.settings[row.item]["length"] == "drawn":
                chance = torch.rand(1, generator=row.source).to(logp)
                best = drawn(logp[None] / (row.temperature or LENGTH_AT), chance)
            row.length = 1 + int(best)
            row.logprob = logp[row.length - 1].item()

    def _cover(self) -> None:
        """The first state: all [MASK] but what is forced."""
        self.lengths = torch.tensor([r.length for r in self.rows], device=self.device)
        shape = (len(self.rows), int(self.lengths.max()))
        x = torch.full(shape, self.model.mask, device=self.device)
        self.there = torch.arange(shape[1], device=self.device) < self.lengths[:, None]
        self.fixed = torch.zeros_like(self.there)
        for i, row in enumerate(self.rows):
            for position, token in row.forced.items():
                if position < row.length and token != self.tokenizer.eos:
                    x[i, position], self.fixed[i, position] = token, True
        self.states = [x]
        self.chance = torch.zeros(shape[0], max(r.steps for r in self.rows), shape[1])
        for i, row in enumerate(self.rows):
            self.chance[i, : row.steps, : row.length] = torch.rand((row.steps, row.length), generator=row.source)
        self.chance = self.chance.to(self.device)
        self.logp = torch.zeros(shape, device=self.device)  # of every word, where it was decided
        self.by_chance = torch.tensor([self.settings[r.item]["order"] == "random" for r in self.rows], device=self.device)
        self.canvas = Canvas(x.clamp(max=self.model.mask - 1), (x == self.model.mask) & self.there, self.fixed.clone(), torch.zeros_like(x))

    # --------------------------------------------------------------------------------------------------- the model

    def predict(self, rows: Tensor, k: int, second: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([rows, second])
        key = both.tolist()
        if key != self._branches[0]:
            self._branches = key, self.full[self.items[rows]].joined(self.part[self.items[second]])
        x, t = self.states[k][both], self.times[both, k]
        hidden = self.model.vectors(self.start[self.items[both]], x, t, self._branches[1], self.lengths[both])
        return hidden[: len(rows)], hidden[len(rows) :]

    def again(self, row: int, steps: int) -> Tensor:
        item = self.items[row].expand(steps)
        x = torch.stack([state[row, : self.rows[row].length] for state in self.states[:steps]])
        return self.model.vectors(self.start[item], x, self.times[row, :steps], self.part[item], self.lengths[row].expand(steps))

    # ------------------------------------------------------------------------------------------------- one step on

    def advance(self, rows: Tensor, k: int, hidden: Tensor) -> None:
        state, open_ = self.states[k].clone(), self._open(rows, k)
        guided = self.words.logp(hidden[open_])  # (m, vocab)
        for row, mine, logp in zip(rows.tolist(), open_, guided.split(open_.sum(1).tolist()), strict=True):
            at = mine.nonzero()[:, 0]
            if len(at):
                move = self._by_posterior if self.by_chance[row] else self._by_confidence
                moved = move(row, k, state[row, : self.rows[row].length], at, logp)
                state[row, at] = torch.where(self.fixed[row, at], state[row, at], moved)
        self.states.append(state)
        self._paint(rows, k, state[rows], open_, guided)

    def _open(self, rows: Tensor, k: int) -> Tensor:
        """(r, n): positions that this step may change; in the first one also what is forced, whose log-probability is told."""
        covered = (self.states[k][rows] == self.model.mask) & self.there[rows]
        due = covered.sum(1) > self._left(rows, k)
        return covered & due[:, None] | self.there[rows] & self.by_chance[rows, None] | self.fixed[rows] & (k == 0)

    def _left(self, rows: Tensor, k: int) -> Tensor:
        """(r,): how many positions the schedule leaves covered on average after step k."""
        return self.lengths[rows] * self.times[rows, k + 1] // self.model.config.steps

    def _by_posterior(self, index: int, k: int, x: Tensor, at: Tensor, guided: Tensor) -> Tensor:
        """A sample of p(x_s | x_t) = Σ_x0 q(x_s | x_t, x0) p(x0): x (n,), at (m,) positions, guided (m, vocab) → (m,)."""
        row, t, s = self.rows[index], self.times[index, k : k + 1], self.times[index, k + 1 : k + 2]
        if row.temperature > 0:
            believed = self._tempered(row, guided)
        else:
            believed = F.one_hot(guided.argmax(-1), guided.shape[1]).to(guided.dtype).log()
        posterior = self.model.diffusion.q_posterior(believed[None], x[None, at], s, t)[0]
        posterior[:, :-1] += self.words.bias
        return drawn(posterior, self.chance[index, k, at])

    def _by_confidence(self, index: int, k: int, x: Tensor, at: Tensor, guided: Tensor) -> Tensor:
        """The surest words, as many as the schedule uncovers; none beside itself: x (n,), at (m,) positions, guided (m, vocab) → (m,)."""
        row, covered = self.rows[index], x[at] == self.model.mask
        places = torch.zeros_like(x, dtype=torch.bool).index_fill(0, at, True)
        logp = unlike_neighbours(x.masked_fill(x == self.model.mask, -1)[None], places[None], guided)
        words = drawn(self._tempered(row, logp), self.chance[index, k, at]) if row.temperature > 0 else logp.argmax(-1)
        sure = logp.gather(-1, words[:, None])[:, 0].masked_fill(~covered, -torch.inf)
        moved, few = x.clone(), max(0, int(covered.sum() - self._left(torch.tensor([index], device=x.device), k)))
        for i in sure.argsort(descending=True, stable=True)[:few].tolist():
            place = int(at[i])
            beside = moved[max(0, place - 1) : place + 2]
            if words[i] in beside:  # two positions had the same word in mind: they know nothing of each other
                words[i] = logp[i].index_fill(0, beside[beside < self.model.mask], -torch.inf).argmax()
            moved[place] = words[i]
        return moved[at]

    def _tempered(self, row: Row, logp: Tensor) -> Tensor:
        """Log-probabilities at the row's temperature, cut to its best words."""
        return _truncated(logp, self.settings[row.item]["top_k"]).div(row.temperature).log_softmax(-1)

    def _paint(self, rows: Tensor, k: int, x: Tensor, open_: Tensor, guided: Tensor) -> None:
        """What changed was decided by this step."""
        canvas, shown = self.canvas, x.clamp(max=self.model.mask - 1)
        covered = (x == self.model.mask) & self.there[rows]
        changed = ~covered & ((shown != canvas.tokens[rows]) | canvas.covered[rows])
        if k == 0:
            changed = changed | self.fixed[rows]
        canvas.decided[rows] = torch.where(changed, k, canvas.decided[rows])
        said = self.logp[rows].index_put((open_,), guided.gather(-1, shown[open_][:, None])[:, 0])
        self.logp[rows] = torch.where(changed, said, self.logp[rows])
        canvas.tokens[rows], canvas.covered[rows] = shown, covered
        canvas.settled[rows] = torch.where(self.by_chance[rows, None], self.fixed[rows], ~covered)
        for i in rows.tolist():
            if k == self.rows[i].steps - 1:
                self.rows[i].logprob += self.logp[i, : self.rows[i].length].sum().item()

    def details(self, row: int) -> dict:
        item = self.rows[row].item
        if self.settings[item]["guidance"] == "cfg":
            return {}
        shape = self.model.grid_shape(self.media[item].kind)
        return {"masked_cells": {"shape": list(shape), "cells": self.unseen[item].nonzero()[:, 0].tolist()}}


def _truncated(logp: Tensor, keep: int) -> Tensor:
    """(n, vocab) with −inf on all but the best `keep` words; 0 keeps all."""
    return logp.masked_fill(logp < logp.topk(keep, dim=-1).values[:, -1:], -torch.inf) if keep else logp
