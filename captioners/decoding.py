"""What the methods' decoding loops share: keyed randomness, forced tokens, the columns of a trace, ranking."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import Tensor

from captioners import guidance
from captioners.contract import Matcher, Tokenizer
from captioners.text import EOS
from captioners.types import (
    Alternative,
    Candidate,
    Media,
    Modality,
    Settings,
    SettingsError,
    StepToken,
    TokenState,
    TokenTrace,
)
from captioners.words import distinct_captions, distinct_ngrams, tokenize

ALTERNATIVES = 10
SAMPLING_TEMPERATURE = 0.7  # of the further candidates when the first one is greedy


def generator(seed: int, media: Media, candidate: int) -> torch.Generator:
    """Randomness of one candidate: by seed, media and index alone, so that a batch, a resume or a cluster changes
    nothing.
    """
    key = hashlib.sha256(f"{seed} {media.hash} {candidate}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little") % 2**63)


def stack_by_modality(tensors: Sequence[Tensor], kinds: Sequence[Modality]) -> tuple[Tensor, dict[str, Tensor]]:
    """Where each item stands when the stacks are put one behind the other, and the tensors stacked by modality."""
    modalities = list(dict.fromkeys(kinds))
    sources = [i for modality in modalities for i, kind in enumerate(kinds) if kind == modality]
    order = torch.empty(len(tensors), dtype=torch.long)
    order[torch.tensor(sources)] = torch.arange(len(tensors))
    pairs = list(zip(tensors, kinds, strict=True))
    return order, {
        modality: torch.stack([tensor for tensor, kind in pairs if kind == modality]) for modality in modalities
    }


def gumbel(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    """Noise that makes argmax(log p + noise) a sample of p."""
    uniform = torch.rand(shape, generator=source).clamp(1e-10, 1 - 1e-7)
    return -(-uniform.log()).log()


def choose_tokens(guided: Tensor, temperatures: Sequence[float], sources: Sequence[torch.Generator]) -> Tensor:
    """guided (rows, vocab) log-probabilities → the next token of each row (rows,): the best one, or drawn where
    warm.
    """
    for row, (temperature, source) in enumerate(zip(temperatures, sources, strict=True)):
        if temperature > 0:
            guided[row] = guided[row] / temperature + gumbel(guided.shape[1:], source).to(guided.device)
    return guided.argmax(-1)


def repeated_tokens(ids: list[int], size: int) -> list[int]:
    """Tokens that would complete a run of `size` tokens that is already there; none if size is 0."""
    if size == 0 or len(ids) < size - 1:
        return []
    tail = ids[len(ids) - size + 1 :]
    return [ids[i + size - 1] for i in range(len(ids) - size + 1) if ids[i : i + size - 1] == tail]


def trace_ids(tokenizer: Tokenizer, trace: Sequence[TokenTrace]) -> list[int] | None:
    """The token ids of a trace; None if one of its pieces cannot be told."""
    ids = [tokenizer.token_id(token.token) for token in trace]
    known = [i for i in ids if i is not None]
    return known if len(known) == len(ids) else None


def forced_ids(tokenizer: Tokenizer, settings: Settings, max_tokens: int) -> dict[int, int]:
    """Settings.forced as {position: token id}. A word of several pieces takes as many positions."""
    forced: dict[int, int] = {}
    for position, word in sorted(settings.forced.items()):
        single = tokenizer.token_id(word)
        pieces = tokenizer.encode(word) if single is None else [single]
        if not pieces or {*pieces} & ({*tokenizer.special_ids} - {tokenizer.eos}):
            raise SettingsError(
                f"forced token {word!r} is not known to this model: choose one of the alternatives shown."
            )
        forced |= {position + i: token for i, token in enumerate(pieces)}
    if forced and max(forced) >= max_tokens:
        raise SettingsError(
            f"forced position {max(forced)} is past the end: give positions below max_tokens = {max_tokens}."
        )
    return forced


@dataclass
class TraceColumns:
    """What the distributions said at each position, for all rows of a batch at once; rows become TokenTraces at the
    end.

    Rows may leave the batch or change places in it, so a caption knows its `places`: the row where it stood at each
    position.
    """

    tokenizer: Tokenizer
    chosen: list[Tensor] = field(default_factory=list)  # each (rows,)
    columns: list[dict[str, Tensor]] = field(default_factory=list)  # name → log-probability of the chosen token (rows,)
    # name → values, ids (rows, ALTERNATIVES)
    tops: list[dict[str, tuple[Tensor, Tensor]]] = field(default_factory=list)
    cond: list[Tensor] = field(default_factory=list)  # kept whole: KL wants it once the unconditional column is known
    kl: list[Tensor] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)

    def add(self, token: Tensor, distributions: dict[str, Tensor]) -> None:
        """One position: token (rows,), distributions {name: log-probabilities (rows, vocab)}, rows of NaN where not
        computed.
        """
        self.chosen.append(token)
        self.columns.append({name: chosen_logp(logp, token) for name, logp in distributions.items()})
        tops = {name: logp.topk(ALTERNATIVES, dim=1) for name, logp in distributions.items()}
        self.tops.append({name: (top.values, top.indices) for name, top in tops.items()})
        self.cond.append(distributions["cond"])
        self.kl.append(guidance.kl(distributions["cond"], distributions["uncond"]))
        self.entropy.append(guidance.entropy(distributions["guided"]))

    def fill(self, name: str, captions: Sequence[Sequence[int]], logp: Tensor) -> None:
        """A column that was unknown while decoding: the places of some captions, and logp (captions, positions,
        vocab).
        """
        for position, token in enumerate(self.chosen):
            going = [(i, places[position]) for i, places in enumerate(captions) if position < len(places)]
            if not going:
                continue
            source, place = torch.tensor(going, device=logp.device).T
            filled = logp[source, position]
            self.columns[position][name][place] = chosen_logp(filled, token[place])
            for old, new in zip(self.tops[position][name], filled.topk(ALTERNATIVES, dim=1), strict=True):
                old[place] = new
            self.kl[position][place] = guidance.kl(self.cond[position][place], filled)

    def row(self, places: Sequence[int]) -> list[TokenTrace]:
        """The positions of one caption."""
        return [self._position(places, position) for position in range(len(places))]

    def _position(self, places: Sequence[int], position: int) -> TokenTrace:
        place = places[position]
        values = {name: column[place].item() for name, column in self.columns[position].items()}
        known = {name: top for name, top in self.tops[position].items() if not math.isnan(values[name])}
        before = int(self.chosen[position - 1][places[position - 1]]) if position else None
        return TokenTrace(
            position=position,
            token=self.tokenizer.piece(int(self.chosen[position][place]), before),
            cond=values["cond"],
            uncond=values["uncond"],
            guided=values["guided"],
            lm=values["lm"] if "lm" in known else None,
            alternatives={
                name: self._alternatives(top[0][place], top[1][place], before) for name, top in known.items()
            },
            kl=self.kl[position][place].item(),
            entropy=self.entropy[position][place].item(),
        )

    def _alternatives(self, values: Tensor, ids: Tensor, before: int | None) -> list[Alternative]:
        ranked = zip(values.tolist(), ids.tolist(), strict=True)
        return [Alternative(self.tokenizer.piece(token, before), logp) for logp, token in ranked if math.isfinite(logp)]


def step_tokens(trace: Sequence[TokenTrace], state: TokenState = "final") -> list[StepToken]:
    """A caption that grows: its tokens are final, unless a search may still take them back; the end is not shown."""
    return [StepToken(t.token, state, math.exp(t.guided)) for t in trace if t.token != EOS]


def rank(
    ranker: Matcher | None, media: Media, captions: Sequence[str], logprobs: Sequence[float] | None = None
) -> tuple[list[Candidate], list[int]]:
    """Candidates, best first, and their order: by the ranker's similarity to the media, or without one by agreement.

    One caption alone needs neither.
    """
    own = logprobs if logprobs is not None else [None] * len(captions)
    if len(captions) == 1:
        return [Candidate(captions[0], None, own[0])], [0]
    if ranker is None:
        scores = agreement(captions)
    else:
        vectors = ranker.embed_text([ranker.prompt + caption for caption in captions])
        scores = (vectors @ ranker.embed_media([media])[0]).tolist()
    order = sorted(range(len(captions)), key=lambda i: (-scores[i], i))
    return [Candidate(captions[i], scores[i], own[i]) for i in order], order


def chosen_logp(logp: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of one token at each place: logp (…, vocab), tokens that broadcast to (…) → (…)."""
    return logp.gather(-1, tokens.expand(logp.shape[:-1])[..., None])[..., 0]


def agreement(texts: Sequence[str]) -> list[float]:
    """Minimum Bayes risk: how much each caption shares with the others, as the mean F1 of their words and pairs of
    words.
    """
    bags = [Counter([*(words := text.split()), *pairwise(words)]) for text in texts]

    def shared(a: Counter[Any], b: Counter[Any]) -> float:
        return 2 * (a & b).total() / max(1, a.total() + b.total())

    # (a, b) share what (b, a) share
    pairs = {(i, j): shared(bags[i], bags[j]) for i, j in combinations(range(len(bags)), 2)}
    return [
        sum(pairs[min(i, j), max(i, j)] for j in range(len(bags)) if j != i) / max(1, len(bags) - 1)
        for i in range(len(bags))
    ]


def diversity(texts: Sequence[str]) -> dict[str, float]:
    """How varied a set of candidates is: the share of distinct captions, Dist-1, Dist-2, and how little they agree."""
    captions = [tokenize(text) for text in texts]
    return {
        "distinct": distinct_captions(captions),
        "dist-1": distinct_ngrams(captions, 1),
        "dist-2": distinct_ngrams(captions, 2),
        "agreement": sum(agreement(texts)) / len(texts),
    }
