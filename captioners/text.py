"""Caption text ↔ token ids: one BPE shared by every embedded text model, with one start token per corpus.

A corpus's start token is its domain tag (DESIGN, "One model, many corpora"): it tells a text model which kind of
caption is wanted, so that conditional and unconditional branches speak of the same kind of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

PAD, BOS, EOS, MASK, UNK = "<pad>", "<bos>", "<eos>", "<mask>", "<unk>"
UNFINISHED = "\u00ad"  # a soft hyphen at the end of a shown piece: its word goes on, in vocabularies that know
SPECIALS = (PAD, BOS, EOS, MASK, UNK)
PAIRS = {"image": "picture", "audio": "sound"}  # the domain of captions that come with their picture or sound


def clean(text: str) -> str:
    """A caption as the models know it: one line, no quotes, no special tokens, no space before punctuation, no full
    stop at the end.
    """
    text = re.sub(r"[\"“”«»`<>]|''", " ", text).replace("’", "'")
    text = re.sub(r"\s+([,.;:!?'])", r"\1", re.sub(r"\s+", " ", text))
    return text.strip(" .,;:!?-")


def right_padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Rows of ids → (b, t), padded to the longest; at least one position, even if every row is empty."""
    out = torch.full((len(rows), max([1, *map(len, rows)])), pad, dtype=torch.long)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return out


def _special_id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise ValueError(f"This tokenizer has no {token}: train it again.")
    return int(token_id)


class CaptionTokenizer:
    """Encodes and decodes captions; knows the ids of the special tokens."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.pad, self.bos, self.eos, self.mask, self.unk = (_special_id(tokenizer, t) for t in SPECIALS)
        added = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
        # domain → its start token
        self.tags = {text.strip("<>"): i for text, i in added.items() if text not in SPECIALS}
        self.special_ids = tuple(added.values())

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, domains: Sequence[str] = ()) -> CaptionTokenizer:
        """A new BPE over `texts`, with a start token for each domain: pictures, sounds and the text corpora in
        `domains`.
        """
        tokenizer = Tokenizer(models.BPE(unk_token=UNK))
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=True)]
        )
        tokenizer.decoder = decoders.Metaspace()
        specials = [*SPECIALS, *(f"<{domain}>" for domain in (*PAIRS.values(), *domains))]
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=specials, min_frequency=3, show_progress=False
        )
        tokenizer.train_from_iterator((clean(t) for t in texts), trainer)
        return cls(tokenizer)

    def start(self, kind: str) -> int:
        """The start token of captions of a modality: the tag of its own pairs."""
        return self.tags[PAIRS[kind]]

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Token ids of a caption, without start and end."""
        return self.tokenizer.encode(clean(text)).ids

    def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` for many, on all cores."""
        return [e.ids for e in self.tokenizer.encode_batch([clean(t) for t in texts])]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; everything from the first end token on, and every other special token, is dropped."""
        ids = [int(i) for i in ids]
        ids = ids[: ids.index(self.eos)] if self.eos in ids else ids
        return self.tokenizer.decode([i for i in ids if i not in self.special_ids]).strip()

    def piece(self, token_id: int, before: int | None = None) -> str:
        """One token as it is shown, a leading space before a word.

        Vocabularies that mark the end of words need the token before.
        """
        return (self.tokenizer.id_to_token(int(token_id)) or UNK).replace("▁", " ")

    def token_id(self, piece: str) -> int | None:
        """The inverse of `piece`; None if there is no such token."""
        return self.tokenizer.token_to_id(piece.replace(" ", "▁"))

    def batch(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of ids → (b, t) padded to the longest; at least one position, even if every row is empty."""
        return right_padded(rows, self.pad)
