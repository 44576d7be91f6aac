"""Method 4: Prefix-diffusion (arXiv 2309.04965).

A caption is denoised as a row of word embeddings, behind a prefix made of the pooled picture or sound. Many candidates start from many
noises in one batch, and the best is picked. Beyond the paper: guidance against the same model without its prefix, a number of words, and an
order in which the surest words settle first and the others denoise around them (the paper's sampler is `order = together`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners.controls import GUIDANCE_SCALE, NUM_CANDIDATES, RANKING, SEED, TEMPERATURE, choice, number
from captioners.decoding import Clock, by_kind, gumbel
from captioners.denoising import DRAWN_AT, Canvas, Process, Row, Words, denoise, drawn, rows_of, unlike_neighbours
from captioners.nets.rounding import ANY, TokenKinds, best_sequences, settled
from captioners.nets.schedules import SAMPLERS, SCHEDULES, alpha_bars, sampler
from captioners.registry import Captioner, register
from captioners.types import Media, Settings, Spec, Step

SLACK = 3  # positions beyond the words: for the end, and for words of several pieces
SHARPER = 2.0  # the exponent on the length head's probabilities: lengths nearer to the usual one
SURE = 0.999  # a row that is this sure of every word is not asked again
PIECE = 256  # states in one pass of the second look

CONTROLS = (
    GUIDANCE_SCALE.but(default=1.0, help="How far the caption is pushed away from what the model says without the prefix; 1 is off."),
    NUM_CANDIDATES.but(default=8, help="How many captions are denoised at once, each from a noise of its own; the best one is shown."),
    number("num_steps", "Denoising steps", "How many of the 1000 steps are taken; fewer are faster.", 30, 5, 1000, 1),
    number("length", "Words", "Exactly how many words the caption has; auto leaves it to the model.", None, 4, 20, 1, optional=True),
    TEMPERATURE.but(
        default=0.8,
        help=f"How strong noise and chance are: little gives plain captions, much varied ones; 0 is none (for the others {DRAWN_AT}).",
    ),
    RANKING,
    choice(
        "order",
        "Order",
        "confidence settles the surest words first, and the others denoise around them; together is the paper's plain sampler.",
        ("confidence", "together"),
    ),
    choice("sampler", "Sampler", "ddim takes plain steps, dpm-solver++ looks one step back and needs fewer.", SAMPLERS),
    choice("schedule", "Noise schedule", "How the noise falls along the steps; the paper found truncated-linear best.", tuple(SCHEDULES)),
    SEED,
)


@register
class PrefixDiffusion(Captioner):
    """The adapter."""

    spec = Spec(
        id="prefix-diffusion",
        title="Prefix-diffusion",
        idea="Denoise many captions at once behind a prefix of the input, and pick the best.",
        paper="https://arxiv.org/abs/2309.04965",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="x₀ = Σ p(w)·e_w,  log p = u + γ·(c − u)",
        branches=("with prefix", "without"),
        off={"num_candidates": 1},  # picking the best of many is what guides here
    )

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        clock = Clock()
        model = self.players.prefix_denoiser()
        weights = [s["guidance_scale"] for s in settings]
        rows = rows_of(self.players.tokenizer, media, settings, weights, model.config.canvas - 1)
        with clock.stage("encode"):
            pooled = [f.pooled for f in self.players.encode(media)]
        with clock.stage("decode"):
            process = Denoising(self.players, rows, media, settings, pooled)
        yield from denoise(self.spec, self.players, media, settings, rows, process, clock, live)


class Denoising(Process):
    """From noise to word embeddings, by a sampler that is told x0 at every step."""

    def __init__(self, players, rows: list[Row], media: Sequence[Media], settings: Sequence[Settings], pooled: list[Tensor]):
        self.rows, self.settings, self.model = rows, settings, players.prefix_denoiser()
        self.kinds, self.device = TokenKinds.of(players.tokenizer), pooled[0].device
        order, stacked = by_kind(pooled, [m.kind for m in media])
        tags = torch.tensor([players.start_token(m.kind) for m in media], device=self.device)
        self.items = torch.tensor([r.item for r in rows], device=self.device)
        seen = self.model.prefix(stacked, order.to(self.device), tags)
        self.full, self.none = seen[self.items], self.model.prefix({}, order, tags)[self.items]
        self.table = self.model.table()
        said = (self.kinds.begins | self.kinds.goes_on).index_fill(0, torch.tensor(self.kinds.end), True)
        self.words = Words(self.table, self.model.bias.masked_fill(~said.to(self.device), -torch.inf))
        self._measure(seen.lengths)
        self._start()

    def _measure(self, lengths: Tensor) -> None:
        """Every row's number of words and of positions; lengths (items, words) log-probabilities."""
        self.count = torch.full((len(self.rows),), ANY, device=self.device)
        for i, row in enumerate(self.rows):
            noisy = lengths[row.item] * SHARPER + row.temperature * gumbel(lengths.shape[1:], row.source).to(self.device)
            words = self.settings[row.item]["length"] or int(noisy[3:20].argmax()) + 4
            reach = max(row.forced, default=-1) + 1
            ends = [p for p, token in row.forced.items() if token == self.kinds.end]
            if not ends and (reach <= words or self.settings[row.item]["length"]):
                self.count[i] = words
            row.length = min(row.max_tokens + 1, max(words, reach) + SLACK)

    def _start(self) -> None:
        """The first state: noise, as much as is wanted. What is forced is known from the first step on."""
        n, embed = max(r.length for r in self.rows), self.table.shape[1]
        sizes = torch.tensor([r.length for r in self.rows], device=self.device)
        self.there = torch.arange(n, device=self.device) < sizes[:, None]
        self.fixed = torch.full((len(self.rows), n), -1, device=self.device)
        noise = torch.zeros(len(self.rows), n, embed)
        for i, row in enumerate(self.rows):
            whole = torch.randn((self.model.config.canvas, embed), generator=row.source)  # the same for every length
            noise[i, : row.length] = row.temperature * whole[: row.length]
            for position, token in row.forced.items():
                self.fixed[i, position : None if token == self.kinds.end else position + 1] = token
        self.fixed[~self.there] = self.kinds.end
        self.chosen = self.fixed.clone()  # the words that are settled, −1 where none is
        self.x0 = torch.zeros_like(noise, device=self.device)  # as last believed
        self.states, self.told, self.believed = [noise.to(self.device)], [], [self.x0]
        self.hidden = [torch.zeros_like(self.states[0])] * 2  # of both branches, at the last step that asked
        self.opinion = torch.zeros_like(self.states[0])  # guided vectors, when the word was settled
        self.sure = torch.zeros(len(self.rows), dtype=torch.bool, device=self.device)
        self.news = torch.ones_like(self.sure)  # rows in which a word was settled since they were asked
        self._plan(n)
        ends = torch.full(self.there.shape, self.kinds.end, device=self.device)
        self.canvas = Canvas(ends, self.there.clone(), self.fixed >= 0, torch.zeros_like(ends))
        self.levels = torch.ones(len(self.rows), max(r.steps for r in self.rows))
        self.samplers = []
        for (name, schedule, steps), same in groupby(sorted(range(len(self.rows)), key=self._way), key=self._way):
            scheduler, some = sampler(name, schedule, steps), torch.tensor(list(same))
            self.samplers.append((scheduler, some.to(self.device)))
            self.levels[some, :steps] = alpha_bars(schedule)[scheduler.timesteps]
        self.levels = self.levels.to(self.device)

    def _plan(self, n: int) -> None:
        """How many positions of each row are held after each step, and the chance that draws their words."""
        most = max(r.steps for r in self.rows)
        self.share, self.chance = torch.zeros(len(self.rows), most, dtype=torch.long), torch.zeros(len(self.rows), most, n)
        for i, row in enumerate(self.rows):
            if self.settings[row.item]["order"] == "confidence":
                self.share[i, : row.steps] = row.length * torch.arange(1, row.steps + 1) // row.steps
                self.chance[i, : row.steps] = torch.rand((row.steps, self.model.config.canvas), generator=row.source)[:, :n]
        beyond = (~self.there).sum(1, keepdim=True)
        self.share, self.chance = self.share.to(self.device) + beyond, self.chance.to(self.device)
        self.warmth = torch.tensor([r.temperature for r in self.rows], device=self.device)
        self.steps = torch.tensor([r.steps for r in self.rows], device=self.device)

    def _way(self, row: int) -> tuple[str, str, int]:
        settings = self.settings[self.rows[row].item]
        return settings["sampler"], settings["schedule"], settings["num_steps"]

    # --------------------------------------------------------------------------------------------------- the model

    def predict(self, rows: Tensor, k: int, second: Tensor) -> tuple[Tensor, Tensor]:
        held = self.chosen >= 0  # a settled word is told as clean
        self.blind = self.model.legible(self.levels[:, k]) == 0  # rows that see their settled words and nothing else
        self.states[k] = torch.where(held[..., None], self.table[self.chosen.clamp(min=0)], self.states[k])
        self.believed[k] = self.believed[k].masked_fill(self.blind[:, None, None], 0.0)
        self.told.append(torch.where(held, 1.0, self.levels[:, k, None]))
        for branch, (some, prefix) in enumerate(((rows, self.full), (second, self.none))):
            asked = some[~self.sure[some] & (self.news[some] | ~self.blind[some])]
            if len(asked):
                self.hidden[branch] = self.hidden[branch].index_copy(0, asked, self._vectors(asked, k, prefix))
        self.news[rows] = False
        return self.hidden[0][rows], self.hidden[1][second]

    def _vectors(self, rows: Tensor, k: int, prefix) -> Tensor:
        """Hidden vectors (r, n, d). Blind rows of one input that have settled on the same words so far are asked once."""
        apart = torch.where(self.blind[rows], -1 - self.items[rows], rows)
        known = torch.stack([apart, self.count[rows], self.there[rows].sum(1)], 1)
        alike = torch.cat([known, self.chosen[rows]], 1).unique(dim=0, return_inverse=True)[1]
        one = rows.new_empty(int(alike.max()) + 1).scatter(0, alike, rows)  # of each kind
        states, told, believed, there = (some[one] for some in (self.states[k], self.told[k], self.believed[k], self.there))
        return self.model.vectors(states, told, prefix[one], self.count[one], believed, there, self.chosen[one] < 0)[alike]

    def again(self, row: int, steps: int) -> Tensor:
        at = torch.full((steps,), row, device=self.device)
        states, told, believed = (torch.stack([s[row] for s in some[:steps]]) for some in (self.states, self.told, self.believed))
        parts = zip(*(x.split(PIECE) for x in (at, states, told, believed)), strict=True)
        vectors = self.model.vectors
        return torch.cat([vectors(x, a, self.none[r], self.count[r], b, self.there[r]) for r, x, a, b in parts])

    # ------------------------------------------------------------------------------------------------- one step on

    def advance(self, rows: Tensor, k: int, hidden: Tensor) -> None:
        busy = self._has_work(rows, k)
        if busy.any():
            self._decide(rows[busy], k, hidden[busy])
        state = self.states[k].clone()
        for scheduler, some in self.samplers:
            if k < len(scheduler.timesteps):
                state[some] = scheduler.step(self.x0[some], scheduler.timesteps[k], state[some]).prev_sample
        self.states.append(state)
        self.believed.append(self.x0)

    def _has_work(self, rows: Tensor, k: int) -> Tensor:
        """(r,): rows that see something new, may settle a word, or are at their first or last step; what the others think is known."""
        waiting = self.sure[rows] | self.blind[rows]
        grows = (self.chosen[rows] >= 0).sum(1) < self.share[rows, k]
        return ~waiting | grows | (k + 1 == self.steps[rows]) | (k == 0)

    def _decide(self, rows: Tensor, k: int, hidden: Tensor) -> None:
        """x0 of the rows, words that are settled now, and what is shown, by guided vectors (r, n, d)."""
        held = self.chosen[rows]
        at = held < 0  # (r, n): the m positions that are open
        guided = self.words.logp(hidden[at])  # (m, vocab)
        x0 = self.table[held.clamp(min=0)].index_put((at,), guided.exp() @ self.table)
        self.x0 = self.x0.index_copy(0, rows, x0)
        self.opinion[rows] = torch.where(at[..., None], hidden, self.opinion[rows])
        sure, words = guided.max(-1)
        self._settle(rows, k, at, guided)
        self._paint(rows, k, at, sure, words)

    def _settle(self, rows: Tensor, k: int, at: Tensor, guided: Tensor) -> None:
        """Draw words for the open positions of rows that may hold more of them, none beside itself, and keep the surest."""
        held, share = self.chosen[rows], self.share[rows, k]
        more = at & ((~at).sum(1) < share)[:, None]
        if not more.any():
            return
        logp = unlike_neighbours(self._said(held), more, guided[more[at]])  # (m, vocab)
        warmth = self.warmth[rows, None].expand_as(more)[more]
        tempered = logp / warmth.clamp(min=1e-3)[:, None]
        words = drawn(tempered, self.chance[rows, k][more])
        if (cold := warmth == 0).any():
            words[cold] = logp[cold].argmax(-1)
        while True:
            proposed = torch.full_like(held, -1).index_put((more,), words)
            sure = torch.full(more.shape, -torch.inf, device=self.device)
            sure[more] = logp.gather(-1, words[:, None])[:, 0].to(sure)
            twins = _less_sure_twins(self._said(proposed), sure)
            if not twins.any():
                break
            logp[twins[more]] = other = unlike_neighbours(self._said(proposed), twins, logp[twins[more]])
            words[twins[more]] = other.argmax(-1)
        self.chosen[rows] = settled(held, proposed, sure, share)
        self.news[rows] |= (self.chosen[rows] != held).any(1)

    def _said(self, words: Tensor) -> Tensor:
        """Words that may not stand beside themselves; the end may."""
        return words.masked_fill(words == self.kinds.end, -1)

    def _paint(self, rows: Tensor, k: int, at: Tensor, sure: Tensor, words: Tensor) -> None:
        """The best word of every position now; at a row's last step its positions are rounded together. sure, words (m,): the best ones."""
        canvas, held, there = self.canvas, self.chosen[rows], self.there[rows]
        tokens = torch.where(held >= 0, held, held.index_put((at,), words))
        fresh = ~canvas.settled[rows]  # what was settled before keeps the step it was taken from
        last = self.steps[rows] == k + 1
        if last.any():
            tokens[last] = self._rounded(rows[last], tokens[last])
        changed = fresh & ((tokens != canvas.tokens[rows]) | (k == 0) | (held >= 0))
        canvas.decided[rows] = torch.where(changed, k, canvas.decided[rows])
        canvas.tokens[rows], canvas.covered[rows] = tokens, (tokens == self.kinds.end) & there
        canvas.settled[rows] = held >= 0
        certain = torch.ones_like(at).index_put((at,), sure.exp() > SURE)
        self.sure[rows] = (certain | (held >= 0)).all(1)

    def _rounded(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Finished captions (r, n): what was chosen stays wherever the wanted length allows it, what is forced stays always."""
        forced, held = self.fixed[rows][..., None], self._said(self.chosen[rows])
        opinion = self.words.logp(self.opinion[rows])
        word = torch.arange(opinion.shape[-1], device=self.device) == forced
        other = unlike_neighbours(held, torch.ones_like(held, dtype=torch.bool), opinion.flatten(0, 1)).view_as(opinion)
        logp = torch.where(forced >= 0, torch.where(word, 0.0, -torch.inf), other.scatter(-1, tokens[..., None], 0.0))
        ids = best_sequences(logp, self.kinds, self.count[rows], self.there[rows].sum(1))
        said = opinion.gather(-1, ids[..., None])[..., 0].masked_fill(forced[..., 0] >= 0, 0.0)
        for i, row in enumerate(self.rows[r] for r in rows.tolist()):
            row.length = int((ids[i] != self.kinds.end).sum())
            row.logprob = said[i, : row.length].sum().item()
        return ids


def _less_sure_twins(words: Tensor, sure: Tensor) -> Tensor:
    """(r, n): positions whose word, −1 where there is none, is also that of a neighbour that is surer of it."""
    same = (words[:, 1:] == words[:, :-1]) & (words[:, 1:] >= 0)
    left = sure[:, :-1] >= sure[:, 1:]  # the left one of the two keeps it
    return F.pad(same & left, (1, 0)) | F.pad(same & ~left, (0, 1))
