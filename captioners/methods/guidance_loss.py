"""What method 2 moves its context cache by: the fluency, classifier and relevance losses over the next token.

λ0 · CE(moved, untouched) + λ1 · (−log h_a) + λ2 · CE(moved, relevance), for all captions of a batch at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captioners.methods.classifier_controls import classifier_weight
from captioners.methods.text_scorer import TextScorer
from captioners.types import Settings

# the fast route reads so many of the likeliest tokens, so many more that match the input as single words, and none
# that is this much less likely than the likeliest one
LIKELIEST, BEST_MATCHING, LEAST_LOGP = 24, 40, math.log(1e-4)


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
    # of each position: the losses along the gradient steps, and log h_a of the caption so far
    steps: list[list[dict[str, float]]] = field(default_factory=list)
    classifier: list[float] = field(default_factory=list)

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
        moved_logp, untouched_logp = moved.masked_fill(impossible, 0.0), self.untouched.masked_fill(impossible, 0.0)
        fluency = -(self.untouched.exp() * moved_logp).sum(-1)
        if self.divergence.any():
            fluency = torch.where(self.divergence, (moved.exp() * (moved_logp - untouched_logp)).sum(-1), fluency)
        candidates = moved.gather(1, self.tokens).masked_fill(~self.present, -math.inf)
        classifier = -torch.logsumexp(candidates.log_softmax(-1) + self.log_yes, -1)
        relevance = -(self.target * candidates.masked_fill(~self.present, 0.0)).sum(-1)
        parts = torch.stack([fluency, classifier, relevance], 1) * self.weights
        named = dict(zip(("fluency", "classifier", "relevance"), parts.detach().T, strict=True))
        return {"loss": parts.sum(1), **named, "probability": (-classifier.detach()).exp()}
