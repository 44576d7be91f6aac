"""Method 2: classifier-guided captioning by context-cache optimisation (arXiv 2501.03183, after ZeroCap 2111.14447).

A frozen language model writes; before each token its keys and values C are moved by gradient descent on
λ0 · CE(moved, untouched) + λ1 · (−log h_a) + λ2 · CE(moved, relevance), where h_a is a classifier's word on whether what is said can
be heard (or seen) and the relevance target is softmax(similarity / 0.01) of a matcher over the likeliest next tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from captioners import guidance
from captioners.controls import GUIDANCE_SCALE, MAX_TOKENS, NUM_CANDIDATES, SEED, choice, number, text
from captioners.decoding import Clock, TraceColumns, choose, finished, forced_ids, generator, step_tokens
from captioners.nets.transformer import KeysValues
from captioners.registry import Captioner, register
from captioners.types import Media, Settings, Spec, Step, TokenTrace

STEP = 0.3  # ZeroCap's step size, at guidance scale 2
NORM_POWER = 0.9  # the gradient is divided by its norm to this power
FUSION = 0.99  # share of the moved distribution in the geometric mean with the untouched one
TARGET_TEMPERATURE = 0.01
FAST_TOKENS = 32  # the fast route looks at this many next tokens, once
EASY = 0.95  # the fast route does not move a token that the language model is this sure of
SETTLED = 0.01  # the fast route stops when a step changes the loss by less than this share
DRAWN_AT = 0.7  # temperature of the further candidates

CONTROLS = (
    GUIDANCE_SCALE.but(low=1, help="How far the context is moved at each gradient step, 0.3·(γ − 1); 1 is off."),
    NUM_CANDIDATES,
    number("classifier_weight", "Classifier weight λ1", "How much being audible (or visible) counts; 0 is off.", 0.6, 0, 2, 0.1),
    number("fluency_weight", "Fluency weight λ0", "How much staying near the language model counts.", 0.2, 0, 2, 0.1),
    number("relevance_weight", "Relevance weight λ2", "How much matching the input counts; 0 is off.", 1.0, 0, 4, 0.1),
    number("num_steps", "Gradient steps", "How often the context is moved before each token.", 3, 1, 20, 1),
    number("top_k", "Tokens considered", "How many likely next tokens are scored; the fast route takes 32 at the most.", 512, 8, 1024, 8),
    choice("route", "Route", "Fast scores next tokens once; faithful at every step, as the paper does.", ("fast", "faithful")),
    text("prompt", "Prompt", "What every caption begins with; empty leaves the beginning to the model."),
    MAX_TOKENS.but(default=20),
    SEED,
)


@dataclass
class Row:
    """One candidate of one input."""

    item: int
    settings: Settings
    temperature: float
    prompt: list[int]
    forced: dict[int, int]
    source: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprob: float = 0.0
    done: bool = False
    steps: list[list[dict[str, float]]] = field(default_factory=list)  # of each position: the losses along the gradient steps
    classifier: list[float] = field(default_factory=list)  # of each position: log h_a of the caption so far

    @property
    def moves(self) -> bool:
        """Whether anything pulls at this row."""
        s = self.settings
        return not self.done and s["guidance_scale"] > 1 and (s["classifier_weight"] > 0 or s["relevance_weight"] > 0)


@register
class ClassifierGuided(Captioner):
    """The adapter."""

    spec = Spec(
        id="classifier",
        title="Classifier-guided context cache",
        idea="Nudge a language model's memory until what it wants to say can be heard, or seen, in the input.",
        paper="https://arxiv.org/abs/2501.03183",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="C ← C − η ∇(λ0·CE + λ1·(−log h) + λ2·relevance)",
    )

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        clock, trace, tokenizer = Clock(), TraceColumns(self.players.tokenizer), self.players.tokenizer
        rows = [row for item, (m, s) in enumerate(zip(media, settings, strict=True)) for row in self._rows(item, m, s)]
        first = [next(i for i, r in enumerate(rows) if r.item == item) for item in range(len(media))]
        with clock.stage("encode"):
            scorers = [Scorer(self.players, m, clock) for m in media]
        with clock.stage("decode"):
            context = Context(self.players, rows, clock)
        banned = [t for t in tokenizer.special_ids if t != tokenizer.eos]
        for position in range(max(r.settings["max_tokens"] for r in rows)):
            with clock.stage("decode"):
                untouched = context.untouched()
                untouched[:, banned + [tokenizer.eos] * (position == 0)] = -math.inf
                untouched = guidance.normalise(untouched)
                moved = self._move(rows, scorers, context, untouched, clock)
                guided = guidance.normalise(guidance.mix((FUSION, moved), (1 - FUSION, untouched)))
                tokens = choose(guided.clone(), [r.temperature for r in rows], [r.source for r in rows])
                for i, row in enumerate(rows):
                    tokens[i] = tokenizer.pad if row.done else row.forced.get(position, tokens[i])
                trace.add(tokens, {"cond": moved, "uncond": untouched, "guided": guided})
                self._extend(rows, tokens.tolist(), trace.columns[-1]["guided"].tolist(), scorers)
            if all(r.done for r in rows):
                break
            context.append(tokens)
            if live:
                yield [self._step(rows, row, trace) for row in first]
        yield [self._finish(item, media[item], settings[item], rows, trace, clock, len(media)) for item in range(len(media))]

    # ------------------------------------------------------------------------------------------------- one caption

    def _rows(self, item: int, media: Media, settings: Settings) -> list[Row]:
        prompt = self.players.tokenizer.encode(settings["prompt"])
        forced = forced_ids(self.players.tokenizer, settings, settings["max_tokens"])
        return [
            Row(item, settings, DRAWN_AT if candidate else 0.0, prompt, forced, generator(settings["seed"], media, candidate))
            for candidate in range(settings["num_candidates"])
        ]

    def _move(self, rows: list[Row], scorers: list[Scorer], context: Context, untouched: Tensor, clock: Clock) -> Tensor:
        """log p (rows, vocab) after the cache was moved; the same as untouched for rows that nothing pulls at."""
        for row in rows:
            row.steps.append([])
        sure = untouched.max(-1).values.exp() > EASY
        active = [i for i, r in enumerate(rows) if r.moves and not (r.settings["route"] == "fast" and sure[i])]
        moved = untouched.clone()
        if not active:
            return moved
        index = torch.tensor(active, device=untouched.device)
        goal = Goal([rows[i] for i in active], [scorers[rows[i].item] for i in active], self.players.tokenizer)
        most = max(rows[i].settings["num_steps"] for i in active)
        cache = MovingCache(context, index, torch.tensor([STEP * (rows[i].settings["guidance_scale"] - 1) for i in active]))
        goal.look(untouched[index])
        settled = torch.zeros(len(active), dtype=torch.bool, device=untouched.device)
        last = torch.full((len(active),), math.inf, device=untouched.device)
        for step in range(most):
            with torch.enable_grad():
                logp = guidance.normalise(cache.scores().masked_fill(torch.isneginf(untouched[index]), -math.inf))
                if step:
                    goal.look_again(logp.detach())
                losses = goal.losses(logp, untouched[index])
                losses["loss"].sum().backward()
            loss = losses["loss"].detach()
            fast = torch.tensor([rows[i].settings["route"] == "fast" for i in active], device=loss.device)
            settled |= fast & last.isfinite() & ((last - loss).abs() <= SETTLED * last.abs())
            over = torch.tensor([step >= rows[i].settings["num_steps"] for i in active], device=loss.device)
            cache.step(~(settled | over))
            for k, i in enumerate(active):
                if not over[k]:
                    rows[i].steps[-1].append({name: value[k].item() for name, value in losses.items()})
            last = loss
            clock.call("gradient step")
            if bool((settled | over).all()):
                break
        moved[index] = guidance.normalise(cache.scores().detach().masked_fill(torch.isneginf(untouched[index]), -math.inf))
        return moved

    def _extend(self, rows: list[Row], tokens: list[int], logprobs: list[float], scorers: list[Scorer]) -> None:
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if row.done:
                continue
            row.logprob += logprob
            row.ids.append(token)
            row.done = token == self.players.tokenizer.eos or len(row.ids) == row.settings["max_tokens"]
            row.classifier.append(scorers[row.item].classify([self._text(row)]).log().item())

    def _text(self, row: Row) -> str:
        return self.players.tokenizer.decode(row.prompt + row.ids)

    # ---------------------------------------------------------------------------------------------- steps, results

    def _trace(self, rows: list[Row], index: int, trace: TraceColumns) -> list[TokenTrace]:
        row = rows[index]
        entries = trace.row(index, len(row.ids))
        return [replace(e, classifier=c, steps=s) for e, c, s in zip(entries, row.classifier, row.steps, strict=False)]

    def _step(self, rows: list[Row], index: int, trace: TraceColumns) -> Step:
        entries = self._trace(rows, index, trace)
        others = [self._text(r) for r in rows if r.item == rows[index].item and r is not rows[index]]
        return Step(len(entries), rows[index].settings["max_tokens"], step_tokens(entries), entries, others)

    def _finish(self, item: int, media: Media, settings: Settings, rows: list[Row], trace: TraceColumns, clock: Clock, share: int) -> Step:
        mine = [i for i, r in enumerate(rows) if r.item == item]
        texts, logprobs = [self._text(rows[i]) for i in mine], [rows[i].logprob for i in mine]
        return finished(
            self.spec, self.players, media, settings, texts, logprobs, lambda k: self._trace(rows, mine[k], trace), clock, share
        )


class Scorer:
    """What the matcher and the classifier say of texts, for one input."""

    def __init__(self, players, media: Media, clock: Clock):
        self.ranker, self.classifier, self.clock = players.ranker(media.kind), players.classifier(media.kind), clock
        self.media = self.ranker.embed_media([media])[0]

    def match(self, texts: list[str]) -> Tensor:
        """Similarity of each text to the input."""
        self.clock.call("ranker")
        return self.ranker.embed_text([self.ranker.prompt + t for t in texts]) @ self.media

    def classify(self, texts: list[str]) -> Tensor:
        """The probability of "yes" for each text."""
        self.clock.call("classifier")
        return self.classifier.probability(texts)


class Goal:
    """The three losses over the next-token distribution of some rows."""

    def __init__(self, rows: list[Row], scorers: list[Scorer], tokenizer):
        self.rows, self.scorers, self.tokenizer = rows, scorers, tokenizer
        self.tokens: list[Tensor] = [torch.empty(0)] * len(rows)
        self.heard: list[Tensor] = [torch.empty(0)] * len(rows)
        self.target: list[Tensor] = [torch.empty(0)] * len(rows)

    def look(self, logp: Tensor) -> None:
        """Score the likeliest next tokens of every row."""
        for i, row in enumerate(self.rows):
            self._look(i, row, logp[i])

    def look_again(self, logp: Tensor) -> None:
        """The faithful route scores anew at every step."""
        for i, row in enumerate(self.rows):
            if row.settings["route"] == "faithful":
                self._look(i, row, logp[i])

    def _look(self, i: int, row: Row, logp: Tensor) -> None:
        most = row.settings["top_k"] if row.settings["route"] == "faithful" else min(FAST_TOKENS, row.settings["top_k"])
        self.tokens[i] = logp.topk(min(most, int(torch.isfinite(logp).sum()))).indices
        texts = [self.tokenizer.decode([*row.prompt, *row.ids, token]) for token in self.tokens[i].tolist()]
        self.heard[i] = (
            self.scorers[i].classify(texts) if row.settings["classifier_weight"] > 0 else torch.ones(len(texts), device=logp.device)
        )
        matched = self.scorers[i].match(texts) if row.settings["relevance_weight"] > 0 else torch.zeros(len(texts), device=logp.device)
        self.target[i] = (matched / TARGET_TEMPERATURE).softmax(-1)

    def losses(self, moved: Tensor, untouched: Tensor) -> dict[str, Tensor]:
        """Each (rows,): λ0 · CE(moved, untouched), λ1 · (−log h_a) and λ2 · CE(moved, relevance), and their sum."""
        fluency = -(untouched.exp() * moved.masked_fill(torch.isneginf(untouched), 0.0)).sum(-1)
        classifier, relevance = [], []
        for i, tokens in enumerate(self.tokens):
            among = moved[i, tokens].log_softmax(-1)  # the distribution over the tokens that were scored
            classifier.append(-torch.logsumexp(among + self.heard[i].clamp(min=1e-6).log(), -1))
            relevance.append(-(self.target[i] * among).sum())
        weights = torch.tensor(
            [[r.settings[n] for n in ("fluency_weight", "classifier_weight", "relevance_weight")] for r in self.rows], device=moved.device
        )
        parts = torch.stack([fluency, torch.stack(classifier), torch.stack(relevance)], 1) * weights
        named = dict(zip(("fluency", "classifier", "relevance"), parts.detach().T, strict=True))
        return {"loss": parts.sum(1), **named}


class Context:
    """The language model's untouched cache. It holds everything but the last token, and one token before the first."""

    def __init__(self, players, rows: list[Row], clock: Clock):
        t = players.tokenizer
        self.lm, self.clock = players.language_model(), clock
        # the end of an unseen caption stands first, so that there is something to move before the first token
        starts = [[t.eos, t.bos, *row.prompt] for row in rows]
        longest = max(map(len, starts))
        ids = torch.tensor([[t.pad] * (longest - len(s)) + s for s in starts], device=players.device)
        self.mask = torch.tensor([[False] * (longest - len(s)) + [True] * len(s) for s in starts], device=players.device)
        _, self.past = self.lm(ids[:, :-1], None, self.mask[:, :-1])
        self.last = ids[:, -1:]
        self.grown: list[KeysValues] = []

    def untouched(self) -> Tensor:
        """Scores of the next token (rows, vocab)."""
        logits, self.grown = self.lm(self.last, self.past, self.mask)
        self.clock.call("language model")
        return logits[:, -1]

    def append(self, tokens: Tensor) -> None:
        """The last token enters the cache, the chosen one (rows,) becomes the last."""
        self.past, self.last = self.grown, tokens[:, None]
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)


class MovingCache:
    """A copy of some rows' keys and values with a difference that follows the gradient."""

    def __init__(self, context: Context, index: Tensor, sizes: Tensor):
        self.lm, self.last, self.mask = context.lm, context.last[index], context.mask[index]
        self.kept = [(k[index], v[index]) for k, v in context.past]
        self.delta = [(torch.zeros_like(k).requires_grad_(), torch.zeros_like(v).requires_grad_()) for k, v in self.kept]
        self.sizes = sizes.to(self.last.device)

    def scores(self) -> Tensor:
        """Scores of the next token (rows, vocab) under the moved cache."""
        past = [(k + dk, v + dv) for (k, v), (dk, dv) in zip(self.kept, self.delta, strict=True)]
        return self.lm(self.last, past, self.mask)[0][:, -1]

    def step(self, rows: Tensor) -> None:
        """One step of every layer's keys and values against the gradient, for the rows (b,) that still move."""
        size = (self.sizes * rows)[:, None, None, None]
        for delta in (d for pair in self.delta for d in pair):
            norm = delta.grad.flatten(1).norm(dim=1)[:, None, None, None]
            move = delta.grad / (norm**NORM_POWER + 1e-12)
            delta.data -= size * move.nan_to_num(0.0, 0.0, 0.0)
            delta.grad = None
