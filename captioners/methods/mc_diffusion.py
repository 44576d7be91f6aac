"""Method 3: masked conditional diffusion (Image Captioning via Masked Conditional Diffusion).

The media is a grid of discrete tokens; a caption is denoised from all [MASK] by a mask-and-replace diffusion that looks
at them. The second branch looks at the same tokens with some of them masked (MCS), or all (CFG), and s = γ full + (1 −
γ) masked; the paper prints MCS the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from captioners import guidance
from captioners.contract import MaskDenoiserModels
from captioners.controls import (
    GUIDANCE_SCALE,
    MASK_RATE,
    MAX_TOKENS,
    NUM_CANDIDATES,
    REPEATS,
    SEED,
    TEMPERATURE,
    choice,
    number,
)
from captioners.decoding import SAMPLING_TEMPERATURE, chosen_logp, generator, stack_by_modality, trace_ids
from captioners.denoising import (
    Canvas,
    DenoisingCaptioner,
    DiffusionProcess,
    NoisyCaption,
    OutputLayer,
    decisions,
    noisy_captions,
    sample_tokens,
)
from captioners.nets.captioner import Condition
from captioners.nets.d3pm import stride
from captioners.registry import register
from captioners.repeats import RepeatRule
from captioners.run_record import current_run
from captioners.types import Explanation, Media, Result, Settings, Spec, Step

LENGTH_TEMPERATURE = 0.2  # temperature of a drawn length where words are not drawn

CONTROLS = (
    GUIDANCE_SCALE.but(
        help="How far the caption is pushed away from the masked condition; 1 is off (with mcs-printed, 0 is)."
    ),
    MASK_RATE,
    NUM_CANDIDATES.but(
        help=(
            "How many captions are denoised and ranked; beside a greedy one they are drawn at temperature "
            f"{SAMPLING_TEMPERATURE}."
        )
    ),
    choice(
        "guidance",
        "Guidance rule",
        "mcs compares with a masked condition, cfg with none at all; mcs-printed is the paper's formula, where 0 is "
        "the full condition (off), 1 the masked one alone, and more pushes away from the full one.",
        ("mcs", "cfg", "mcs-printed"),
    ),
    number("num_steps", "Denoising steps", "How many of the 100 steps are taken; fewer are faster.", 20, 5, 100, 1),
    choice(
        "order",
        "Order",
        "confidence uncovers the surest words first; random draws from the diffusion's own posterior (D3PM), which at "
        "temperature 1 is the paper's sampler.",
        ("confidence", "random"),
    ),
    choice(
        "length",
        "Length",
        f"drawn takes a length by chance, at the temperature or else at {LENGTH_TEMPERATURE}; "
        "likeliest takes the most likely one.",
        ("drawn", "likeliest"),
    ),
    REPEATS.but(default="once", help=f"{REPEATS.help} Order random has no such rule."),
    TEMPERATURE,
    number("top_k", "Top k", "Only this many best words may be taken at a position; 0 allows all.", 0, 0, 1000, 1),
    MAX_TOKENS,
    SEED,
)


EXPLANATION = Explanation(
    "The input becomes a grid of discrete tokens, and the caption begins as a row of blanks. Step by step the model "
    "fills in the words it is surest of, looking at all positions at once. It is asked twice, with the whole grid and "
    "with some of its cells masked, and what the hidden cells contribute is exaggerated γ times. Measured here this "
    "changes captions and does not make them more telling: the cells left tell nearly as much as all. Guidance cfg, "
    "which compares with no input at all, does. The length is decided before the first word.",
    "Positions are filled without knowing each other: words do not agree, or are doubled where repeats any allows it, "
    "and a caption that was measured too short or too long is squeezed or padded.",
    """@misc{zhou-masked,
  title  = {Image Captioning via Masked Conditional Diffusion},
  author = {Zhou, Jiayi and Li, Chen and Tang, Huidong and Kamei, Sayaka and Jiang, Shuai and Morimoto, Yasuhiko}
}""",
)


@register
class MaskedConditionalDiffusion(DenoisingCaptioner):
    """Captions uncovered from all [MASK], guided against a condition of which some cells are masked."""

    models: MaskDenoiserModels
    spec = Spec(
        id="mc-diffusion",
        title="MC-Diffusion",
        idea="Uncover a masked caption bit by bit, and compare with a model that sees only a part of the input.",
        paper="https://www.semanticscholar.org/search?q=Image+Captioning+via+Masked+Conditional+Diffusion",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="s = γ·log p(x|y) + (1 − γ)·log p(x|y masked)",
        branches=("full input", "masked"),
        unguided={"guidance_scale": 1.0, "guidance": "mcs"},  # where 1 is off, unlike in mcs-printed
        explanation=EXPLANATION,
    )

    @classmethod
    def remarks(cls, settings: Settings) -> tuple[str, ...]:
        """Whose sampler it was."""
        if settings["order"] == "confidence":
            once = ", no content word twice" * (settings["repeats"] == "once")
            return (
                f"Uncovered in order of confidence, the surest words first{once}: "
                "not the paper's sampler, which is order = random.",
            )
        drawn = "Drawn from the diffusion's own posterior (D3PM)"
        if settings["temperature"] == 1 and settings["top_k"] == 0:
            return (f"{drawn}, as the paper does.",)
        belief = (
            "of the likeliest words" if settings["temperature"] == 0 else f"at temperature {settings['temperature']:g}"
        )
        best = f", of the best {settings['top_k']} words" if settings["top_k"] else ""
        return (f"{drawn} {belief}{best}; the paper has temperature 1 and all words.",)

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        record, tokenizer = current_run(), self.models.tokenizer
        longest = self.models.mask_denoiser().config.longest
        # the candidates of every input, with how strongly each is guided
        captions = noisy_captions(tokenizer, media, settings, [full_weight(s) for s in settings], longest)
        # the input as discrete tokens
        with record.stage("encode"):
            codes = self.models.codes(media)
        # the lengths, and the first state: all [MASK]
        with record.stage("decode"):
            process = MaskedDiffusion(self.models, captions, media, settings, codes)
        # one Step for each step of the diffusion, and at the end the results
        yield from self.denoise(media, settings, captions, process, live)

    @torch.no_grad()
    def score_without(self, media: Media, result: Result, hidden: Tensor) -> Tensor | None:
        """With the hidden cells' codes masked, in the state in which each word was decided."""
        model, (codes,) = self.models.mask_denoiser(), self.models.codes([media])
        decided = decisions(self.models.tokenizer, result, drafts=True)
        if decided is None or len(codes) != hidden.shape[1]:
            return None
        rows, device = len(hidden), codes.device
        masked = model.masked(media.kind, codes.expand(rows, -1), hidden.to(device))
        condition = model.condition({media.kind: masked}, torch.arange(rows, device=device))
        final = torch.tensor(trace_ids(self.models.tokenizer, result.trace), device=device)
        start = torch.full((rows,), self.models.start_token(media.kind), device=device)
        times, scores = (
            stride(model.config.steps, result.settings["num_steps"]),
            torch.zeros(rows, len(final), device=device),
        )
        for decision in decided:
            state = torch.tensor([model.mask if token is None else token for token in decision.known], device=device)
            time = torch.full_like(start, times[decision.step])
            vectors = model.vectors(start, state.expand(rows, -1), time, condition, torch.full_like(start, len(final)))
            logp = model.words(vectors[:, decision.positions]).log_softmax(-1)
            scores[:, decision.positions] = chosen_logp(logp, final[decision.positions])
        return scores

    def seen(self, media: Media) -> np.ndarray | None:
        """What the discrete tokens hold."""
        return self.models.painted(media)


def full_weight(settings: Settings) -> float:
    """The weight of the full condition; the masked one has the rest.

    Both rules in one number: printed(γ) = mcs(1 − γ).
    """
    scale = settings["guidance_scale"]
    if settings["guidance"] != "cfg" and settings["mask_rate"] == 0:
        return 1.0  # nothing is masked: both branches are one
    return float(1 - scale if settings["guidance"] == "mcs-printed" else scale)


def masked_cells(media: Media, settings: Settings, cells: int) -> Tensor:
    """Which cells the second branch does not see (cells,): by seed and media alone, and the same first ones at every
    rate.
    """
    rate = 1.0 if settings["guidance"] == "cfg" else settings["mask_rate"]
    order = torch.randperm(cells, generator=generator(settings["seed"], media, -1))
    return torch.zeros(cells, dtype=torch.bool).index_fill(0, order[: round(rate * cells)], True)


class MaskedDiffusion(DiffusionProcess):
    """From all [MASK] to a caption, by the strided posterior of the diffusion or in the order of confidence."""

    def __init__(
        self,
        models: MaskDenoiserModels,
        captions: list[NoisyCaption],
        media: Sequence[Media],
        settings: Sequence[Settings],
        codes: list[Tensor],
    ) -> None:
        self.captions, self.model, self.tokenizer = captions, models.mask_denoiser(), models.tokenizer
        self.media, self.settings = media, settings
        self.device = device = codes[0].device
        self.items = torch.tensor([c.item for c in captions], device=device)
        kinds = [m.kind for m in media]
        self.unseen = [masked_cells(m, s, len(c)).to(device) for m, s, c in zip(media, settings, codes, strict=True)]
        order, stacked = stack_by_modality(codes, kinds)
        _, masks = stack_by_modality(self.unseen, kinds)
        masked = {kind: self.model.masked(kind, grids, masks[kind]) for kind, grids in stacked.items()}
        self.full = self.model.condition(stacked, order.to(device))
        self.part = self.model.condition(masked, order.to(device))
        self.start = torch.tensor([models.start_token(kind) for kind in kinds], device=device)
        table, special = self.model.tokens.weight, torch.tensor(self.tokenizer.special_ids, device=device)
        self.output = OutputLayer(table, table.new_zeros(len(table)).index_fill(0, special, -torch.inf))
        self.repeats = RepeatRule.of(self.tokenizer, [settings[c.item]["repeats"] for c in captions], device)
        self._measure()
        self._cover()
        total = self.model.config.steps
        most = max(c.steps for c in captions)
        times = [stride(total, c.steps) for c in captions]
        self.times = torch.tensor([t + [0] * (most + 1 - len(t)) for t in times], device=device)  # (rows, steps + 1)
        self._joined: tuple[list[int], Condition] = ([], self.full)  # both branches' conditions of the rows asked last

    def _measure(self) -> None:
        """Choose the length of each caption, from the guided distribution over lengths."""
        full, part = (self.model.length_logits(self.start, c).log_softmax(-1) for c in (self.full, self.part))
        lengths = torch.arange(1, full.shape[1] + 1, device=self.device)
        for caption in self.captions:
            logp = guidance.cfg(full[caption.item], part[caption.item], caption.weight)
            ends = [p for p, token in caption.forced.items() if token == self.tokenizer.eos]
            least, most = max([0, *caption.forced]) + 1, caption.max_tokens
            if ends:  # a forced end is a forced length
                least = most = max(1, min(ends))
            logp = guidance.normalise(logp.masked_fill((lengths < least) | (lengths > most), -torch.inf))
            best = logp.argmax()
            if self.settings[caption.item]["length"] == "drawn":
                chance = torch.rand(1, generator=caption.source).to(logp)
                best = sample_tokens(logp[None] / (caption.temperature or LENGTH_TEMPERATURE), chance)
            caption.length = 1 + int(best)
            caption.logprob = logp[caption.length - 1].item()

    def _cover(self) -> None:
        """Make the first state: all [MASK] but what is forced."""
        self.lengths = torch.tensor([c.length for c in self.captions], device=self.device)
        shape = (len(self.captions), int(self.lengths.max()))
        x = torch.full(shape, self.model.mask, device=self.device)
        self.inside = torch.arange(shape[1], device=self.device) < self.lengths[:, None]
        self.fixed = torch.zeros_like(self.inside)
        for i, caption in enumerate(self.captions):
            for position, token in caption.forced.items():
                if position < caption.length and token != self.tokenizer.eos:
                    x[i, position], self.fixed[i, position] = token, True
        self.states = [x]
        self.chance = torch.zeros(shape[0], max(c.steps for c in self.captions), shape[1])
        for i, caption in enumerate(self.captions):
            size = (caption.steps, caption.length)
            self.chance[i, : caption.steps, : caption.length] = torch.rand(size, generator=caption.source)
        self.chance = self.chance.to(self.device)
        self.logp = torch.zeros(shape, device=self.device)  # of every word, where it was decided
        random_order = [self.settings[c.item]["order"] == "random" for c in self.captions]
        self.by_chance = torch.tensor(random_order, device=self.device)
        covered = (x == self.model.mask) & self.inside
        self.canvas = Canvas(x.clamp(max=self.model.mask - 1), covered, self.fixed.clone(), torch.zeros_like(x))

    # --------------------------------------------------------------------------------------------------- the model

    def predict(self, rows: Tensor, k: int, second: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([rows, second])
        key = joined.tolist()
        if key != self._joined[0]:
            self._joined = key, self.full[self.items[rows]].joined(self.part[self.items[second]])
        x, t = self.states[k][joined], self.times[joined, k]
        hidden = self.model.vectors(self.start[self.items[joined]], x, t, self._joined[1], self.lengths[joined])
        return hidden[: len(rows)], hidden[len(rows) :]

    def replay_second_branch(self, row: int, steps: int) -> Tensor:
        item = self.items[row].expand(steps)
        x = torch.stack([state[row, : self.captions[row].length] for state in self.states[:steps]])
        return self.model.vectors(
            self.start[item], x, self.times[row, :steps], self.part[item], self.lengths[row].expand(steps)
        )

    # ------------------------------------------------------------------------------------------------- one step on

    def advance(self, rows: Tensor, k: int, hidden: Tensor) -> None:
        state, open_ = self.states[k].clone(), self._open(rows, k)
        guided = self.output.logp(hidden[open_])  # (m, vocab)
        for row, may_change, logp in zip(rows.tolist(), open_, guided.split(open_.sum(1).tolist()), strict=True):
            at = may_change.nonzero()[:, 0]
            if len(at):
                move = self._by_posterior if self.by_chance[row] else self._by_confidence
                moved = move(row, k, state[row, : self.captions[row].length], at, logp)
                state[row, at] = torch.where(self.fixed[row, at], state[row, at], moved)
        self.states.append(state)
        self._paint(rows, k, state[rows], open_, guided)

    def _open(self, rows: Tensor, k: int) -> Tensor:
        """(r, n): positions that this step may change; in the first one also what is forced, whose log-probability
        is told.
        """
        covered = (self.states[k][rows] == self.model.mask) & self.inside[rows]
        due = covered.sum(1) > self._left(rows, k)
        return covered & due[:, None] | self.inside[rows] & self.by_chance[rows, None] | self.fixed[rows] & (k == 0)

    def _left(self, rows: Tensor, k: int) -> Tensor:
        """(r,): how many positions the schedule leaves covered on average after step k."""
        return self.lengths[rows] * self.times[rows, k + 1] // self.model.config.steps

    def _by_posterior(self, index: int, k: int, x: Tensor, at: Tensor, guided: Tensor) -> Tensor:
        """A sample of p(x_s | x_t) = Σ_x0 q(x_s | x_t, x0) p(x0): x (n,), at (m,) positions, guided (m, vocab) →
        (m,).
        """
        caption, t, s = self.captions[index], self.times[index, k : k + 1], self.times[index, k + 1 : k + 2]
        if caption.temperature > 0:
            believed = self._tempered(caption, guided)
        else:
            believed = F.one_hot(guided.argmax(-1), guided.shape[1]).to(guided.dtype).log()
        posterior = self.model.diffusion.q_posterior(believed[None], x[None, at], s, t)[0]
        posterior[:, :-1] += self.output.bias
        return sample_tokens(posterior, self.chance[index, k, at])

    def _by_confidence(self, index: int, k: int, x: Tensor, at: Tensor, guided: Tensor) -> Tensor:
        """The surest words, as many as the schedule uncovers, without repeats: x (n,), at (m,) positions, guided
        (m, vocab) → (m,).
        """
        caption, covered = self.captions[index], x[at] == self.model.mask
        logp = self._unrepeated(index, x, at, guided)
        words = logp.argmax(-1)
        if caption.temperature > 0:
            words = sample_tokens(self._tempered(caption, logp), self.chance[index, k, at])
        sure = chosen_logp(logp, words).masked_fill(~covered, -torch.inf)
        moved, due = x.clone(), max(0, int(covered.sum() - self._left(torch.tensor([index], device=x.device), k)))
        for rank, i in enumerate(sure.argsort(descending=True, stable=True)[:due]):
            if rank:  # two positions had the same word in mind: they know nothing of each other
                possible = self._unrepeated(index, moved, at[i, None], logp[i, None])[0]
                words[i] = words[i] if possible[words[i]].isfinite() else possible.argmax()
            moved[at[i]] = words[i]
        return moved[at]

    def _unrepeated(self, index: int, x: Tensor, at: Tensor, logp: Tensor) -> Tensor:
        """logp (m, vocab) of positions at (m,), in order, without what would repeat a word of x (n,)."""
        places = torch.zeros_like(x, dtype=torch.bool).index_fill(0, at, True)
        words = x.masked_fill(x == self.model.mask, -1)
        return self.repeats.forbid(torch.tensor([index], device=x.device), words[None], places[None], logp)

    def _tempered(self, caption: NoisyCaption, logp: Tensor) -> Tensor:
        """Log-probabilities at the caption's temperature, cut to its best words."""
        return _truncated(logp, self.settings[caption.item]["top_k"]).div(caption.temperature).log_softmax(-1)

    def _paint(self, rows: Tensor, k: int, x: Tensor, open_: Tensor, guided: Tensor) -> None:
        """Write the canvas: what changed was decided by this step."""
        canvas, shown = self.canvas, x.clamp(max=self.model.mask - 1)
        covered = (x == self.model.mask) & self.inside[rows]
        changed = ~covered & ((shown != canvas.tokens[rows]) | canvas.covered[rows])
        if k == 0:
            changed = changed | self.fixed[rows]
        canvas.decided[rows] = torch.where(changed, k, canvas.decided[rows])
        word_logp = self.logp[rows].index_put((open_,), chosen_logp(guided, shown[open_]))
        self.logp[rows] = torch.where(changed, word_logp, self.logp[rows])
        canvas.tokens[rows], canvas.covered[rows] = shown, covered
        canvas.settled[rows] = torch.where(self.by_chance[rows, None], self.fixed[rows], ~covered)
        for i in rows.tolist():
            if k == self.captions[i].steps - 1:
                self.captions[i].logprob += self.logp[i, : self.captions[i].length].sum().item()

    def details(self, row: int) -> dict[str, Any]:
        item = self.captions[row].item
        if self.settings[item]["guidance"] == "cfg":
            return {}
        shape = self.model.grid_shape(self.media[item].kind)
        return {"masked_cells": {"shape": list(shape), "cells": self.unseen[item].nonzero()[:, 0].tolist()}}


def _truncated(logp: Tensor, keep: int) -> Tensor:
    """(n, vocab) with −inf on all but the best `keep` words; 0 keeps all."""
    return logp.masked_fill(logp < logp.topk(keep, dim=-1).values[:, -1:], -torch.inf) if keep else logp
