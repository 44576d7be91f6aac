"""What rankers and classifiers say of half-finished captions (method 2): equal texts are read once, those of one
modality in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from captioners.contract import Matcher, SteeredModels
from captioners.run_record import RunRecord
from captioners.types import Media, Modality

# ZeroCap's temperature suits CLIP, on whose scale random and human captions lie 0.16 apart; for another matcher it is
# as large a share of that distance
CLIP_TEMPERATURE, TEMPERATURE_SHARE = 0.01, 1 / 16
CLIPSCORE_SCALE = 2.5  # a calibration is in CLIPScore, a temperature in cosines

# (modality, texts without repetition, which of them each row has, the input of each row) → one number per row
Ask = Callable[[Modality, list[str], list[int], list[int]], Tensor]


def relevance_temperature(ranker: Matcher) -> float:
    """The temperature of the relevance target, on this ranker's scale."""
    scale = ranker.calibration
    return TEMPERATURE_SHARE * (scale.human - scale.random) / CLIPSCORE_SCALE if scale else CLIP_TEMPERATURE


class TextScorer:
    """Scores texts against the inputs of one run."""

    def __init__(
        self,
        models: SteeredModels,
        media: Sequence[Media],
        questions: Sequence[Modality],
        word_vectors: dict[Modality, Tensor],
        record: RunRecord,
    ) -> None:
        """`questions`: the modality whose classifier is asked about each input's captions.

        `word_vectors` outlives the run: single tokens in the ranker's space are the same for every input.
        """
        self.record, self.word_vectors, self.kinds, self.questions = (
            record,
            word_vectors,
            [m.kind for m in media],
            questions,
        )
        self.rankers = {kind: models.ranker(kind) for kind in dict.fromkeys(self.kinds)}
        self.classifiers = {kind: models.classifier(kind) for kind in dict.fromkeys(questions)}
        self.tokenizer = models.tokenizer
        self.media_vectors: dict[int, Tensor] = {}  # of each input
        for kind, ranker in self.rankers.items():
            items = [i for i, k in enumerate(self.kinds) if k == kind]
            self.media_vectors |= zip(items, ranker.embed_media([media[i] for i in items]), strict=True)

    def temperature(self, item: int) -> float:
        """The temperature of the relevance target of one input."""
        return relevance_temperature(self.rankers[self.kinds[item]])

    def match(self, items: Sequence[int], texts: Sequence[str]) -> Tensor:
        """Similarity of each text to its input (n,)."""

        def ask(kind: Modality, unique: list[str], index: list[int], owners: list[int]) -> Tensor:
            self.record.call("ranker")
            return (self._embed(kind, unique)[index] * torch.stack([self.media_vectors[i] for i in owners])).sum(-1)

        return self._by_modality(self.kinds, items, texts, ask)

    def classify(self, items: Sequence[int], texts: Sequence[str]) -> Tensor:
        """The probability of "yes" for each text (n,)."""

        def ask(kind: Modality, unique: list[str], index: list[int], owners: list[int]) -> Tensor:
            self.record.call("classifier")
            return self.classifiers[kind].probability(unique)[index]

        return self._by_modality(self.questions, items, texts, ask)

    def match_words(self, item: int, tokens: Tensor) -> Tensor:
        """Similarity of single tokens (k,) to an input; a token is read once in a process's life."""
        kind = self.kinds[item]
        if kind not in self.word_vectors:
            vector = self.media_vectors[item]
            self.word_vectors[kind] = vector.new_full((len(self.tokenizer), len(vector)), math.nan)
        table = self.word_vectors[kind]
        new = tokens[table[tokens, 0].isnan()]
        if len(new):
            self.record.call("ranker")
            table[new] = self._embed(kind, [self.tokenizer.decode([t]) for t in new.tolist()])
        return table[tokens] @ self.media_vectors[item]

    def _embed(self, kind: Modality, texts: list[str]) -> Tensor:
        ranker = self.rankers[kind]
        return ranker.embed_text([ranker.prompt + t for t in texts])

    def _by_modality(self, kinds: Sequence[Modality], items: Sequence[int], texts: Sequence[str], ask: Ask) -> Tensor:
        """The answers (n,) for texts about `items`, each modality asked once; kinds: that of each input."""
        answers: list[Tensor] = []
        order: list[int] = []
        for kind in dict.fromkeys(kinds):
            rows = [n for n, item in enumerate(items) if kinds[item] == kind]
            if rows:
                number = {t: k for k, t in enumerate(dict.fromkeys(texts[n] for n in rows))}
                answers.append(ask(kind, list(number), [number[texts[n]] for n in rows], [items[n] for n in rows]))
                order += rows
        together = torch.cat(answers)
        return torch.empty_like(together).index_copy_(0, torch.tensor(order, device=together.device), together)
