"""Method 2: classifier-guided captioning by context-cache optimisation (arXiv 2501.03183, after ZeroCap 2111.14447).

A frozen language model writes; before each token its keys and values C are moved by gradient descent on
λ0 · CE(moved, untouched) + λ1 · (−log h_a) + λ2 · CE(moved, relevance), where h_a is a classifier's word on whether what is said can
be heard (or seen). The relevance target is what Bayes says of the next token: ∝ p(token) · exp(similarity / temperature), the similarity
being a matcher's, between the input and the caption with that token. ZeroCap's target has no p(token): a small matcher then stutters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captioners import guidance
from captioners.controls import GUIDANCE_SCALE, MAX_TOKENS, NUM_CANDIDATES, SEED, choice, number, text
from captioners.decoding import Clock, TraceColumns, choose, finished, forced_ids, generator, repeats, step_tokens
from captioners.nets.context_cache import ContextCache
from captioners.registry import Captioner, register
from captioners.types import Media, Settings, Spec, Step, TokenTrace

STEP = 0.3  # ZeroCap's step size, at guidance scale 2
FUSION = 0.99  # share of the moved distribution in the geometric mean with the untouched one
# ZeroCap's temperature suits CLIP, on whose scale random and human captions lie 0.16 apart; for another matcher it is as large a share
TEMPERATURE, SHARE = 0.01, 1 / 16
LIKELY, FITTING = 24, 40  # the fast route reads so many of the likeliest tokens, and so many that match the input as single words
PLAUSIBLE = math.log(1e-4)  # and none that is less likely than this, against the likeliest one
EASY = 0.95  # the fast route does not move a token that the language model is this sure of
SETTLED = 0.01  # the fast route stops when a step changes the loss by less than this share
NO_REPEAT = 2  # a guided caption says no pair of tokens twice
DRAWN_AT = 0.7  # temperature of the further candidates

CONTROLS = (
    GUIDANCE_SCALE.but(low=1, help="How far the context is moved at each gradient step, 0.3·(γ − 1); 1 is off."),
    NUM_CANDIDATES.but(help=f"How many captions are finished and ranked; beside a greedy one they are drawn at temperature {DRAWN_AT}."),
    number("classifier_weight", "Classifier weight λ1", "How much being audible (or visible) counts; 0 is off.", 0.6, 0, 2, 0.1),
    number("fluency_weight", "Fluency weight λ0", "How much staying near the language model counts.", 0.2, 0, 2, 0.1),
    number("relevance_weight", "Relevance weight λ2", "How much matching the input counts; 0 is off.", 0.4, 0, 4, 0.1),
    number("num_steps", "Gradient steps", "How often the context is moved before each token.", 10, 1, 20, 1),
    number("top_k", "Tokens considered", "How many of the likeliest next tokens are considered; the paper has 512.", 512, 8, 1024, 8),
    choice(
        "route",
        "Route",
        "Fast reads the promising ones of the tokens considered, once; faithful reads all of them at every step, as the paper does.",
        ("fast", "faithful"),
    ),
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
    def fast(self) -> bool:
        return self.settings["route"] == "fast"

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
        title="Classifier-guided",
        idea="Nudge a language model's memory until what it wants to say can be heard, or seen, in the input.",
        paper="https://arxiv.org/abs/2501.03183",
        modalities=("image", "audio"),
        controls=CONTROLS,
        formula="C ← C − η ∇(λ0·CE + λ1·(−log h) + λ2·relevance)",
        branches=("moved", "untouched"),
    )

    def __init__(self, players):
        super().__init__(players)
        self.words: dict[str, Tensor] = {}  # kind → every token as a single word in the ranker's space (vocab, d), NaN until it is needed

    @classmethod
    def passes(cls, settings: Settings) -> int:
        """Gradient steps before every token, and the token."""
        return settings["max_tokens"] * (1 + settings["num_steps"])

    @torch.no_grad()
    def decode(self, media: Sequence[Media], settings: Sequence[Settings], live: bool) -> Iterator[list[Step]]:
        clock, trace, tokenizer = Clock(), TraceColumns(self.players.tokenizer), self.players.tokenizer
        rows = [row for item, (m, s) in enumerate(zip(media, settings, strict=True)) for row in self._rows(item, m, s)]
        first = [next(i for i, r in enumerate(rows) if r.item == item) for item in range(len(media))]
        with clock.stage("encode"):
            reader = Reader(self.players, media, self.words, clock)
        with clock.stage("decode"):
            start = self.players.neutral_start()
            context = ContextCache(self.players.language_model(), [[*start, *r.prompt] for r in rows], tokenizer.pad, self.players.device)
        for position in range(max(r.settings["max_tokens"] for r in rows)):
            with clock.stage("decode"):
                clock.call("language model")
                untouched = self._allowed(rows, context.scores(), position)
                moved = self._move(rows, reader, context, untouched, clock)
                guided = guidance.normalise(guidance.mix((FUSION, moved), (1 - FUSION, untouched)))
                tokens = choose(guided.clone(), [r.temperature for r in rows], [r.source for r in rows])
                for i, row in enumerate(rows):
                    tokens[i] = tokenizer.pad if row.done else row.forced.get(position, tokens[i])
                trace.add(tokens, {"cond": moved, "uncond": untouched, "guided": guided})
                self._extend(rows, tokens.tolist(), trace.columns[-1]["guided"].tolist(), reader)
            if all(r.done for r in rows):
                break
            context.append(tokens)
            yield [self._step(rows, row, trace) for row in first] if live else []
        yield [self._finish(item, media[item], settings[item], rows, trace, clock, len(media)) for item in range(len(media))]

    # ------------------------------------------------------------------------------------------------- one caption

    def _rows(self, item: int, media: Media, settings: Settings) -> list[Row]:
        room = self.players.language_model().config.context - len(self.players.neutral_start()) - settings["max_tokens"]
        prompt = self.players.tokenizer.encode(settings["prompt"])[: max(room, 0)]
        forced = forced_ids(self.players.tokenizer, settings, settings["max_tokens"])
        return [
            Row(item, settings, DRAWN_AT if candidate else 0.0, prompt, forced, generator(settings["seed"], media, candidate))
            for candidate in range(settings["num_candidates"])
        ]

    def _allowed(self, rows: list[Row], scores: Tensor, position: int) -> Tensor:
        """log p (rows, vocab) with −inf on what may not be said: special tokens, an end before the first word, a pair said before."""
        tokenizer = self.players.tokenizer
        scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos or position == 0]] = -math.inf
        for i, row in enumerate(rows):
            if row.moves:
                scores[i, repeats(row.ids, NO_REPEAT)] = -math.inf
        return guidance.normalise(scores)

    def _move(self, rows: list[Row], reader: Reader, context: ContextCache, untouched: Tensor, clock: Clock) -> Tensor:
        """log p (rows, vocab) after the cache was moved; the same as untouched for rows that nothing pulls at."""
        moved = untouched.clone()
        sure = (untouched.max(-1).values.exp() > EASY).tolist()
        for row in rows:
            row.steps += [] if row.done else [[]]
        for fast in (True, False):
            active = [i for i, row in enumerate(rows) if row.moves and row.fast == fast and not (fast and sure[i])]
            if active:
                index = torch.tensor(active, device=untouched.device)
                moved[index] = self._optimise([rows[i] for i in active], reader, context, index, untouched[index], fast, clock)
        return moved

    def _optimise(
        self, rows: list[Row], reader: Reader, context: ContextCache, index: Tensor, untouched: Tensor, fast: bool, clock: Clock
    ) -> Tensor:
        """log p (rows, vocab) where the loss was lowest along the gradient steps, for the rows at `index` in the context."""
        scale, budget = torch.tensor([[r.settings[n] for n in ("guidance_scale", "num_steps")] for r in rows], device=untouched.device).T
        cache, goal = context.moving(index, STEP * (scale - 1)), Goal(rows, reader, untouched)
        best, lowest = untouched.clone(), torch.full_like(scale, math.inf)
        before, going = lowest.clone(), torch.ones_like(scale, dtype=torch.bool)
        for step in range(int(budget.max()) + 1):
            with torch.enable_grad():
                clock.call("gradient step")
                logp = guidance.normalise(cache.scores().masked_fill(torch.isneginf(untouched), -math.inf))
                if step == 0 or not fast:
                    goal.look(logp.detach())
                losses = goal.losses(logp)
            loss = losses["loss"].detach()
            lower = going & (loss < lowest)
            best[lower], lowest[lower] = logp.detach()[lower], loss[lower]
            for k, row in enumerate(rows):
                if going[k] and step:
                    row.steps[-1].append({name: value[k].item() for name, value in losses.items()})
            going &= step < budget
            if fast:
                fell = before - loss
                going &= ~((fell >= 0) & (fell <= SETTLED * loss.abs()))
            if not going.any():
                break
            cache.step(losses["loss"], going)
            before = torch.minimum(before, loss)
        return best

    def _extend(self, rows: list[Row], tokens: list[int], logprobs: list[float], reader: Reader) -> None:
        grown = [row for row in rows if not row.done and row.settings.traced]
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if not row.done:
                row.logprob += logprob
                row.ids.append(token)
                row.done = token == self.players.tokenizer.eos or len(row.ids) == row.settings["max_tokens"]
        if grown:
            said = reader.classify([r.item for r in grown], [self._text(r) for r in grown])
            for row, probability in zip(grown, said.clamp(min=1e-9).log().tolist(), strict=True):
                row.classifier.append(probability)

    def _text(self, row: Row) -> str:
        return self.players.tokenizer.decode(row.prompt + row.ids)

    # ---------------------------------------------------------------------------------------------- steps, results

    def _trace(self, rows: list[Row], index: int, trace: TraceColumns) -> list[TokenTrace]:
        row = rows[index]
        entries = trace.row(index, len(row.ids))
        return [replace(e, classifier=c, steps=s) for e, c, s in zip(entries, row.classifier, row.steps, strict=True)]

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


class Reader:
    """What the matchers and the classifiers say of texts about some inputs; equal texts are read once, all of a kind in one batch."""

    def __init__(self, players, media: Sequence[Media], words: dict[str, Tensor], clock: Clock):
        self.clock, self.words, self.kinds = clock, words, [m.kind for m in media]
        self.rankers = {kind: players.ranker(kind) for kind in dict.fromkeys(self.kinds)}
        self.classifiers = {kind: players.classifier(kind) for kind in self.rankers}
        self.tokenizer = players.tokenizer
        self.vectors: dict[int, Tensor] = {}  # of each input
        for kind, ranker in self.rankers.items():
            items = [i for i, k in enumerate(self.kinds) if k == kind]
            self.vectors |= zip(items, ranker.embed_media([media[i] for i in items]), strict=True)

    def temperature(self, item: int) -> float:
        """Of the relevance target."""
        scale = self.rankers[self.kinds[item]].calibration
        return SHARE * (scale.human - scale.random) / 2.5 if scale else TEMPERATURE

    def match(self, items: Sequence[int], texts: Sequence[str]) -> Tensor:
        """Similarity of each text to its input (n,)."""

        def ask(kind: str, unique: list[str], which: list[int], owners: list[int]) -> Tensor:
            self.clock.call("ranker")
            return (self._embed(kind, unique)[which] * torch.stack([self.vectors[i] for i in owners])).sum(-1)

        return self._asked(items, texts, ask)

    def classify(self, items: Sequence[int], texts: Sequence[str]) -> Tensor:
        """The probability of "yes" for each text (n,)."""

        def ask(kind: str, unique: list[str], which: list[int], owners: list[int]) -> Tensor:
            self.clock.call("classifier")
            return self.classifiers[kind].probability(unique)[which]

        return self._asked(items, texts, ask)

    def match_words(self, item: int, tokens: Tensor) -> Tensor:
        """Similarity of single tokens (k,) to an input; a token is read once in a process's life."""
        kind = self.kinds[item]
        if kind not in self.words:
            vector = self.vectors[item]
            self.words[kind] = vector.new_full((len(self.tokenizer), len(vector)), math.nan)
        table = self.words[kind]
        new = tokens[table[tokens, 0].isnan()]
        if len(new):
            self.clock.call("ranker")
            table[new] = self._embed(kind, [self.tokenizer.decode([t]) for t in new.tolist()])
        return table[tokens] @ self.vectors[item]

    def _embed(self, kind: str, texts: list[str]) -> Tensor:
        ranker = self.rankers[kind]
        return ranker.embed_text([ranker.prompt + t for t in texts])

    def _asked(self, items: Sequence[int], texts: Sequence[str], ask: Callable[..., Tensor]) -> Tensor:
        found: list[Tensor] = []
        order: list[int] = []
        for kind in self.rankers:
            here = [n for n, item in enumerate(items) if self.kinds[item] == kind]
            if here:
                number = {t: k for k, t in enumerate(dict.fromkeys(texts[n] for n in here))}
                found.append(ask(kind, list(number), [number[texts[n]] for n in here], [items[n] for n in here]))
                order += here
        together = torch.cat(found)
        return torch.empty_like(together).index_copy_(0, torch.tensor(order, device=together.device), together)


class Goal:
    """The three losses over the next-token distribution of some rows, from what the reader says of candidates for it."""

    def __init__(self, rows: list[Row], reader: Reader, untouched: Tensor):
        self.rows, self.reader, self.untouched = rows, reader, untouched
        names = ("fluency_weight", "classifier_weight", "relevance_weight")
        self.weights = torch.tensor([[r.settings[n] for n in names] for r in rows], device=untouched.device)
        temperatures = [reader.temperature(r.item) for r in rows]
        self.temperatures = torch.tensor(temperatures, device=untouched.device)[:, None]
        # each (rows, k), filled up with candidates that count for nothing
        self.tokens = self.there = self.heard = self.target = untouched.new_empty(0)

    def look(self, logp: Tensor) -> None:
        """Read the candidates for each row's next token by logp (rows, vocab)."""
        candidates = [self._candidates(row, logp[i]) for i, row in enumerate(self.rows)]
        sizes = [len(some) for some in candidates]
        owners = [row.item for row, size in zip(self.rows, sizes, strict=True) for _ in range(size)]
        texts = [
            self.reader.tokenizer.decode([*row.prompt, *row.ids, token])
            for row, some in zip(self.rows, candidates, strict=True)
            for token in some.tolist()
        ]
        self.tokens = pad_sequence(candidates, batch_first=True)
        self.there = pad_sequence([torch.ones_like(some) for some in candidates], batch_first=True) > 0
        heard = pad_sequence(self.reader.classify(owners, texts).split(sizes), batch_first=True)
        similar = pad_sequence(self.reader.match(owners, texts).split(sizes), batch_first=True)
        self.heard = heard.clamp(min=1e-6).log()
        prior = self.untouched.gather(1, self.tokens)
        self.target = (prior + similar / self.temperatures).masked_fill(~self.there, -math.inf).softmax(-1)

    def _candidates(self, row: Row, logp: Tensor) -> Tensor:
        """The tokens of one row to be read (k,): the likeliest, and on the fast route the promising ones of them."""
        likely = logp.topk(min(row.settings["top_k"], int(torch.isfinite(logp).sum()))).indices
        if not row.fast:
            return likely
        likely = likely[logp[likely] > logp.max() + PLAUSIBLE]
        rest = likely[LIKELY:]
        fitting = self.reader.match_words(row.item, rest).topk(min(FITTING, len(rest))).indices
        return torch.cat([likely[:LIKELY], rest[fitting]])

    def losses(self, moved: Tensor) -> dict[str, Tensor]:
        """Each (rows,): λ0 · CE(moved, untouched), λ1 · (−log h_a), λ2 · CE(moved, relevance), their sum, and h_a itself.

        h_a is the classifier's probability as expected over the candidates under the moved distribution.
        """
        fluency = -(self.untouched.exp() * moved.masked_fill(torch.isneginf(self.untouched), 0.0)).sum(-1)
        mine = moved.gather(1, self.tokens).masked_fill(~self.there, -math.inf)
        classifier = -torch.logsumexp(mine.log_softmax(-1) + self.heard, -1)
        relevance = -(self.target * mine.masked_fill(~self.there, 0.0)).sum(-1)
        parts = torch.stack([fluency, classifier, relevance], 1) * self.weights
        named = dict(zip(("fluency", "classifier", "relevance"), parts.detach().T, strict=True))
        return {"loss": parts.sum(1), **named, "probability": (-classifier.detach()).exp()}
