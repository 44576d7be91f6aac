"""Method 1: classifier-free and language-model guidance (arXiv 2307.16686).

One decoder gives p(x|y) and, with its condition removed, p(x). At every token s = w · lm + α c − β u, where α = γ and
β = γ − 1 unless they are given: w = 0 is classifier-free guidance, γ = 1 the plain model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captioners import guidance
from captioners.captioner import Captioner
from captioners.contract import CaptionerModels
from captioners.controls import (
    GUIDANCE_SCALE,
    LM_WEIGHT,
    MAX_TOKENS,
    NUM_CANDIDATES,
    REPEATS,
    SEED,
    TEMPERATURE,
    choice,
    number,
    text,
)
from captioners.decoding import (
    SAMPLING_TEMPERATURE,
    TraceColumns,
    choose_tokens,
    chosen_logp,
    forced_ids,
    generator,
    repeated_tokens,
    stack_by_modality,
    step_tokens,
    trace_ids,
)
from captioners.methods.beam_search import BeamSearch
from captioners.methods.language_guides import LanguageGuide, language_guide
from captioners.nets.key_value_cache import rows_of
from captioners.nets.transformer import KeysValues
from captioners.registry import register
from captioners.repeats import content_tokens
from captioners.run_record import RunRecord, current_run
from captioners.types import Explanation, Media, Modality, Result, Settings, Spec, Step

COMPACT_AT = 7 / 8  # of the batch: when this share or less of its captions is unfinished, the finished ones leave it
LEAST_FORCED = -1e4  # log-probability in a search of a forced token that could not be said: the search must go on

CONTROLS = (
    GUIDANCE_SCALE,
    LM_WEIGHT,
    NUM_CANDIDATES.but(
        help="How many captions are finished and ranked; those of a beam search are its best, "
        f"and beside a greedy one they are drawn at temperature {SAMPLING_TEMPERATURE}."
    ),
    number(
        "alpha", "Exponent α", "Weight of the conditional log-probability; auto is γ.", None, 0, 5, 0.1, optional=True
    ),
    number(
        "beta",
        "Exponent β",
        "Weight of the unconditional log-probability, taken away; auto is γ − 1 + w: the language model, weight w, "
        "stands in for as much of it, and all weights add up to 1.",
        None,
        -1,
        5,
        0.1,
        optional=True,
    ),
    text(
        "lm_prompt",
        "LM prompt",
        "Captions that the language model reads first, separated by |; the last that fit count.",
    ),
    choice(
        "decoding",
        "Decoding",
        "greedy takes the best word at every step, sample draws it, beam keeps the num_beams best beginnings and "
        "finishes the best of them; auto is sample where the temperature is above 0, else greedy.",
        ("auto", "greedy", "sample", "beam"),
    ),
    TEMPERATURE.but(
        help=f"How freely words are drawn; 0 takes the best one in auto, and is {SAMPLING_TEMPERATURE} in sample."
    ),
    number(
        "num_beams",
        "Beams",
        "How many beginnings beam search keeps, at least as many as candidates; 1 is greedy.",
        5,
        1,
        16,
        1,
    ),
    REPEATS,
    number("no_repeat", "No repeat", "Forbids any run of this many tokens to occur twice; 0 is off.", 0, 0, 4, 1),
    MAX_TOKENS,
    SEED,
)

EXPLANATION = Explanation(
    "The captioner was trained with its input left out now and then, so it knows both how likely a word is for this "
    "input and how likely it is in any caption. Before each word it is asked both ways, and the difference is "
    "exaggerated γ times. Words that would fit every picture lose, words that only this one calls for win. A language "
    "model may be given a say as well, with weight w: it stands in for as much of the second opinion and pulls the "
    "caption back to how people write. At γ = 1 and w = 0 nothing is left but the plain captioner.",
    "Pushed too far it says the most telling word again and again, because nothing in the formula wants a sentence: "
    "CLIPScore hardly falls while perplexity goes up many times over.",
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
    places: list[int] = field(default_factory=list)  # its row in the trace at each position
    logprob: float = 0.0
    done: bool = False

    @property
    def max_tokens(self) -> int:
        """The most tokens that it may have."""
        return int(self.settings["max_tokens"])

    def copy(self) -> SampledCaption:
        """Another caption that begins with the same tokens."""
        return replace(self, ids=[*self.ids], places=[*self.places])


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
        formula="s = w·lm + γ·c − (γ − 1 + w)·u",
        unguided={"guidance_scale": 1.0, "lm_weight": 0.0, "alpha": None, "beta": None},
        explanation=EXPLANATION,
    )

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        record, trace, traced = current_run(), TraceColumns(self.models.tokenizer), any(s.traced for s in settings)
        # the candidates of every input; those that a beam search is to find compete with each other
        captions = [self._candidates(item, m, s) for item, (m, s) in enumerate(zip(media, settings, strict=True))]
        searches = {
            item: self._search(own) for item, own in enumerate(captions) if settings[item]["decoding"] == "beam"
        }
        rows = [caption for own in captions for caption in own]  # the batch: captions that have ended may leave it
        # the input's features, once per input
        with record.stage("encode"):
            grids = [f.grid for f in self.models.encode(media)]
        # both branches in one batch, and the language model behind its prompts
        with record.stage("decode"):
            branches = Branches(self.models, rows, grids, [m.kind for m in media], record)
            guide = self._language_guide(rows, media, record)
        for position in range(max(c.max_tokens for c in rows)):
            with record.stage("decode"):
                # c, u and lm of the next token, and the guided distribution from them
                distributions = branches.next()
                distributions |= guide.next(partial(self._scores, rows, distributions, position))
                distributions["guided"] = guidance.normalise(self._scores(rows, distributions, position))
                # one token for every caption: the best one, a drawn one, or the one that is forced
                tokens = self._choose(rows, distributions["guided"].clone(), position)
                # beams choose together: a row may go on from another row, its parent
                grown, parents = rows, list(range(len(rows)))
                if searches:
                    grown, parents, tokens = self._choose_beams(
                        searches, rows, distributions["guided"], tokens, position
                    )
                    distributions = {name: logp[parents] for name, logp in distributions.items()}
                # the captions grow; an input's candidates are the best of its beams so far
                if traced:
                    trace.add(tokens, distributions)
                self._extend(grown, tokens.tolist(), chosen_logp(distributions["guided"], tokens).tolist())
                captions = [
                    searches[i].best(settings[i]["num_candidates"]) if i in searches else c
                    for i, c in enumerate(captions)
                ]
            rows = grown[: len(rows)]
            # finished captions leave the batch once they are worth the copying, or when beams change places
            unfinished = [place for place, caption in enumerate(rows) if not caption.done]
            if not unfinished:
                break
            in_place = parents[: len(rows)] == list(range(len(rows)))
            if not in_place or len(unfinished) <= COMPACT_AT * len(rows):
                kept = [parents[place] for place in unfinished]
                branches.keep(kept)
                guide.keep(kept)
                rows = [rows[place] for place in unfinished]
            else:
                unfinished = list(range(len(rows)))
            # the chosen tokens enter both caches
            branches.append(tokens[unfinished])
            guide.append(tokens[unfinished])
            yield [self._step(own, settings[item], trace) for item, own in enumerate(captions)] if live else []
        # captions that were decoded without a second branch get its column for their plot
        if traced:
            with record.stage("trace"):
                branches.fill_unconditional(trace, [c for own in captions for c in own if c.beta == 0])
        # candidates are ranked and results made
        yield [self._finish(media[item], settings[item], own, trace) for item, own in enumerate(captions)]

    @torch.no_grad()
    def score_without(self, media: Media, result: Result, hidden: Tensor) -> Tensor | None:
        """By the decoder, which does not look at the hidden cells."""
        grid = self.models.encode([media])[0].grid
        ids = trace_ids(self.models.tokenizer, result.trace)
        if ids is None or len(grid) != hidden.shape[1]:
            return None
        decoder, rows = self.models.caption_decoder(), len(hidden)
        condition = decoder.condition({media.kind: grid[None]}, torch.zeros(rows, dtype=torch.long, device=grid.device))
        if condition.mask.shape[-1] == condition.nulls + 1:  # a bottleneck has no cells to hide
            return None
        sequence = torch.tensor([self.models.start_token(media.kind), *ids], device=grid.device).expand(rows, -1)
        logits, _ = decoder(sequence[:, :-1], condition.without(hidden.to(grid.device)))
        return logits.log_softmax(-1).gather(-1, sequence[:, 1:, None])[..., 0]

    # ------------------------------------------------------------------------------------------------- one caption

    def _candidates(self, item: int, media: Media, settings: Settings) -> list[SampledCaption]:
        """The captions of one input: its beams, or its candidates, the first one greedy or drawn and the others
        drawn.
        """
        scale = settings["guidance_scale"]
        alpha = scale if settings["alpha"] is None else settings["alpha"]
        beta = scale - 1 + settings["lm_weight"] if settings["beta"] is None else settings["beta"]
        forced = forced_ids(self.models.tokenizer, settings, settings["max_tokens"])
        decoding = settings["decoding"]
        warm = 0.0 if decoding in ("greedy", "beam") else settings["temperature"]  # of the first one
        if decoding == "sample":
            warm = warm or SAMPLING_TEMPERATURE
        count = settings["num_candidates"]
        return [
            SampledCaption(
                item=item,
                settings=settings,
                alpha=alpha,
                beta=beta,
                temperature=warm or (SAMPLING_TEMPERATURE if candidate else 0.0),
                forced=forced,
                source=generator(settings["seed"], media, candidate),
            )
            for candidate in range(max(count, settings["num_beams"]) if decoding == "beam" else count)
        ]

    def _search(self, beams: list[SampledCaption]) -> BeamSearch[SampledCaption]:
        """A search over one input's captions; `_extend` writes the tokens into those that it makes."""
        return BeamSearch(beams, lambda caption, token: caption.copy(), self.models.tokenizer.eos, beams[0].max_tokens)

    def _language_guide(
        self, captions: list[SampledCaption], media: Sequence[Media], record: RunRecord
    ) -> LanguageGuide:
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
        scores[
            :, [t for t in tokenizer.special_ids if t != tokenizer.eos or position == 0]
        ] = -math.inf  # at least one word
        for i, caption in enumerate(captions):
            scores[i, repeated_tokens(caption.ids, caption.settings["no_repeat"])] = -math.inf
            if caption.settings["repeats"] == "once":
                scores[i, [t for t in caption.ids if content_tokens(tokenizer)[t]]] = -math.inf
        return scores

    def _choose(self, captions: list[SampledCaption], guided: Tensor, position: int) -> Tensor:
        tokens = choose_tokens(guided, [c.temperature for c in captions], [c.source for c in captions])
        for i, caption in enumerate(captions):
            if caption.done:
                tokens[i] = self.models.tokenizer.pad
            elif position in caption.forced:
                tokens[i] = caption.forced[position]
        return tokens

    def _choose_beams(
        self,
        searches: dict[int, BeamSearch[SampledCaption]],
        rows: list[SampledCaption],
        guided: Tensor,
        tokens: Tensor,
        position: int,
    ) -> tuple[list[SampledCaption], list[int], Tensor]:
        """One step of every search: the rows after it and behind them the captions that it ends, with their parents and
        tokens.

        guided (rows, vocab), tokens (rows,): those of rows without a search stay as they are.
        """
        grown, parents = [*rows], list(range(len(rows)))
        ended: list[tuple[int, int, SampledCaption]] = []
        for item, search in searches.items():
            places = [place for place, caption in enumerate(rows) if caption.item == item and not search.done]
            if not places:
                continue
            logp = guided[places]
            if (forced := search.beams[0].forced.get(position)) is not None:
                only = logp[:, forced].clamp(min=LEAST_FORCED)
                logp = torch.full_like(logp, -math.inf).index_copy(
                    1, torch.tensor([forced], device=logp.device), only[:, None]
                )
            came, chosen = search.step(logp)
            for place, beam, token, caption in zip(places, came, chosen, search.beams, strict=True):
                grown[place], parents[place], tokens[place] = caption, places[beam], token
                caption.done = search.done
            ended += [(places[beam], token, caption) for beam, token, caption in search.ended]
        new = torch.tensor([token for _, token, _ in ended], dtype=torch.long, device=tokens.device)
        return grown + [c for _, _, c in ended], parents + [p for p, _, _ in ended], torch.cat([tokens, new])

    def _extend(self, captions: list[SampledCaption], tokens: list[int], logprobs: list[float]) -> None:
        for place, (caption, token, logprob) in enumerate(zip(captions, tokens, logprobs, strict=True)):
            if not caption.done:
                caption.logprob += logprob
                caption.ids.append(token)
                caption.places.append(place)
                caption.done = token == self.models.tokenizer.eos or len(caption.ids) == caption.max_tokens

    def _text(self, caption: SampledCaption) -> str:
        return self.models.tokenizer.decode(caption.ids)

    # ---------------------------------------------------------------------------------------------- steps, results

    def _step(self, captions: list[SampledCaption], settings: Settings, trace: TraceColumns) -> Step:
        first, *others = captions
        entries = trace.row(first.places)
        tokens = step_tokens(entries, "draft" if settings["decoding"] == "beam" else "final")
        return Step(len(first.ids), first.max_tokens, tokens, entries, [self._text(c) for c in others])

    def _finish(self, media: Media, settings: Settings, captions: list[SampledCaption], trace: TraceColumns) -> Step:
        return self.finish(
            media,
            settings,
            [self._text(c) for c in captions],
            logprobs=[c.logprob for c in captions],
            trace_of=lambda best: trace.row(captions[best].places),
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
        self.second = torch.tensor(
            [i for i, c in enumerate(captions) if c.beta != 0], dtype=torch.long, device=self.device
        )
        order, stacked = stack_by_modality(grids, kinds)
        self.inputs = self.decoder.condition(stacked, order.to(self.device))
        self.start = torch.tensor([models.start_token(kind) for kind in kinds], device=self.device)  # of each input
        items = torch.tensor([c.item for c in captions], device=self.device)
        self.condition = self.inputs[items].joined(self.inputs[items[self.second]].removed())
        self.ids = torch.cat([self.start[items], self.start[items[self.second]]])[:, None]
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
        """The rows at these places go on, in this order and in both branches; a place that is named twice goes on as
        two rows.
        """
        branch = {row: self.count + i for i, row in enumerate(self.second.tolist())}
        second = [(branch[place], new) for new, place in enumerate(places) if place in branch]
        source = torch.tensor(places + [i for i, _ in second], device=self.device)
        self.past = rows_of(self.past or [], source)
        self.condition = self.condition[source]
        self.second = torch.tensor([new for _, new in second], dtype=torch.long, device=self.device)
        self.count = len(places)

    def fill_unconditional(self, trace: TraceColumns, captions: list[SampledCaption]) -> None:
        """One teacher-forced pass over finished captions without a second branch gives them their missing column."""
        if not captions:
            return
        items = torch.tensor([c.item for c in captions], device=self.device)
        spoken = pad_sequence([torch.tensor(c.ids[:-1], dtype=torch.long) for c in captions], batch_first=True)
        ids = torch.cat([self.start[items, None], spoken.to(self.device)], 1)
        logp = self.decoder(ids, self.inputs[items].removed())[0].log_softmax(-1)
        self.record.call("decoder")
        trace.fill("uncond", [c.places for c in captions], logp)
