"""Method 1: classifier-free and language-model guidance (arXiv 2307.16686).

One decoder gives p(x|y) and, with its condition removed, p(x). At every token s = w · lm + α c − β u, where α = γ and
β = γ − 1 unless they are given: w = 0 is classifier-free guidance, γ = 1 the plain model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from captioners import guidance
from captioners.captioner import Captioner
from captioners.contract import CaptionerModels
from captioners.controls import GUIDANCE_SCALE, LM_WEIGHT, MAX_TOKENS, NUM_CANDIDATES, SEED, TEMPERATURE, number, text
from captioners.decoding import (
    SAMPLING_TEMPERATURE,
    TraceColumns,
    choose_tokens,
    forced_ids,
    generator,
    repeated_tokens,
    stack_by_modality,
    step_tokens,
)
from captioners.methods.language_guides import LanguageGuide, language_guide
from captioners.nets.transformer import KeysValues
from captioners.registry import register
from captioners.run_record import RunRecord, current_run
from captioners.types import Explanation, Media, Modality, Settings, Spec, Step

COMPACT_AT = 7 / 8  # of the batch: when this share or less of its captions is unfinished, the finished ones leave it

CONTROLS = (
    GUIDANCE_SCALE,
    LM_WEIGHT,
    NUM_CANDIDATES.but(
        help=f"How many captions are finished and ranked; beside a greedy one they are drawn at temperature {SAMPLING_TEMPERATURE}."
    ),
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

EXPLANATION = Explanation(
    "The captioner was trained with its input left out now and then, so it knows both how likely a word is for this input and how "
    "likely it is in any caption. Before each word it is asked both ways, and the difference is exaggerated γ times. Words that would "
    "fit every picture lose, words that only this one calls for win. A language model may be given a say as well, with weight w, to "
    "pull the caption back to how people write. At γ = 1 and w = 0 nothing is left but the plain captioner.",
    "Pushed too far it says the most telling word again and again, because nothing in the formula wants a sentence: CLIPScore hardly "
    "falls while perplexity goes up many times over.",
    """@inproceedings{kornblith2023guiding,
  title     = {Guiding Image Captioning Models Toward More Specific Captions},
  author    = {Kornblith, Simon and Li, Lala and Wang, Zirui and Nguyen, Thao},
  booktitle = {ICCV},
  year      = {2023},
  note      = {arXiv:2307.16686}
}""",
)


@dataclass
class SampledCaption:
    """One candidate caption of one input, token by token."""

    item: int  # which input it is of
    settings: Settings
    alpha: float
    beta: float
    temperature: float
    forced: dict[int, int]
    source: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprob: float = 0.0
    done: bool = False

    @property
    def max_tokens(self) -> int:
        """The most tokens that it may have."""
        return int(self.settings["max_tokens"])


@register
class ClassifierFree(Captioner):
    """Classifier-free guidance of a captioner, with or without a language model beside it."""

    models: CaptionerModels
    spec = Spec(
        id="cfg",
        title="CFG + LM guidance",
        idea="Compare the model with and without the input, and exaggerate the difference.",
        paper="https://arxiv.org/abs/2307.16686",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="s = w·lm + γ·c − (γ − 1)·u",
        unguided={"guidance_scale": 1.0, "lm_weight": 0.0, "alpha": None, "beta": None},
        explanation=EXPLANATION,
    )

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        record, trace, traced = current_run(), TraceColumns(self.models.tokenizer), any(s.traced for s in settings)
        captions = [c for item, (m, s) in enumerate(zip(media, settings, strict=True)) for c in self._candidates(item, m, s)]
        first = [next(i for i, c in enumerate(captions) if c.item == item) for item in range(len(media))]
        # the input's features, once per input
        with record.stage("encode"):
            grids = [f.grid for f in self.models.encode(media)]
        # both branches in one batch, and the language model behind its prompts
        with record.stage("decode"):
            branches = Branches(self.models, captions, grids, [m.kind for m in media], record)
            guide = self._language_guide(captions, media, record)
        rows = list(range(len(captions)))  # the captions in the batch: those that have ended may leave it
        for position in range(max(c.max_tokens for c in captions)):
            with record.stage("decode"):
                batch = [captions[i] for i in rows]
                # c, u and lm of the next token, and the guided distribution from them
                distributions = branches.next()
                distributions |= guide.next(partial(self._scores, batch, distributions, position))
                distributions["guided"] = guidance.normalise(self._scores(batch, distributions, position))
                # one token for every caption: the best one, a drawn one, or the one that is forced
                tokens = self._choose(batch, distributions["guided"].clone(), position)
                if traced:
                    trace.add(tokens, distributions, rows)
                self._extend(batch, tokens.tolist(), distributions["guided"].gather(1, tokens[:, None])[:, 0].tolist())
            # finished captions leave the batch once they are enough to be worth the copying
            unfinished = [place for place, caption in enumerate(batch) if not caption.done]
            if not unfinished:
                break
            if len(unfinished) <= COMPACT_AT * len(batch):
                branches.keep(unfinished)
                guide.keep(unfinished)
                rows, tokens = [rows[place] for place in unfinished], tokens[unfinished]
            # the chosen tokens enter both caches
            branches.append(tokens)
            guide.append(tokens)
            yield [self._step(captions, row, trace) for row in first] if live else []
        # rows that decoded without a second branch get its column for their plot
        if traced:
            with record.stage("trace"):
                branches.fill_unconditional(trace, [i for i, c in enumerate(captions) if c.beta == 0])
        yield [self._finish(item, media[item], settings[item], captions, trace) for item in range(len(media))]

    # ------------------------------------------------------------------------------------------------- one caption

    def _candidates(self, item: int, media: Media, settings: Settings) -> list[SampledCaption]:
        """The candidates of one input: the first at the temperature that is set, the others drawn."""
        scale = settings["guidance_scale"]
        alpha = scale if settings["alpha"] is None else settings["alpha"]
        beta = scale - 1 if settings["beta"] is None else settings["beta"]
        forced = forced_ids(self.models.tokenizer, settings, settings["max_tokens"])
        return [
            SampledCaption(
                item=item,
                settings=settings,
                alpha=alpha,
                beta=beta,
                temperature=settings["temperature"] or (SAMPLING_TEMPERATURE if candidate else 0.0),
                forced=forced,
                source=generator(settings["seed"], media, candidate),
            )
            for candidate in range(settings["num_candidates"])
        ]

    def _language_guide(self, captions: list[SampledCaption], media: Sequence[Media], record: RunRecord) -> LanguageGuide:
        return language_guide(
            self.models,
            weights=[c.settings["lm_weight"] for c in captions],
            kinds=[media[c.item].kind for c in captions],
            prompts=[c.settings["lm_prompt"] for c in captions],
            max_tokens=[c.max_tokens for c in captions],
            record=record,
        )

    def _scores(self, captions: list[SampledCaption], distributions: dict[str, Tensor], position: int) -> Tensor:
        """(rows, vocab): the paper's formula, with −inf on what may not be said."""
        cond, uncond = distributions["cond"], distributions["uncond"]
        scales = [[c.settings["lm_weight"], c.alpha, c.beta] for c in captions]
        weight, alpha, beta = torch.tensor(scales, device=cond.device).T
        if "lm" not in distributions:
            weight = torch.zeros_like(weight)
        scores = guidance.lm_guided(cond, uncond, distributions.get("lm", cond), alpha, beta, weight)
        tokenizer = self.models.tokenizer
        scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos or position == 0]] = -math.inf  # at least one word
        for i, caption in enumerate(captions):
            scores[i, repeated_tokens(caption.ids, caption.settings["no_repeat"])] = -math.inf
        return scores

    def _choose(self, captions: list[SampledCaption], guided: Tensor, position: int) -> Tensor:
        tokens = choose_tokens(guided, [c.temperature for c in captions], [c.source for c in captions])
        for i, caption in enumerate(captions):
            if caption.done:
                tokens[i] = self.models.tokenizer.pad
            elif position in caption.forced:
                tokens[i] = caption.forced[position]
        return tokens

    def _extend(self, captions: list[SampledCaption], tokens: list[int], logprobs: list[float]) -> None:
        for caption, token, logprob in zip(captions, tokens, logprobs, strict=True):
            if not caption.done:
                caption.logprob += logprob
                caption.ids.append(token)
                caption.done = token == self.models.tokenizer.eos or len(caption.ids) == caption.max_tokens

    def _text(self, caption: SampledCaption) -> str:
        return self.models.tokenizer.decode(caption.ids)

    # ---------------------------------------------------------------------------------------------- steps, results

    def _step(self, captions: list[SampledCaption], index: int, trace: TraceColumns) -> Step:
        caption = captions[index]
        entries = trace.row(index, len(caption.ids))
        others = [self._text(c) for c in captions if c.item == caption.item and c is not caption]
        return Step(len(caption.ids), caption.max_tokens, step_tokens(entries), entries, others)

    def _finish(self, item: int, media: Media, settings: Settings, captions: list[SampledCaption], trace: TraceColumns) -> Step:
        own = [i for i, c in enumerate(captions) if c.item == item]
        return self.finish(
            media,
            settings,
            [self._text(captions[i]) for i in own],
            logprobs=[captions[i].logprob for i in own],
            trace_of=lambda best: trace.row(own[best], len(captions[own[best]].ids)),
        )


class Branches:
    """Conditional rows, and unconditional ones for those that need them, in one batch with one cache."""

    def __init__(
        self,
        models: CaptionerModels,
        captions: list[SampledCaption],
        grids: list[Tensor],
        kinds: list[Modality],
        record: RunRecord,
    ) -> None:
        self.decoder, self.record, self.count = models.caption_decoder(), record, len(captions)
        self.device = grids[0].device
        # the rows that have a second, unconditional branch
        self.second = torch.tensor([i for i, c in enumerate(captions) if c.beta != 0], dtype=torch.long, device=self.device)
        order, stacked = stack_by_modality(grids, kinds)
        condition = self.decoder.condition(stacked, order.to(self.device))
        items = torch.tensor([c.item for c in captions], device=self.device)
        self.all = condition[items]
        self.condition = self.all.joined(condition[items[self.second]].removed())
        start = torch.tensor([models.start_token(kind) for kind in kinds], device=self.device)
        self.start = start[items]
        self.ids = torch.cat([self.start, self.start[self.second]])[:, None]
        self.past: list[KeysValues] | None = None

    def next(self) -> dict[str, Tensor]:
        """log p(next|y) and log p(next), each (rows, vocab); NaN where the second branch is not run."""
        with torch.inference_mode():  # nobody asks for gradients here, and many small operations have less to remember
            logits, self.past = self.decoder(self.ids, self.condition, self.past)
        self.record.call("decoder")
        logp = logits[:, -1].log_softmax(-1)
        uncond = torch.full_like(logp[: self.count], math.nan)
        uncond[self.second] = logp[self.count :]
        return {"cond": logp[: self.count], "uncond": uncond}

    def append(self, tokens: Tensor) -> None:
        """Take the chosen tokens (rows,) into both branches."""
        self.ids = torch.cat([tokens, tokens[self.second]])[:, None]

    def keep(self, places: list[int]) -> None:
        """Only the rows at these places go on, in both branches."""
        new_place = {place: i for i, place in enumerate(places)}
        second = [(self.count + i, new_place[row]) for i, row in enumerate(self.second.tolist()) if row in new_place]
        source = torch.tensor(places + [i for i, _ in second], device=self.device)
        self.past = [(k[source], v[source]) for k, v in self.past or []]
        self.condition = self.condition[source]
        self.second = torch.tensor([row for _, row in second], dtype=torch.long, device=self.device)
        self.count = len(places)

    def fill_unconditional(self, trace: TraceColumns, rows: list[int]) -> None:
        """One teacher-forced pass over finished captions gives the rows without a second branch their missing column."""
        if not rows:
            return
        index = torch.tensor(rows, device=self.device)
        ids = torch.cat([self.start[index, None], trace.tokens(rows)[:, :-1]], 1)
        logp = self.decoder(ids, self.all[index].removed())[0].log_softmax(-1)
        self.record.call("decoder")
        trace.fill("uncond", rows, logp)
