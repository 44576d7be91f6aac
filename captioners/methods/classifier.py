"""Method 2: classifier-guided captioning by context-cache optimisation (arXiv 2501.03183, after ZeroCap 2111.14447).

A frozen language model writes; before each token its keys and values C are moved by gradient descent on λ0 · CE(moved,
untouched) + λ1 · (−log h_a) + λ2 · CE(moved, relevance), where h_a is a classifier's word on whether what is said can
be heard (or seen). The relevance target is what Bayes says of the next token: ∝ p(token) · exp(similarity /
temperature), the similarity being a matcher's, between the input and the caption with that token. ZeroCap's target has
no p(token): a small matcher then stutters. Unguided means λ1 = 0 with relevance kept, the paper's baseline; γ = 1 is
the language model alone, which knows nothing of the input.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from captioners import guidance
from captioners.captioner import Captioner
from captioners.contract import PartialMatcher, SteeredModels
from captioners.decoding import (
    SAMPLING_TEMPERATURE,
    TraceColumns,
    choose_tokens,
    forced_ids,
    generator,
    repeated_tokens,
    step_tokens,
    trace_ids,
)
from captioners.methods.classifier_controls import CONTROLS, EXPLANATION, asked_modality, prompt_for
from captioners.methods.guidance_loss import GuidanceLoss, SteeredCaption
from captioners.methods.text_scorer import TextScorer, relevance_temperature
from captioners.nets.context_cache import ContextCache
from captioners.registry import register
from captioners.run_record import RunRecord, current_run
from captioners.types import Media, Modality, Result, Score, Settings, Spec, Step, TokenTrace

STEP_SIZE = 0.3  # ZeroCap's, at guidance scale 2
FUSION = 0.99  # share of the moved distribution in the geometric mean with the untouched one
CONFIDENT = 0.95  # the fast route does not move a token that the language model is this sure of
CONVERGED = 0.01  # the fast route stops when a step changes the loss by less than this share


@register
class ClassifierGuided(Captioner):
    """A frozen language model whose cache is moved until what it says fits the input."""

    models: SteeredModels
    spec = Spec(
        id="classifier",
        title="Classifier-guided",
        idea="Nudge a language model's memory until what it wants to say can be heard, or seen, in the input.",
        paper="https://arxiv.org/abs/2501.03183",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="C ← C − η ∇(λ0·CE + λ1·(−log h) + λ2·relevance)",
        branches=("moved", "untouched"),
        unguided={"classifier_weight": 0.0},  # relevance is kept: what the classifier does is what is compared
        card_scores=("audibility", "visibility"),
        explanation=EXPLANATION,
    )

    @classmethod
    def passes(cls, settings: Settings) -> int:
        """Gradient steps before every token, and the token."""
        return int(settings["max_tokens"] * (1 + settings["num_steps"]))

    def __init__(self, models: SteeredModels) -> None:
        super().__init__(models)
        # modality → every token as a single word in the ranker's space (vocab, d), NaN until it is needed
        self.word_vectors: dict[Modality, Tensor] = {}

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        record, tokenizer = current_run(), self.models.tokenizer
        trace = TraceColumns(tokenizer)
        # the candidates of every input, one behind the other; the first one of each is what is watched
        captions = [
            c for item, (m, s) in enumerate(zip(media, settings, strict=True)) for c in self._candidates(item, m, s)
        ]
        first = [next(i for i, c in enumerate(captions) if c.item == item) for item in range(len(media))]
        # the inputs in the ranker's space
        with record.stage("encode"):
            questions = [asked_modality(s, m.kind) for m, s in zip(media, settings, strict=True)]
            scorer = TextScorer(self.models, media, questions, self.word_vectors, record)
        # the language model reads what stands before every caption
        with record.stage("decode"):
            starts = [[*self._start(c.settings, media[c.item]), *c.prompt] for c in captions]
            context = ContextCache(self.models.language_model(), starts, tokenizer.pad, self.models.device)
        for position in range(max(c.settings["max_tokens"] for c in captions)):
            with record.stage("decode"):
                # the next token under the untouched cache, and under the one that was moved by gradient descent
                record.call("language model")
                untouched = self._allowed(captions, context.scores(), position)
                moved = self._move(captions, scorer, context, untouched, record)
                # their geometric mean, and a token from it: the best one, a drawn one, or the one that is forced
                guided = guidance.normalise(guidance.mix((FUSION, moved), (1 - FUSION, untouched)))
                tokens = choose_tokens(guided.clone(), [c.temperature for c in captions], [c.source for c in captions])
                for i, caption in enumerate(captions):
                    tokens[i] = tokenizer.pad if caption.done else caption.forced.get(position, int(tokens[i]))
                # the captions grow by it; a traced one also asks the classifier how it sounds now
                trace.add(tokens, {"cond": moved, "uncond": untouched, "guided": guided})
                self._extend(captions, tokens.tolist(), trace.columns[-1]["guided"].tolist(), scorer)
            if all(c.done for c in captions):
                break
            # the chosen token enters the untouched cache: what was moved is forgotten
            context.append(tokens)
            yield [self._step(captions, row, trace) for row in first] if live else []
        # candidates are ranked and results made
        yield [self._finish(item, media[item], settings[item], captions, trace) for item in range(len(media))]

    @torch.no_grad()
    def score_without(self, media: Media, result: Result, hidden: Tensor) -> Tensor | None:
        """By the relevance that the cache is moved to: what each token adds to the match of the caption with the
        cells that are seen.
        """
        ranker, tokenizer = self.models.ranker(media.kind), self.models.tokenizer
        ids = trace_ids(tokenizer, result.trace)
        if ids is None or not isinstance(ranker, PartialMatcher):
            return None
        vectors = ranker.embed_without(media, hidden)
        if vectors is None:
            return None
        prompt = tokenizer.encode(prompt_for(result.settings.get("prompt", ""), media.kind))
        texts = [ranker.prompt + tokenizer.decode([*prompt, *ids[:n]]) for n in range(len(ids) + 1)]
        similar = vectors @ ranker.embed_text(texts).T  # (m, tokens + 1)
        return similar.diff(dim=1) / relevance_temperature(ranker)

    # ------------------------------------------------------------------------------------------------- one caption

    def _candidates(self, item: int, media: Media, settings: Settings) -> list[SteeredCaption]:
        start = self._start(settings, media)
        room = self.models.language_model().config.context - len(start) - settings["max_tokens"]
        prompt = self.models.tokenizer.encode(prompt_for(settings["prompt"], media.kind))[: max(room, 0)]
        forced = forced_ids(self.models.tokenizer, settings, settings["max_tokens"])
        return [
            SteeredCaption(
                item=item,
                settings=settings,
                temperature=SAMPLING_TEMPERATURE if candidate else 0.0,
                prompt=prompt,
                forced=forced,
                source=generator(settings["seed"], media, candidate),
            )
            for candidate in range(settings["num_candidates"])
        ]

    def _start(self, settings: Settings, media: Media) -> list[int]:
        """What the language model reads before the prompt."""
        return self.models.text_start(media.kind if settings["start"] == "modality" else None)

    def _allowed(self, captions: list[SteeredCaption], scores: Tensor, position: int) -> Tensor:
        """log p (rows, vocab) with −inf on what may not be said: special tokens, an end before the first word, a run
        said before, punctuation behind punctuation.
        """
        tokenizer = self.models.tokenizer
        scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos or position == 0]] = -math.inf
        for i, caption in enumerate(captions):
            if caption.moves and (size := caption.settings["no_repeat"]):
                scores[i, repeated_tokens(caption.ids, size)] = -math.inf
                if caption.ids and caption.ids[-1] in self.punctuation:
                    scores[i, list(self.punctuation)] = -math.inf
        return guidance.normalise(scores)

    @cached_property
    def punctuation(self) -> frozenset[int]:
        """Tokens of punctuation alone: a ranker has never read runs of it, and some of them please it."""
        tokenizer, marks = self.models.tokenizer, {*string.punctuation, " "}
        pieces = {t: tokenizer.piece(t) for t in range(len(tokenizer)) if t not in tokenizer.special_ids}
        return frozenset(token for token, piece in pieces.items() if piece and {*piece} <= marks)

    def _move(
        self,
        captions: list[SteeredCaption],
        scorer: TextScorer,
        context: ContextCache,
        untouched: Tensor,
        record: RunRecord,
    ) -> Tensor:
        """log p (rows, vocab) after the cache was moved; the same as untouched for rows that are not moved."""
        moved = untouched.clone()
        confident = (untouched.max(-1).values.exp() > CONFIDENT).tolist()
        for caption in captions:
            caption.steps += [] if caption.done else [[]]
        for fast in (True, False):
            active = [i for i, c in enumerate(captions) if c.moves and c.fast == fast and not (fast and confident[i])]
            if active:
                index = torch.tensor(active, device=untouched.device)
                loss = GuidanceLoss([captions[i] for i in active], scorer, untouched[index])
                moved[index] = self._optimise(loss, context, index, fast, record)
        return moved

    def _optimise(
        self, goal: GuidanceLoss, context: ContextCache, index: Tensor, fast: bool, record: RunRecord
    ) -> Tensor:
        """log p (rows, vocab) where the loss was lowest along the gradient steps, for the rows at `index` in the
        context.
        """
        captions, untouched = goal.captions, goal.untouched
        names = ("guidance_scale", "num_steps")
        scale, budget = torch.tensor([[c.settings[n] for n in names] for c in captions], device=untouched.device).T
        cache = context.moving(index, STEP_SIZE * (scale - 1))
        best, lowest = untouched.clone(), torch.full_like(scale, math.inf)
        before, going = lowest.clone(), torch.ones_like(scale, dtype=torch.bool)
        for step in range(int(budget.max()) + 1):
            # the distribution under the cache as it is moved now, and its losses
            with torch.enable_grad():
                record.call("gradient step")
                logp = guidance.normalise(cache.scores().masked_fill(torch.isneginf(untouched), -math.inf))
                if step == 0 or not fast:  # the fast route keeps the candidates of the first step
                    goal.score_candidates(logp.detach())
                losses = goal.losses(logp)
            # the best distribution so far is kept, and the losses for the trace
            loss = losses["loss"].detach()
            lower = going & (loss < lowest)
            best[lower], lowest[lower] = logp.detach()[lower], loss[lower]
            for k, caption in enumerate(captions):
                if going[k] and step:
                    caption.steps[-1].append({name: value[k].item() for name, value in losses.items()})
            # rows stop at their number of steps, and on the fast route where the loss hardly falls any more
            going &= step < budget
            if fast:
                fell = before - loss
                going &= ~((fell >= 0) & (fell <= CONVERGED * loss.abs()))
            if not going.any():
                break
            cache.step(losses["loss"], going)
            before = torch.minimum(before, loss)
        return best

    def _extend(
        self, captions: list[SteeredCaption], tokens: list[int], logprobs: list[float], scorer: TextScorer
    ) -> None:
        grown = [c for c in captions if not c.done and c.settings.traced]
        for caption, token, logprob in zip(captions, tokens, logprobs, strict=True):
            if not caption.done:
                caption.logprob += logprob
                caption.ids.append(token)
                caption.done = token == self.models.tokenizer.eos or len(caption.ids) == caption.settings["max_tokens"]
        if grown:
            yes = scorer.classify([c.item for c in grown], [self._text(c) for c in grown])
            for caption, probability in zip(grown, yes.clamp(min=1e-9).log().tolist(), strict=True):
                caption.classifier.append(probability)

    def _text(self, caption: SteeredCaption) -> str:
        return self.models.tokenizer.decode(caption.prompt + caption.ids)

    # ---------------------------------------------------------------------------------------------- steps, results

    def _trace(self, captions: list[SteeredCaption], index: int, trace: TraceColumns) -> list[TokenTrace]:
        caption = captions[index]
        entries = trace.row([index] * len(caption.ids))
        along = zip(entries, caption.classifier, caption.steps, strict=True)
        return [replace(entry, classifier=classifier, steps=steps) for entry, classifier, steps in along]

    def _step(self, captions: list[SteeredCaption], index: int, trace: TraceColumns) -> Step:
        caption, entries = captions[index], self._trace(captions, index, trace)
        others = [self._text(c) for c in captions if c.item == caption.item and c is not caption]
        return Step(len(entries), caption.settings["max_tokens"], step_tokens(entries), entries, others)

    def _finish(
        self, item: int, media: Media, settings: Settings, captions: list[SteeredCaption], trace: TraceColumns
    ) -> Step:
        own = [i for i, c in enumerate(captions) if c.item == item]
        return self.finish(
            media,
            settings,
            [self._text(captions[i]) for i in own],
            logprobs=[captions[i].logprob for i in own],
            trace_of=lambda best: self._trace(captions, own[best], trace),
            scores_of=lambda best: self._visibility(media, self._text(captions[own[best]])),
        )

    def _visibility(self, media: Media, caption: str) -> dict[str, Score]:
        """What the guide itself says of a picture's caption; of a sound's there is a judge to ask."""
        if media.kind != "image":
            return {}
        guide = self.models.classifier("image")
        return {"visibility": Score(float(guide.probability([caption])[0]), f"{guide.name}, which is the guide itself")}
