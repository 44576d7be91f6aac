"""What a language model has to say about the next token, however its vocabulary relates to the captioner's (method
1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from captioners.contract import CaptionerModels
from captioners.methods.continuations import ContinuationScorer
from captioners.nets.padding import left_padded
from captioners.nets.transformer import KeysValues
from captioners.run_record import RunRecord
from captioners.types import Modality


class LanguageGuide(Protocol):
    """A language model beside the rows of a batch. The rows that ask it are those whose `lm_weight` is above 0."""

    def next(self, scores: Callable[[], Tensor]) -> dict[str, Tensor]:
        """{"lm": log p (rows, vocab)}, NaN for rows that do not ask; {} if none does.

        `scores` makes the guided scores without the language model, for guides that judge the best candidates only.
        """
        ...

    def append(self, tokens: Tensor) -> None:
        """Take the chosen tokens (rows,)."""
        ...

    def keep(self, places: list[int]) -> None:
        """The rows at these places go on, in this order; a place that is named twice goes on as two rows."""
        ...


def language_guide(
    models: CaptionerModels,
    weights: Sequence[float],
    kinds: Sequence[Modality],
    prompts: Sequence[str],
    max_tokens: Sequence[int],
    record: RunRecord,
) -> LanguageGuide:
    """The guide that fits the models.

    Per row: its weight, its modality, its prompt of captions separated by |, its longest caption.
    """
    asking = [row for row, weight in enumerate(weights) if weight > 0]
    if not asking:
        return NoLanguageModel()
    texts = [prompts[row] for row in asking]
    if models.lm_tokenizer is not models.tokenizer:
        return ContinuationScorer(models, asking, texts, len(weights), max(max_tokens), record)
    starts = [models.start_token(kinds[row]) for row in asking]
    return PromptedLanguageModel(
        models, asking, texts, starts, [max_tokens[row] for row in asking], len(weights), record
    )


class NoLanguageModel:
    """Used when every lm_weight is 0."""

    def next(self, scores: Callable[[], Tensor]) -> dict[str, Tensor]:
        """No distribution."""
        return {}

    def append(self, tokens: Tensor) -> None:
        """There is no cache to extend."""

    def keep(self, places: list[int]) -> None:
        """There is no cache to cut."""


class PromptedLanguageModel:
    """A language model that shares the captioner's vocabulary; each row that asks stands behind its own prompt."""

    def __init__(
        self,
        models: CaptionerModels,
        asking: Sequence[int],
        prompts: Sequence[str],
        starts: Sequence[int],
        max_tokens: Sequence[int],
        rows: int,
        record: RunRecord,
    ) -> None:
        """`asking` are the rows, of `rows` in all, that ask; prompts, start tokens and longest captions are theirs."""
        self.record, self.rows, self.device = record, rows, models.device
        self.index = torch.tensor(list(asking), dtype=torch.long, device=self.device)
        self.lm, tokenizer = models.language_model(), models.tokenizer
        read = []
        for prompt, start, longest in zip(prompts, starts, max_tokens, strict=True):
            captions = [[start, *tokenizer.encode(c), tokenizer.eos] for c in prompt.split("|") if c.strip()]
            while sum(map(len, captions)) + 1 + longest > self.lm.config.context:  # the first ones do not fit
                captions = captions[1:]
            read.append([*itertools.chain(*captions), start])
        self.ids, self.mask = left_padded(read, tokenizer.pad, self.device)
        self.past: list[KeysValues] | None = None

    def next(self, scores: Callable[[], Tensor]) -> dict[str, Tensor]:
        """log p under the language model (rows, vocab), NaN for rows that do not ask it; nothing if none does any
        more.
        """
        if not len(self.index):
            return {}
        logits, self.past = self.lm(self.ids, self.past, self.mask)
        self.record.call("language model")
        logp = logits.new_full((self.rows, logits.shape[-1]), math.nan)
        logp[self.index] = logits[:, -1].log_softmax(-1)
        return {"lm": logp}

    def append(self, tokens: Tensor) -> None:
        """Take the chosen tokens (rows,)."""
        if len(self.index):
            self.ids = tokens[self.index, None]
            self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)

    def keep(self, places: list[int]) -> None:
        """The rows at these places go on, in this order; a place that is named twice goes on as two rows."""
        asking = {row: i for i, row in enumerate(self.index.tolist())}
        kept = [(asking[place], new) for new, place in enumerate(places) if place in asking]
        self.index = torch.tensor([row for _, row in kept], dtype=torch.long, device=self.device)
        self.rows = len(places)
        if kept:
            source = torch.tensor([i for i, _ in kept], device=self.device)
            self.past = [(k[source], v[source]) for k, v in self.past or []]
            self.mask = self.mask[source]
