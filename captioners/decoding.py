"""What the methods' decoding loops share: keyed randomness, forced tokens, the columns of a trace, ranking."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import Tensor

from captioners import guidance
from captioners.provenance import noted
from captioners.text import EOS, CaptionTokenizer
from captioners.types import Alternative, Candidate, Media, Result, Settings, SettingsError, Spec, Step, StepToken, TokenTrace, to_json

ALTERNATIVES = 10
RANKINGS = ("ranker", "mbr")


class Clock:
    """Seconds per stage and calls per model of one run."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time inside to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def call(self, name: str) -> None:
        """Counts one forward pass."""
        self.calls[name] = self.calls.get(name, 0) + 1


def generator(seed: int, media: Media, candidate: int) -> torch.Generator:
    """Randomness of one candidate: by seed, media and index alone, so that a batch, a resume or a cluster changes nothing."""
    key = hashlib.sha256(f"{seed} {media.hash} {candidate}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little") % 2**63)


def by_kind(grids: Sequence[Tensor], kinds: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
    """Grids stacked per kind, and where each item stands in their concatenation."""
    names = list(dict.fromkeys(kinds))
    where = [i for name in names for i, kind in enumerate(kinds) if kind == name]
    order = torch.empty(len(grids), dtype=torch.long)
    order[torch.tensor(where)] = torch.arange(len(grids))
    return order, {name: torch.stack([g for g, kind in zip(grids, kinds, strict=True) if kind == name]) for name in names}


def gumbel(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    """Noise that makes argmax(log p + noise) a sample of p."""
    uniform = torch.rand(shape, generator=source).clamp(1e-10, 1 - 1e-7)
    return -(-uniform.log()).log()


def choose(guided: Tensor, temperatures: Sequence[float], sources: Sequence[torch.Generator]) -> Tensor:
    """guided (rows, vocab) log-probabilities → the next token of each row (rows,): the best one, or drawn where warm."""
    for row, (temperature, source) in enumerate(zip(temperatures, sources, strict=True)):
        if temperature > 0:
            guided[row] = guided[row] / temperature + gumbel(guided.shape[1:], source).to(guided.device)
    return guided.argmax(-1)


def repeats(ids: list[int], size: int) -> list[int]:
    """Tokens that would complete a run of `size` tokens that is already there; none if size is 0."""
    if size == 0 or len(ids) < size - 1:
        return []
    tail = ids[len(ids) - size + 1 :]
    return [ids[i + size - 1] for i in range(len(ids) - size + 1) if ids[i : i + size - 1] == tail]


def forced_ids(tokenizer: CaptionTokenizer, settings: Settings, max_tokens: int) -> dict[int, int]:
    """Settings.forced as {position: token id}. A word of several pieces takes as many positions."""
    found: dict[int, int] = {}
    for position, word in sorted(settings.forced.items()):
        exact = tokenizer.token_id(word)
        whole = tokenizer.encode(word) if exact is None else [exact]
        if not whole or {*whole} & ({*tokenizer.special_ids} - {tokenizer.eos}):
            raise SettingsError(f"forced token {word!r} is not known to this model: choose one of the alternatives shown.")
        found |= {position + i: token for i, token in enumerate(whole)}
    if found and max(found) >= max_tokens:
        raise SettingsError(f"forced position {max(found)} is past the end: give positions below max_tokens = {max_tokens}.")
    return found


@dataclass
class TraceColumns:
    """What the distributions said at each position, for all rows of a batch at once; rows become TokenTraces at the end."""

    tokenizer: CaptionTokenizer
    places: list[dict[int, int] | None] = field(default_factory=list)  # row → where it stands at this position, if some have ended
    chosen: list[Tensor] = field(default_factory=list)  # each (rows,)
    columns: list[dict[str, Tensor]] = field(default_factory=list)  # name → log-probability of the chosen token (rows,)
    tops: list[dict[str, tuple[Tensor, Tensor]]] = field(default_factory=list)  # name → values, ids (rows, ALTERNATIVES)
    cond: list[Tensor] = field(default_factory=list)  # kept whole: KL wants it once the unconditional column is known
    kl: list[Tensor] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)

    def add(self, token: Tensor, distributions: dict[str, Tensor], rows: Sequence[int] | None = None) -> None:
        """One position: token (rows,), distributions {name: log-probabilities (rows, vocab)}, rows of NaN where not computed.

        `rows` names the rows that are left, where some have ended.
        """
        self.places.append(None if rows is None else {row: place for place, row in enumerate(rows)})
        self.chosen.append(token)
        self.columns.append({name: logp.gather(1, token[:, None])[:, 0] for name, logp in distributions.items()})
        self.tops.append({name: tuple(logp.topk(ALTERNATIVES, dim=1)) for name, logp in distributions.items()})
        self.cond.append(distributions["cond"])
        self.kl.append(guidance.kl(distributions["cond"], distributions["uncond"]))
        self.entropy.append(guidance.entropy(distributions["guided"]))

    def fill(self, name: str, rows: Sequence[int], logp: Tensor) -> None:
        """A column that was unknown while decoding: logp (len(rows), positions, vocab)."""
        for position, token in enumerate(self.chosen):
            there = [(i, place) for i, row in enumerate(rows) if (place := self._place(row, position)) is not None]
            if not there:
                continue
            some, place = torch.tensor(there, device=logp.device).T
            here = logp[some, position]
            self.columns[position][name][place] = here.gather(1, token[place, None])[:, 0]
            for old, new in zip(self.tops[position][name], here.topk(ALTERNATIVES, dim=1), strict=True):
                old[place] = new
            self.kl[position][place] = guidance.kl(self.cond[position][place], here)

    def tokens(self, rows: Sequence[int]) -> Tensor:
        """(len(rows), positions): what was chosen; padding where a row has ended."""
        found = [[self.tokenizer.pad] * len(self.chosen) for _ in rows]
        for position, token in enumerate(self.chosen):
            values = token.tolist()
            for i, row in enumerate(rows):
                if (place := self._place(row, position)) is not None:
                    found[i][position] = values[place]
        return torch.tensor(found, device=self.chosen[0].device)

    def _place(self, row: int, position: int) -> int | None:
        places = self.places[position]
        return row if places is None else places.get(row)

    def row(self, row: int, length: int) -> list[TokenTrace]:
        """The first `length` positions of one row."""
        return [self._position(row, position) for position in range(length)]

    def _position(self, row: int, position: int) -> TokenTrace:
        row = self._place(row, position)
        values = {name: column[row].item() for name, column in self.columns[position].items()}
        known = {name: top for name, top in self.tops[position].items() if not math.isnan(values[name])}
        before = int(self.chosen[position - 1][row]) if position else None
        return TokenTrace(
            position=position,
            token=self.tokenizer.piece(self.chosen[position][row], before),
            cond=values["cond"],
            uncond=values["uncond"],
            guided=values["guided"],
            lm=values["lm"] if "lm" in known else None,
            alternatives={name: self._alternatives(top[0][row], top[1][row], before) for name, top in known.items()},
            kl=self.kl[position][row].item(),
            entropy=self.entropy[position][row].item(),
        )

    def _alternatives(self, values: Tensor, ids: Tensor, before: int | None) -> list[Alternative]:
        return [
            Alternative(self.tokenizer.piece(i, before), v) for v, i in zip(values.tolist(), ids.tolist(), strict=True) if math.isfinite(v)
        ]


def step_tokens(trace: Sequence[TokenTrace]) -> list[StepToken]:
    """A caption that grows: every token is final, the end is not shown."""
    return [StepToken(t.token, "final", math.exp(t.guided)) for t in trace if t.token != EOS]


def rank(
    ranker, media: Media, texts: Sequence[str], logprobs: Sequence[float], ranking: str = RANKINGS[0]
) -> tuple[list[Candidate], list[int]]:
    """Candidates, best first, and their order: by the ranker's similarity to the media, or by agreement; one alone needs neither."""
    if len(texts) == 1:
        return [Candidate(texts[0], None, logprobs[0])], [0]
    if ranking == "mbr":
        scores = agreement(texts)
    else:
        vectors = ranker.embed_text([ranker.prompt + t for t in texts])
        scores = (vectors @ ranker.embed_media([media])[0]).tolist()
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))
    return [Candidate(texts[i], scores[i], logprobs[i]) for i in order], order


def agreement(texts: Sequence[str]) -> list[float]:
    """Minimum Bayes risk: how much each caption shares with the others, as the mean F1 of their words and pairs of words."""
    bags = [Counter([*(words := text.split()), *pairwise(words)]) for text in texts]

    def shared(a: Counter, b: Counter) -> float:
        return 2 * (a & b).total() / max(1, a.total() + b.total())

    pairs = {(i, j): shared(bags[i], bags[j]) for i, j in combinations(range(len(bags)), 2)}  # (a, b) share what (b, a) share
    return [sum(pairs[min(i, j), max(i, j)] for j in range(len(bags)) if j != i) / max(1, len(bags) - 1) for i in range(len(bags))]


def diversity(texts: Sequence[str]) -> dict[str, float]:
    """How varied a set of candidates is: the share of distinct captions, Dist-1, Dist-2, and how little they agree."""
    words = [text.split() for text in texts]
    ones, twos = [w for some in words for w in some], [p for some in words for p in pairwise(some)]
    return {
        "distinct": len({*texts}) / len(texts),
        "dist-1": len({*ones}) / max(1, len(ones)),
        "dist-2": len({*twos}) / max(1, len(twos)),
        "agreement": sum(agreement(texts)) / len(texts),
    }


def finished(
    spec: Spec,
    players,
    media: Media,
    settings: Settings,
    texts: Sequence[str],
    logprobs: Sequence[float],
    trace_of: Callable[[int], list[TokenTrace]],
    clock: Clock,
    share: int,
    details_of: Callable[[int], dict[str, Any]] = lambda best: {},
) -> Step:
    """The last Step of one input: its candidates ranked, the best one's trace, and how it came about.

    `share` inputs were decoded together: the clock's seconds are divided among them.
    """
    with clock.stage("rank"):
        ranking = settings.get("ranking", RANKINGS[0])
        asked = len(texts) > 1 and ranking == "ranker"
        candidates, order = rank(players.ranker(media.kind) if asked else None, media, texts, logprobs, ranking)
    with clock.stage("trace"):
        trace, details = (trace_of(order[0]), details_of(order[0])) if settings.traced else ([], {})
    if len(texts) > 1:
        details = {**details, "diversity": diversity(texts)}
    result = Result(
        method=spec.id,
        caption=candidates[0].caption,
        candidates=candidates,
        trace=trace,
        settings=to_json(settings),
        seed=settings["seed"],
        profile=players.profile,
        weights=noted(),
        seconds={name: value / share for name, value in clock.seconds.items()},
        calls=dict(clock.calls),
        notes=[*media.notes, *players.notes],
        details=details,
    )
    return Step(len(trace), len(trace), step_tokens(trace), trace, [c.caption for c in candidates[1:]], result)
