"""Method 4: Prefix-diffusion (arXiv 2309.04965).

A caption is denoised as a row of word embeddings, behind a prefix made of the pooled picture or sound. Many candidates
start from many noises in one batch, and the best is picked. Beyond the paper: guidance against the same model without
its prefix, a number of words, and an order in which the surest words settle first and the others denoise around them.
The published code's sampler is `order = paper`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from captioners.contract import PrefixDenoiserModels
from captioners.controls import GUIDANCE_SCALE, NUM_CANDIDATES, RANKING, REPEATS, SEED, TEMPERATURE, choice, number
from captioners.decoding import SAMPLING_TEMPERATURE, chosen_logp, gumbel, stack_by_modality, trace_ids
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
from captioners.methods.embedding_sampling import CLAMP, ETA, ORDER, EmbeddingSampling
from captioners.nets.prefix_denoiser import Prefix
from captioners.nets.regions import pooled_regions, seen_regions
from captioners.nets.rounding import ANY, TokenKinds, best_sequences, settled
from captioners.nets.schedules import SAMPLERS, SCHEDULES, alpha_bars, sampler
from captioners.registry import register
from captioners.repeats import RepeatRule
from captioners.run_record import current_run
from captioners.types import Explanation, Media, Result, Settings, Spec, Step

EXTRA_POSITIONS = 3  # beyond the words: for the end, and for words of several pieces
LENGTH_EXPONENT = 2.0  # on the length head's probabilities: lengths nearer to the usual one
CERTAIN = 0.999  # a row that is this sure of every word is not asked again
REPLAY_BATCH = 256  # states in one pass of `replay_second_branch`

CONTROLS = (
    GUIDANCE_SCALE.but(
        default=1.0, help="How far the caption is pushed away from what the model says without the prefix; 1 is off."
    ),
    NUM_CANDIDATES.but(
        default=8, help="How many captions are denoised at once, each from a noise of its own; the best one is shown."
    ),
    number("num_steps", "Denoising steps", "How many of the 1000 steps are taken; fewer are faster.", 30, 5, 1000, 1),
    number(
        "length",
        "Words",
        "Exactly how many words the caption has; auto leaves it to the model.",
        None,
        4,
        20,
        1,
        optional=True,
    ),
    TEMPERATURE.but(
        default=0.5,
        help="How strong noise and chance are: little gives plain captions, much varied ones; "
        f"0 is none (for the others {SAMPLING_TEMPERATURE}). The published code's noise has a strength of 1.",
    ),
    RANKING,
    ORDER,
    REPEATS.but(default="once", help=f"{REPEATS.help} It is a rule of order confidence alone."),
    CLAMP,
    ETA,
    choice("sampler", "Sampler", "ddim takes plain steps, dpm-solver++ looks one step back and needs fewer.", SAMPLERS),
    choice(
        "schedule",
        "Noise schedule",
        "How the noise falls along the steps; the paper found truncated-linear best.",
        tuple(SCHEDULES),
    ),
    SEED,
)


EXPLANATION = Explanation(
    "A caption is a row of word vectors, and it begins as noise. Behind a prefix made of the picture or the sound the "
    "noise is taken away step by step until every vector lies at a word. Many captions start from many noises in one "
    "batch, and a matcher picks the one that fits best. This choice is what guides here: the unguided caption is the "
    "first of them. Pushing away from the model without its prefix is possible too, which the paper does not do. Nor "
    "is the default order the paper's: settling the surest words first reads better than its sampler, which decides "
    "all words at once. Order paper is that sampler: it sticks to the picture more, and says things twice.",
    "The vectors settle on words one by one, so grammar suffers first: articles go missing, and words are doubled "
    "where repeats any allows it, which a matcher does not mind.",
    """@inproceedings{liu2024prefix,
  title     = {Prefix-diffusion: A Lightweight Diffusion Model for Diverse Image Captioning},
  author    = {Liu, Guisheng and Li, Yi and Fei, Zhengcong and Fu, Haiyan and Luo, Xiangyang and Guo, Yanqing},
  booktitle = {LREC-COLING},
  year      = {2024},
  note      = {arXiv:2309.04965}
}""",
)


@register
class PrefixDiffusion(DenoisingCaptioner):
    """Captions denoised as word embeddings behind a prefix of the input, the best of many picked."""

    models: PrefixDenoiserModels
    spec = Spec(
        id="prefix-diffusion",
        title="Prefix-diffusion",
        idea="Denoise many captions at once behind a prefix of the input, and pick the best.",
        paper="https://arxiv.org/abs/2309.04965",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="x₀ = Σ p(w)·e_w,  log p = u + γ·(c − u)",
        branches=("with prefix", "without"),
        unguided={"guidance_scale": 1.0, "num_candidates": 1},  # picking the best of many is what guides here
        explanation=EXPLANATION,
    )

    @classmethod
    def remarks(cls, settings: Settings) -> tuple[str, ...]:
        """Whose sampler it was."""
        return (EmbeddingSampling.of(settings).told(),)

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        record, model = current_run(), self.models.prefix_denoiser()
        # the candidates of every input, with how strongly each is guided
        weights = [s["guidance_scale"] for s in settings]
        captions = noisy_captions(self.models.tokenizer, media, settings, weights, model.config.canvas - 1)
        # the vectors of each input: of the whole, and of its regions if the model reads them
        with record.stage("encode"):
            features = self.models.encode(media)
            regions = model.config.regions
            pooled = [pooled_regions(f.grid, m.kind, regions) for f, m in zip(features, media, strict=True)]
        # the prefix, the lengths, and the first state: noise
        with record.stage("decode"):
            process = EmbeddingDiffusion(self.models, captions, media, settings, pooled)
        # one Step for each step of the diffusion, and at the end the results
        yield from self.denoise(media, settings, captions, process, live)

    @torch.no_grad()
    def score_without(self, media: Media, result: Result, hidden: Tensor) -> Tensor | None:
        """With a prefix of the cells that are seen, beside the words that were settled before each word."""
        model, grid = self.models.prefix_denoiser(), self.models.encode([media])[0].grid
        decided = decisions(self.models.tokenizer, result, drafts=False)
        if decided is None or len(grid) != hidden.shape[1]:
            return None
        rows, device = len(hidden), grid.device
        pooled = seen_regions(grid, media.kind, ~hidden, model.config.regions)
        tags = torch.full((rows,), self.models.start_token(media.kind), device=device)
        prefix = model.prefix({media.kind: pooled}, torch.arange(rows, device=device), tags)
        final = torch.tensor(trace_ids(self.models.tokenizer, result.trace), device=device)
        words = torch.full((rows,), min(len(result.caption.split()), model.config.words), device=device)
        table, scores = model.table(), torch.zeros(rows, len(final), device=device)
        for decision in decided:
            known = torch.tensor([-1 if token is None else token for token in decision.known], device=device)
            clean = torch.where((known >= 0)[:, None], table[known.clamp(min=0)], 0.0)
            levels = (known >= 0).to(grid.dtype).expand(rows, -1)  # of what is not settled nothing can be read
            vectors = model.vectors(clean.expand(rows, -1, -1), levels, prefix, words)
            logp = model.logits(vectors[:, decision.positions]).log_softmax(-1)
            scores[:, decision.positions] = chosen_logp(logp, final[decision.positions])
        return scores


class EmbeddingDiffusion(DiffusionProcess):
    """From noise to word embeddings, by a sampler that is told x0 at every step."""

    def __init__(
        self,
        models: PrefixDenoiserModels,
        captions: list[NoisyCaption],
        media: Sequence[Media],
        settings: Sequence[Settings],
        pooled: list[Tensor],  # of each input (regions, c)
    ) -> None:
        self.captions, self.settings, self.model = captions, settings, models.prefix_denoiser()
        self.sampling = [EmbeddingSampling.of(s) for s in settings]  # of each input
        self.kinds, self.device = TokenKinds.of(models.tokenizer), pooled[0].device
        order, stacked = stack_by_modality(pooled, [m.kind for m in media])
        tags = torch.tensor([models.start_token(m.kind) for m in media], device=self.device)
        self.items = torch.tensor([c.item for c in captions], device=self.device)
        prefix = self.model.prefix(stacked, order.to(self.device), tags)
        self.full, self.none = prefix[self.items], self.model.prefix({}, order, tags)[self.items]
        self.table = self.model.table()
        sayable = (self.kinds.begins | self.kinds.goes_on).index_fill(0, torch.tensor(self.kinds.end), True)
        self.output = OutputLayer(self.table, self.model.bias.masked_fill(~sayable.to(self.device), -torch.inf))
        self.repeats = RepeatRule.of(models.tokenizer, [settings[c.item]["repeats"] for c in captions], self.device)
        self._measure(prefix.lengths)
        self._start()

    def _measure(self, lengths: Tensor) -> None:
        """Choose every row's number of words and of positions; lengths (items, words) log-probabilities."""
        self.count = torch.full((len(self.captions),), ANY, device=self.device)
        for i, caption in enumerate(self.captions):
            noisy = lengths[caption.item] * LENGTH_EXPONENT + caption.temperature * gumbel(
                lengths.shape[1:], caption.source
            ).to(self.device)
            words = self.settings[caption.item]["length"] or int(noisy[3:20].argmax()) + 4
            reach = max(caption.forced, default=-1) + 1
            ends = [p for p, token in caption.forced.items() if token == self.kinds.end]
            if not ends and (reach <= words or self.settings[caption.item]["length"]):
                self.count[i] = words
            caption.length = min(caption.max_tokens + 1, max(words, reach) + EXTRA_POSITIONS)

    def _start(self) -> None:
        """Make the first state: noise, as much as is wanted. What is forced is known from the first step on."""
        n = max(c.length for c in self.captions)
        sizes = torch.tensor([c.length for c in self.captions], device=self.device)
        self.inside = torch.arange(n, device=self.device) < sizes[:, None]
        self.fixed = torch.full((len(self.captions), n), -1, device=self.device)
        self.clamped = torch.tensor([self.sampling[c.item].clamp for c in self.captions], device=self.device)
        self.fresh = torch.tensor([self.sampling[c.item].eta > 0 for c in self.captions], device=self.device)
        noise = self._noise(range(len(self.captions)), n)
        for i, caption in enumerate(self.captions):
            for position, token in caption.forced.items():
                self.fixed[i, position : None if token == self.kinds.end else position + 1] = token
        self.fixed[~self.inside] = self.kinds.end
        self.chosen = self.fixed.clone()  # the words that are settled, −1 where none is
        self.x0 = torch.zeros_like(noise)  # as last believed
        self.goal = self.x0  # what the samplers are told: x0, or the likeliest words
        # of every step: the state, the noise level that the model was told (rows, n), and x0 as believed before it
        self.states: list[Tensor] = [noise]
        self.shown_levels: list[Tensor] = []
        self.believed: list[Tensor] = [self.x0]
        self.hidden = [torch.zeros_like(self.states[0])] * 2  # of both branches, at the last step that asked
        self.opinion = torch.zeros_like(self.states[0])  # guided vectors, when the word was settled
        self.sure = torch.zeros(len(self.captions), dtype=torch.bool, device=self.device)
        self.stale = torch.ones_like(self.sure)  # rows in which a word was settled since they were last asked
        self._plan(n)
        ends = torch.full(self.inside.shape, self.kinds.end, device=self.device)
        self.canvas = Canvas(ends, self.inside.clone(), self.fixed >= 0, torch.zeros_like(ends))
        self.levels = torch.ones(len(self.captions), max(c.steps for c in self.captions))
        self.samplers: list[tuple[Any, float, Tensor]] = []  # diffusers' scheduler, η, and the rows it moves
        rows_by_sampler = groupby(sorted(range(len(self.captions)), key=self._sampler_of), key=self._sampler_of)
        for (name, schedule, steps, eta), members in rows_by_sampler:
            scheduler, rows = sampler(name, schedule, steps), torch.tensor(list(members))
            self.samplers.append((scheduler, eta, rows.to(self.device)))
            self.levels[rows, :steps] = alpha_bars(schedule)[scheduler.timesteps]
        self.levels = self.levels.to(self.device)

    def _noise(self, rows: Iterable[int], n: int) -> Tensor:
        """(rows, n, embed): each row's own noise, as strong as it is wanted and the same for every length."""
        rows = list(rows)
        noise = torch.zeros(len(rows), n, self.table.shape[1])
        for i, caption in enumerate(self.captions[row] for row in rows):
            drawn = torch.randn((self.model.config.canvas, noise.shape[2]), generator=caption.source)
            noise[i, : caption.length] = caption.temperature * drawn[: caption.length]
        return noise.to(self.device)

    def _plan(self, n: int) -> None:
        """Plan how many positions of each row are held after each step, and draw the chance that decides their
        words.
        """
        most = max(c.steps for c in self.captions)
        self.share, self.chance = (
            torch.zeros(len(self.captions), most, dtype=torch.long),
            torch.zeros(len(self.captions), most, n),
        )
        for i, caption in enumerate(self.captions):
            if self.sampling[caption.item].settles:
                self.share[i, : caption.steps] = caption.length * torch.arange(1, caption.steps + 1) // caption.steps
                self.chance[i, : caption.steps] = torch.rand(
                    (caption.steps, self.model.config.canvas), generator=caption.source
                )[:, :n]
        beyond = (~self.inside).sum(1, keepdim=True)
        self.share, self.chance = self.share.to(self.device) + beyond, self.chance.to(self.device)
        self.warmth = torch.tensor([c.temperature for c in self.captions], device=self.device)
        self.steps = torch.tensor([c.steps for c in self.captions], device=self.device)

    def _sampler_of(self, row: int) -> tuple[str, str, int, float]:
        """The sampler, noise schedule, number of steps and η that a row was asked for."""
        item = self.captions[row].item
        settings, sampling = self.settings[item], self.sampling[item]
        return sampling.sampler, settings["schedule"], settings["num_steps"], sampling.eta

    # --------------------------------------------------------------------------------------------------- the model

    def predict(self, rows: Tensor, k: int, second: Tensor) -> tuple[Tensor, Tensor]:
        is_settled = self.chosen >= 0  # a settled word is told as clean
        self.blind = self.model.legible(self.levels[:, k]) == 0  # rows that see their settled words and nothing else
        self.states[k] = torch.where(is_settled[..., None], self.table[self.chosen.clamp(min=0)], self.states[k])
        self.believed[k] = self.believed[k].masked_fill(self.blind[:, None, None], 0.0)
        self.shown_levels.append(torch.where(is_settled, 1.0, self.levels[:, k, None]))
        for branch, (members, prefix) in enumerate(((rows, self.full), (second, self.none))):
            queried = members[~self.sure[members] & (self.stale[members] | ~self.blind[members])]
            if len(queried):
                self.hidden[branch] = self.hidden[branch].index_copy(0, queried, self._vectors(queried, k, prefix))
        self.stale[rows] = False
        return self.hidden[0][rows], self.hidden[1][second]

    def _vectors(self, rows: Tensor, k: int, prefix: Prefix) -> Tensor:
        """Hidden vectors (r, n, d).

        Blind rows of one input that have settled on the same words so far are asked once.
        """
        apart = torch.where(self.blind[rows], -1 - self.items[rows], rows)
        traits = torch.stack([apart, self.count[rows], self.inside[rows].sum(1)], 1)
        alike = torch.cat([traits, self.chosen[rows]], 1).unique(dim=0, return_inverse=True)[1]
        unique = rows.new_empty(int(alike.max()) + 1).scatter(0, alike, rows)  # of each kind
        states, levels, believed, inside = (
            x[unique] for x in (self.states[k], self.shown_levels[k], self.believed[k], self.inside)
        )
        return self.model.vectors(
            states,
            levels,
            prefix[unique],
            self.count[unique],
            believed,
            inside,
            self.chosen[unique] < 0,
        )[alike]

    def replay_second_branch(self, row: int, steps: int) -> Tensor:
        at = torch.full((steps,), row, device=self.device)
        kept = (self.states, self.shown_levels, self.believed)
        states, levels, believed = (torch.stack([x[row] for x in column[:steps]]) for column in kept)
        parts = zip(*(x.split(REPLAY_BATCH) for x in (at, states, levels, believed)), strict=True)
        vectors = self.model.vectors
        return torch.cat([vectors(x, a, self.none[r], self.count[r], b, self.inside[r]) for r, x, a, b in parts])

    # ------------------------------------------------------------------------------------------------- one step on

    def advance(self, rows: Tensor, k: int, hidden: Tensor) -> None:
        busy = self._has_work(rows, k)
        if busy.any():
            self._decide(rows[busy], k, hidden[busy])
        state = self.states[k].clone()
        for scheduler, eta, members in self.samplers:
            if k < len(scheduler.timesteps):
                noise = {"eta": eta, "variance_noise": self._noise(members.tolist(), state.shape[1])} if eta else {}
                state[members] = scheduler.step(
                    self.goal[members], scheduler.timesteps[k], state[members], **noise
                ).prev_sample
        self.states.append(state)
        self.believed.append(self.x0)

    def _has_work(self, rows: Tensor, k: int) -> Tensor:
        """(r,): rows that see something new, may settle a word, or are at their first or last step; what the others
        think is known.
        """
        waiting = self.sure[rows] | self.blind[rows]
        grows = (self.chosen[rows] >= 0).sum(1) < self.share[rows, k]
        return ~waiting | grows | (k + 1 == self.steps[rows]) | (k == 0)

    def _decide(self, rows: Tensor, k: int, hidden: Tensor) -> None:
        """Set x0 of the rows, the words that are settled now, and what is shown, by guided vectors (r, n, d)."""
        words_held = self.chosen[rows]
        at = words_held < 0  # (r, n): the m positions that are open
        guided = self.output.logp(hidden[at])  # (m, vocab)
        sure, words = guided.max(-1)
        held = self.table[words_held.clamp(min=0)]
        x0 = held.index_put((at,), guided.exp() @ self.table)
        self.x0 = self.x0.index_copy(0, rows, x0)
        if (clamped := self.clamped[rows]).any():  # the word that the rounding head reads in the network's vectors
            x0 = torch.where(clamped[:, None, None], held.index_put((at,), self.table[words]), x0)
        self.goal = self.goal.index_copy(0, rows, x0)
        self.opinion[rows] = torch.where(at[..., None], hidden, self.opinion[rows])
        self._settle(rows, k, at, guided)
        self._paint(rows, k, at, sure, words)

    def _settle(self, rows: Tensor, k: int, at: Tensor, guided: Tensor) -> None:
        """Draw words for the open positions of rows that may hold more of them, without repeats, and keep the
        surest.
        """
        words_held, share = self.chosen[rows], self.share[rows, k]
        may_settle = at & ((~at).sum(1) < share)[:, None]
        if not may_settle.any():
            return
        said = self._without_end(words_held)
        logp = self.repeats.forbid(rows, said, may_settle, guided[may_settle[at]])  # (m, vocab)
        warmth = self.warmth[rows, None].expand_as(may_settle)[may_settle]
        tempered = logp / warmth.clamp(min=1e-3)[:, None]
        words = sample_tokens(tempered, self.chance[rows, k][may_settle])
        if (cold := warmth == 0).any():
            words[cold] = logp[cold].argmax(-1)
        while True:
            proposed = torch.full_like(words_held, -1).index_put((may_settle,), words)
            sure = torch.full(may_settle.shape, -torch.inf, device=self.device)
            sure[may_settle] = chosen_logp(logp, words).to(sure)
            after = settled(words_held, proposed, sure, share)
            new = self._without_end(after.masked_fill(words_held >= 0, -1))
            twins = self.repeats.less_sure(rows, new, sure)  # words that settle together know nothing of each other
            if not twins.any():
                break
            logp[twins[may_settle]] = alternatives = self.repeats.forbid(rows, new, twins, logp[twins[may_settle]])
            words[twins[may_settle]] = alternatives.argmax(-1)
        self.chosen[rows] = after
        self.stale[rows] |= (self.chosen[rows] != words_held).any(1)

    def _without_end(self, words: Tensor) -> Tensor:
        """Words that may not stand beside themselves; the end may."""
        return words.masked_fill(words == self.kinds.end, -1)

    def _paint(self, rows: Tensor, k: int, at: Tensor, sure: Tensor, words: Tensor) -> None:
        """Write the best word of every position; at a row's last step its positions are rounded together.

        sure, words (m,): the best.
        """
        canvas, words_held, inside = self.canvas, self.chosen[rows], self.inside[rows]
        tokens = torch.where(words_held >= 0, words_held, words_held.index_put((at,), words))
        fresh = ~canvas.settled[rows]  # what was settled before keeps the step it was taken from
        last = self.steps[rows] == k + 1
        if last.any():
            tokens[last] = self._rounded(rows[last], tokens[last])
        changed = fresh & ((tokens != canvas.tokens[rows]) | (k == 0) | (words_held >= 0))
        canvas.decided[rows] = torch.where(changed, k, canvas.decided[rows])
        canvas.tokens[rows], canvas.covered[rows] = tokens, (tokens == self.kinds.end) & inside
        canvas.settled[rows] = words_held >= 0
        certain = torch.ones_like(at).index_put((at,), sure.exp() > CERTAIN)
        self.sure[rows] = (certain | (words_held >= 0)).all(1) & ~self.fresh[rows]  # fresh noise may change any mind

    def _rounded(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Finished captions (r, n): what was chosen stays wherever the wanted length allows it, what is forced stays
        always.
        """
        forced, words_held = self.fixed[rows][..., None], self._without_end(self.chosen[rows])
        opinion = self.output.logp(self.opinion[rows])
        word = torch.arange(opinion.shape[-1], device=self.device) == forced
        everywhere = torch.ones_like(words_held, dtype=torch.bool)
        unrepeated = self.repeats.forbid(rows, words_held, everywhere, opinion.flatten(0, 1)).view_as(opinion)
        logp = torch.where(
            forced >= 0, torch.where(word, 0.0, -torch.inf), unrepeated.scatter(-1, tokens[..., None], 0.0)
        )
        ids = best_sequences(logp, self.kinds, self.count[rows], self.inside[rows].sum(1))
        word_logp = opinion.gather(-1, ids[..., None])[..., 0].masked_fill(forced[..., 0] >= 0, 0.0)
        for i, caption in enumerate(self.captions[r] for r in rows.tolist()):
            caption.length = int((ids[i] != self.kinds.end).sum())
            caption.logprob = word_logp[i, : caption.length].sum().item()
        return ids
