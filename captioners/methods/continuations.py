"""A language model's opinion of another vocabulary's tokens: the likely ones are scored as continuations of the text so
far.

Where the captioner's tokens and the language model's are the same words, this is the language model's own distribution
over the candidates. Otherwise a candidate is spelled in the language model's tokens from the last word boundary on, so
that the pieces of a word are always judged together: a whole word w as p(w | words before), a piece that leaves its
word unfinished as the probability that the next word begins with it and goes on. The language model's cache stands at
the last boundary and moves on when a word is finished.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from captioners.contract import BranchingLanguageModel, CaptionerModels, SpellingTokenizer
from captioners.nets.padding import left_padded
from captioners.nets.transformer import KeysValues
from captioners.run_record import RunRecord
from captioners.text import EOS, UNFINISHED

CANDIDATES = 64  # tokens of each row that are scored; the others are left out of the guided distribution
ATTACHED = tuple(",.;:!?'")  # what follows a word without a space


class SortedVocabulary:
    """The language model's vocabulary sorted by its text, so that all tokens that begin with some text are a range."""

    def __init__(self, tokenizer: SpellingTokenizer) -> None:
        pieces = [tokenizer.piece(i) for i in range(len(tokenizer))]
        self.order = sorted(range(len(pieces)), key=pieces.__getitem__)
        self.texts = [pieces[i] for i in self.order]

    def longer(self, text: str) -> tuple[int, int]:
        """The range of tokens that begin with `text` and go on."""
        low = bisect.bisect_right(self.texts, text)
        return low, bisect.bisect_left(self.texts, text + chr(0x10FFFF), lo=low)


_SORTED: WeakKeyDictionary[SpellingTokenizer, SortedVocabulary] = WeakKeyDictionary()


def sorted_vocabulary(tokenizer: SpellingTokenizer) -> SortedVocabulary:
    """The tokenizer's, sorted when first asked for: GPT-2's takes 0.2 s."""
    if tokenizer not in _SORTED:
        _SORTED[tokenizer] = SortedVocabulary(tokenizer)
    return _SORTED[tokenizer]


class ContinuationScorer:
    """A language model with a vocabulary of its own; each row that asks stands behind its own prompt."""

    def __init__(
        self,
        models: CaptionerModels,
        asking: Sequence[int],
        prompts: Sequence[str],
        rows: int,
        max_tokens: int,
        record: RunRecord,
    ) -> None:
        """`asking` are the rows, of `rows` in all, that ask; each has a prompt of captions separated by |."""
        self.lm, self.captioner_tokenizer = cast(BranchingLanguageModel, models.language_model()), models.tokenizer
        self.tokenizer = cast(SpellingTokenizer, models.lm_tokenizer)  # a vocabulary of its own can spell
        self.index, self.rows, self.record = list(asking), rows, record
        self.device, self.vocabulary = models.device, sorted_vocabulary(self.tokenizer)
        self.before: list[int | None] = [None] * len(self.index)  # the captioner's last token
        self.pending = [""] * len(self.index)  # the text since the last word boundary
        ids, self.mask = left_padded([self._prompt(p, max_tokens) for p in prompts], self.tokenizer.pad, self.device)
        self.past: list[KeysValues] | None = None
        self.logp: Tensor  # (asking rows, LM vocabulary) of what follows the last boundary
        self._read(ids)

    def _prompt(self, prompt: str, max_tokens: int) -> list[int]:
        """Captions as lines of text; the first that do not fit are left out."""
        t = self.tokenizer
        lines = [[*t.encode(caption), t.eos, t.newline] for caption in prompt.split("|") if caption.strip()]
        while sum(map(len, lines)) + 1 + 2 * max_tokens > self.lm.config.context:
            lines = lines[1:]
        return [t.bos, *(i for line in lines for i in line)]

    def next(self, scores: Callable[[], Tensor]) -> dict[str, Tensor]:
        """log p (count, vocab) over the best candidates of `scores()`, −inf elsewhere; NaN for rows that do not ask."""
        if not self.index:
            return {}
        unaided = scores()[self.index]
        best, ids = unaided.topk(min(CANDIDATES, unaided.shape[1]), dim=1)
        texts = [[self._text(row, token) for token in tokens] for row, tokens in enumerate(ids.tolist())]
        scored = self._score(texts).masked_fill(torch.isneginf(best), -math.inf).log_softmax(-1)
        logp = unaided.new_full((self.rows, unaided.shape[1]), math.nan)
        logp[self.index] = torch.full_like(unaided, -math.inf).scatter(1, ids, scored.to(unaided.dtype))
        return {"lm": logp}

    def append(self, tokens: Tensor) -> None:
        """Take the chosen tokens (count,); a finished word is read by the language model."""
        if not self.index:
            return
        words: list[list[int]] = []  # of each row: the word that is finished now, in the language model's tokens
        for row, token in enumerate(tokens[self.index].tolist()):
            text = self._text(row, token)
            finished = not text.endswith(UNFINISHED)
            self.pending[row] = "" if finished else text.removesuffix(UNFINISHED)
            self.before[row] = token
            words.append(self.tokenizer.raw(text) if finished and text != EOS else [])
        if any(words):
            ids, present = left_padded(words, self.tokenizer.pad, self.device)
            self.mask = torch.cat([self.mask, present], 1)
            before = self.logp
            self._read(ids)
            # rows without a new word stand where they stood
            self.logp = torch.where(present[:, -1:], self.logp, before)

    def keep(self, places: list[int]) -> None:
        """The rows at these places go on, in this order; a place that is named twice goes on as two rows."""
        asking = {row: i for i, row in enumerate(self.index)}
        kept = [asking[place] for place in places if place in asking]
        self.index, self.rows = [new for new, place in enumerate(places) if place in asking], len(places)
        self.before, self.pending = [self.before[i] for i in kept], [self.pending[i] for i in kept]
        self.mask, self.logp = self.mask[kept], self.logp[kept]
        self.past = [(k[kept], v[kept]) for k, v in self.past or []]

    def _text(self, row: int, token: int) -> str:
        """A candidate with what is pending before it; EOS is the end."""
        piece = self.captioner_tokenizer.piece(token, self.before[row])
        if piece == EOS:
            return EOS
        if piece.startswith(" ") and piece[1:].startswith(ATTACHED):
            piece = piece[1:]
        elif self.before[row] is None and not piece.startswith(" "):
            piece = f" {piece}"  # a caption's first word, in vocabularies that begin it without a space
        return self.pending[row] + piece

    def _read(self, ids: Tensor) -> None:
        """Move the cache on by some tokens of every row."""
        logits, self.past = self.lm(ids, self.past, self.mask)
        self.record.call("language model")
        self.logp = logits[:, -1].log_softmax(-1)

    def _score(self, texts: list[list[str]]) -> Tensor:
        """(rows, candidates): log-probability of each text as what follows."""
        out = torch.full((len(texts), len(texts[0])), -math.inf, device=self.device)
        total = self._sums(self.logp)
        several: list[tuple[int, int, list[int], bool]] = []
        for row, candidates in enumerate(texts):
            for k, text in enumerate(candidates):
                if text == EOS:
                    out[row, k] = self.logp[row, list(self.tokenizer.special_ids)].logsumexp(0)
                    continue
                plain = text.removesuffix(UNFINISHED)
                ids, unfinished = self.tokenizer.raw(plain), plain != text
                if unfinished:
                    out[row, k] = self._begins(total[row], plain)
                elif len(ids) == 1:
                    out[row, k] = self.logp[row, ids[0]]
                if len(ids) > 1:
                    several.append((row, k, ids, unfinished))
        if several:
            self._score_several(several, out)
        return out

    def _score_several(self, several: list[tuple[int, int, list[int], bool]], out: Tensor) -> None:
        """Spellings of more than one token, which share their row's cache; adds to what single tokens have given."""
        of_row: dict[int, list[tuple[int, list[int], bool]]] = {}
        for row, k, spelled, unfinished in several:
            of_row.setdefault(row, []).append((k, spelled, unfinished))
        rows = list(of_row)
        read = [[i for _, spelled, _ in spellings for i in spelled[:-1]] for spellings in of_row.values()]
        longest = max(map(len, read))
        ids = torch.tensor([ids + [self.tokenizer.pad] * (longest - len(ids)) for ids in read], device=self.device)
        past = self.past or []
        if rows != list(range(len(self.mask))):
            past = [(k[rows], v[rows]) for k, v in past]
        sizes = [[len(spelled) - 1 for _, spelled, _ in spellings] for spellings in of_row.values()]
        logp = self.lm.branches(ids, past, self.mask[rows], sizes).log_softmax(-1)
        self.record.call("language model")
        for i, (row, spellings) in enumerate(of_row.items()):
            start = 0
            for k, spelled, unfinished in spellings:
                logp_after = logp[i, start : start + len(spelled) - 1]
                start += len(spelled) - 1
                path = self.logp[row, spelled[0]] + sum(logp_after[j, spelled[j + 1]] for j in range(len(spelled) - 2))
                # in an unfinished word the last token may be any that begins like it and goes on
                last = (
                    self._begins(self._sums(logp_after[-1]), self.tokenizer.piece(spelled[-1]))
                    if unfinished
                    else logp_after[-1, spelled[-1]]
                )
                out[row, k] = torch.logaddexp(out[row, k], path + last)

    def _sums(self, logp: Tensor) -> Tensor:
        """Running sums of p (…, LM vocabulary) in the order of spelling."""
        return logp.exp()[..., self.vocabulary.order].cumsum(-1)

    def _begins(self, sums: Tensor, text: str) -> Tensor:
        """log of the probability of all single tokens that begin with `text` and go on."""
        low, high = self.vocabulary.longer(text)
        if high == low:
            return torch.tensor(-math.inf, device=sums.device)
        return (sums[high - 1] - (sums[low - 1] if low else sums.new_zeros(()))).clamp(min=0).log()
