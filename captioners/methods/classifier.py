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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captioners import guidance
from captioners.captioner import Captioner
from captioners.contract import PartialMatcher, SteeredModels
from captioners.controls import GUIDANCE_SCALE, MAX_TOKENS, NUM_CANDIDATES, SEED, choice, number, text
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
from captioners.methods.text_scorer import TextScorer, relevance_temperature
from captioners.nets.context_cache import ContextCache
from captioners.registry import register
from captioners.run_record import RunRecord, current_run
from captioners.types import Explanation, Media, Modality, Result, Score, Settings, Spec, Step, TokenTrace

STEP_SIZE = 0.3  # ZeroCap's, at guidance scale 2
FUSION = 0.99  # share of the moved distribution in the geometric mean with the untouched one
# the fast route reads so many of the likeliest tokens, so many more that match the input as single words, and none that
# is
# this much less likely than the likeliest one
LIKELIEST, BEST_MATCHING, LEAST_LOGP = 24, 40, math.log(1e-4)
CONFIDENT = 0.95  # the fast route does not move a token that the language model is this sure of
CONVERGED = 0.01  # the fast route stops when a step changes the loss by less than this share
GUIDES: dict[str, Modality] = {"audibility": "audio", "visibility": "image"}  # guide → the modality that it is made for

CONTROLS = (
    GUIDANCE_SCALE.but(low=1, help="How far the context is moved at each gradient step, 0.3·(γ − 1); 1 is off."),
    NUM_CANDIDATES.but(
        help=(
            "How many captions are finished "
            "and ranked; beside "
            "a greedy one they are "
            "drawn at temperature "
            f"{SAMPLING_TEMPERATURE}."
        )
    ),
    number(
        "classifier_weight",
        "Classifier weight λ1",
        "How much being audible (or visible) counts; 0 is off.",
        0.6,
        0,
        2,
        0.1,
    ),
    choice(
        "guide",
        "Guide",
        "Which classifier guides: auto asks whether a sound can be heard and a picture be seen; none is λ1 = 0.",
        ("auto", *GUIDES, "none"),
    ),
    number("fluency_weight", "Fluency weight λ0", "How much staying near the language model counts.", 0.2, 0, 2, 0.1),
    choice(
        "fluency",
        "Fluency term",
        "ce is the cross-entropy of the moved distribution under the untouched one; kl, as in ZeroCap, the divergence "
        "of the moved one "
        "from the untouched one.",
        ("ce", "kl"),
    ),
    number(
        "relevance_weight",
        "Relevance weight λ2",
        "How much matching the input counts; 0 is off, 1 is ZeroCap's.",
        0.4,
        0,
        4,
        0.1,
    ),
    choice(
        "target",
        "Relevance target",
        "bayes weighs each token's similarity to the input with p(token); zerocap takes the softmax of the "
        "similarities alone.",
        ("bayes", "zerocap"),
    ),
    number("num_steps", "Gradient steps", "How often the context is moved before each token.", 10, 1, 20, 1),
    number(
        "top_k",
        "Tokens considered",
        "How many of the likeliest next tokens are considered; the paper has 512.",
        512,
        8,
        1024,
        8,
    ),
    choice(
        "route",
        "Route",
        "Fast reads the promising ones of the tokens considered, once; faithful reads all of them at every step, as "
        "the paper does.",
        ("fast", "faithful"),
    ),
    number(
        "no_repeat",
        "No repeat",
        "Forbids a guided caption to say a run of this many tokens twice; 0, as in the papers, is off.",
        2,
        0,
        4,
        1,
    ),
    text(
        "prompt",
        "Prompt",
        "What every caption begins with; with a | in it, what stands before is for pictures and what stands behind for "
        "sounds.",
    ),
    MAX_TOKENS.but(default=20),
    SEED,
)


EXPLANATION = Explanation(
    "A language model that has never seen or heard anything writes the caption. Before each word its memory of the "
    "words so far is "
    "moved by a few steps of gradient descent. One term of the loss asks a classifier whether what is said can be "
    "heard, or seen; "
    "one asks a matcher whether it fits the input; one keeps the words likely. The word is then taken from the moved "
    "model. No part "
    "but the matcher was trained on inputs with their captions. The unguided caption is made in the same way without "
    "the classifier "
    "(λ1 = 0), so that the difference is the classifier's; at γ = 1 nothing is moved and the language model speaks "
    "alone.",
    "It knows the input only by the matcher's word on half-finished sentences: an early wrong word is never taken "
    "back, and the "
    "sentence is talked round to it. It is the slowest of the four.",
    """@article{shaulov2025classifier,
  title   = {Classifier-Guided Captioning Across Modalities},
  author  = {Shaulov, Ariel and Shaharabany, Tal and Shaar, Eitan and Chechik, Gal and Wolf, Lior},
  journal = {arXiv:2501.03183},
  year    = {2025}
}""",
)


@dataclass
class SteeredCaption:
    """One candidate caption of one input, written by the language model while its cache is moved."""

    item: int  # which input it is of
    settings: Settings
    temperature: float
    prompt: list[int]
    forced: dict[int, int]
    source: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprob: float = 0.0
    done: bool = False
    steps: list[list[dict[str, float]]] = field(
        default_factory=list
    )  # of each position: the losses along the gradient steps
    classifier: list[float] = field(default_factory=list)  # of each position: log h_a of the caption so far

    @property
    def fast(self) -> bool:
        """Whether the fast route was chosen."""
        return bool(self.settings["route"] == "fast")

    @property
    def moves(self) -> bool:
        """Whether its cache is to be moved at all."""
        s = self.settings
        return bool(
            not self.done and s["guidance_scale"] > 1 and (classifier_weight(s) > 0 or s["relevance_weight"] > 0)
        )


def classifier_weight(settings: Settings) -> float:
    """λ1, which is 0 where no classifier guides."""
    return 0.0 if settings["guide"] == "none" else float(settings["classifier_weight"])


def asked_modality(settings: Settings, kind: Modality) -> Modality:
    """The modality whose question is asked of captions of a `kind`: its own, unless another guide was chosen."""
    return GUIDES.get(settings["guide"], kind)


def prompt_for(prompt: str, kind: Modality) -> str:
    """The part of a prompt that captions of this modality begin with."""
    pictures, bar, sounds = prompt.partition("|")
    return (sounds if bar and kind == "audio" else pictures).strip()


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
            start = self.models.neutral_start()
            starts = [[*start, *c.prompt] for c in captions]
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
                trace.add(tokens, {"cond": moved, "uncond": untouched, "guided": guided})
                self._extend(captions, tokens.tolist(), trace.columns[-1]["guided"].tolist(), scorer)
            if all(c.done for c in captions):
                break
            # the chosen token enters the untouched cache: what was moved is forgotten
            context.append(tokens)
            yield [self._step(captions, row, trace) for row in first] if live else []
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
        room = self.models.language_model().config.context - len(self.models.neutral_start()) - settings["max_tokens"]
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

    def _allowed(self, captions: list[SteeredCaption], scores: Tensor, position: int) -> Tensor:
        """log p (rows, vocab) with −inf on what may not be said: special tokens, an end before the first word, a run
        said before.
        """
        tokenizer = self.models.tokenizer
        scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos or position == 0]] = -math.inf
        for i, caption in enumerate(captions):
            if caption.moves:
                scores[i, repeated_tokens(caption.ids, caption.settings["no_repeat"])] = -math.inf
        return guidance.normalise(scores)

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


class GuidanceLoss:
    """The three losses over the next-token distribution of some captions, from what the scorer says of candidates
    for it.
    """

    def __init__(self, captions: list[SteeredCaption], scorer: TextScorer, untouched: Tensor) -> None:
        self.captions, self.scorer, self.untouched = captions, scorer, untouched
        weights = [
            [c.settings["fluency_weight"], classifier_weight(c.settings), c.settings["relevance_weight"]]
            for c in captions
        ]
        self.weights = torch.tensor(weights, device=untouched.device)
        self.divergence = self._rows_with("fluency", "kl")
        self.weighed = self._rows_with("target", "bayes")
        temperatures = [scorer.temperature(c.item) for c in captions]
        self.temperatures = torch.tensor(temperatures, device=untouched.device)[:, None]
        # of the candidate tokens, each (rows, k), filled up with ones that are not present and count for nothing
        self.tokens = self.present = self.log_yes = self.target = untouched.new_empty(0)

    def _rows_with(self, name: str, value: str) -> Tensor:
        """(rows,): whether each caption's setting has this value."""
        return torch.tensor([c.settings[name] == value for c in self.captions], device=self.untouched.device)

    def score_candidates(self, logp: Tensor) -> None:
        """Read the candidates for each caption's next token by logp (rows, vocab)."""
        candidates = [self._candidates(caption, logp[i]) for i, caption in enumerate(self.captions)]
        sizes = [len(tokens) for tokens in candidates]
        owners = [caption.item for caption, size in zip(self.captions, sizes, strict=True) for _ in range(size)]
        texts = [
            self.scorer.tokenizer.decode([*caption.prompt, *caption.ids, token])
            for caption, tokens in zip(self.captions, candidates, strict=True)
            for token in tokens.tolist()
        ]
        self.tokens = pad_sequence(candidates, batch_first=True)
        self.present = pad_sequence([torch.ones_like(tokens) for tokens in candidates], batch_first=True) > 0
        yes = pad_sequence(list(self.scorer.classify(owners, texts).split(sizes)), batch_first=True)
        similar = pad_sequence(list(self.scorer.match(owners, texts).split(sizes)), batch_first=True)
        self.log_yes = yes.clamp(min=1e-6).log()
        prior = self.untouched.gather(1, self.tokens).masked_fill(~self.weighed[:, None], 0.0)
        self.target = (prior + similar / self.temperatures).masked_fill(~self.present, -math.inf).softmax(-1)

    def _candidates(self, caption: SteeredCaption, logp: Tensor) -> Tensor:
        """The tokens to be read for one caption (k,): the likeliest, and on the fast route the promising ones of
        them.
        """
        likely = logp.topk(min(caption.settings["top_k"], int(torch.isfinite(logp).sum()))).indices
        if not caption.fast:
            return likely
        likely = likely[logp[likely] > logp.max() + LEAST_LOGP]
        rest = likely[LIKELIEST:]
        matching = self.scorer.match_words(caption.item, rest).topk(min(BEST_MATCHING, len(rest))).indices
        return torch.cat([likely[:LIKELIEST], rest[matching]])

    def losses(self, moved: Tensor) -> dict[str, Tensor]:
        """Each (rows,): λ0 · CE(moved, untouched) or λ0 · KL, λ1 · (−log h_a), λ2 · CE(moved, relevance), their sum,
        and h_a itself.

        h_a is the classifier's probability as expected over the candidates under the moved distribution.
        """
        impossible = torch.isneginf(self.untouched)
        ours, theirs = moved.masked_fill(impossible, 0.0), self.untouched.masked_fill(impossible, 0.0)
        fluency = -(self.untouched.exp() * ours).sum(-1)
        if self.divergence.any():
            fluency = torch.where(self.divergence, (moved.exp() * (ours - theirs)).sum(-1), fluency)
        candidates = moved.gather(1, self.tokens).masked_fill(~self.present, -math.inf)
        classifier = -torch.logsumexp(candidates.log_softmax(-1) + self.log_yes, -1)
        relevance = -(self.target * candidates.masked_fill(~self.present, 0.0)).sum(-1)
        parts = torch.stack([fluency, classifier, relevance], 1) * self.weights
        named = dict(zip(("fluency", "classifier", "relevance"), parts.detach().T, strict=True))
        return {"loss": parts.sum(1), **named, "probability": (-classifier.detach()).exp()}
