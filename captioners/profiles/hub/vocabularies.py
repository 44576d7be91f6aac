"""The tokenizers of pretrained models behind the interface of `CaptionTokenizer`: CLIP's, whose pieces end words,
GPT-2's and BERT's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from captioners.contract import Tokenizer
from captioners.text import EOS, UNFINISHED, clean, right_padded


def with_words(tokenizer: Any) -> Any:
    """A tokenizer of transformers as it was read, or ValueError: without its files there is one that knows no words."""
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError("its tokenizer knows no words, because tokenizer.json or its vocabulary is missing.")
    return tokenizer


class Vocabulary(Tokenizer):
    """What all have in common."""

    pad: int
    bos: int
    eos: int
    special_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Token ids of a caption, without start and end."""
        raise TypeError(f"{type(self).__name__} has no encode")

    def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` for many."""
        return [self.encode(t) for t in texts]

    def start(self, kind: str) -> int:
        """Captions of every modality begin alike."""
        return self.bos

    def batch(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of ids → (b, t) padded to the longest."""
        return right_padded(rows, self.pad)

    def _spoken(self, ids: Sequence[int]) -> list[int]:
        """Without the end, what stands behind it, and every other special token."""
        ids = [int(i) for i in ids]
        ids = ids[: ids.index(self.eos)] if self.eos in ids else ids
        return [i for i in ids if i not in self.special_ids]


def as_written(text: str) -> str:
    """What vocabularies have taken apart that split at every mark and digit: t-shirt, 3:30 pm, 1.5, o'clock."""
    text = re.sub(r"(?<=\d) (?=\d)", "", text)
    text = re.sub(r"(?<=\d)\s*([:.])\s*(?=\d)", r"\1", text)
    text = re.sub(r"(?<=\w)\s*'\s*(?=(?:s|t|d|m|re|ve|ll|clock)\b)", "'", text)
    return clean(re.sub(r"(?<=\w) - (?=\w)", "-", text))


class ClipVocabulary(Vocabulary):
    """open_clip's byte-pair encoding, which marks the end of a word: a piece that ends none carries a soft hyphen."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer  # open_clip's SimpleTokenizer
        self.pad, self.bos, self.eos = 0, tokenizer.sot_token_id, tokenizer.eot_token_id
        self.special_ids = (self.pad, self.bos, self.eos)

    def __len__(self) -> int:
        return int(self.tokenizer.vocab_size)

    def encode(self, text: str) -> list[int]:
        """Token ids of a caption, without start and end."""
        return list(self.tokenizer.encode(clean(text)))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, as people write it."""
        return as_written(self.tokenizer.decode(self._spoken(ids)))

    def piece(self, token_id: int, before: int | None = None) -> str:
        """A leading space where the token before ended a word; a soft hyphen where this one does not."""
        token_id = int(token_id)
        if token_id == self.eos:
            return EOS
        text: str = self.tokenizer.decode([token_id])
        ended = before is None or before in self.special_ids or self.ends_word(before)
        return (" " if ended else "") + (text.removesuffix(" ") if self.ends_word(token_id) else text + UNFINISHED)

    def ends_word(self, token_id: int) -> bool:
        """Whether a word is over with this token."""
        return bool(self.tokenizer.decoder[int(token_id)].endswith("</w>"))

    def token_id(self, piece: str) -> int | None:
        """The inverse of `piece`."""
        if piece == EOS:
            return self.eos
        text, mark = piece.removeprefix(" ").lower(), "</w>"
        if text.endswith(UNFINISHED):
            text, mark = text.removesuffix(UNFINISHED), ""
        known: dict[str, int] = self.tokenizer.encoder
        return known.get("".join(self.tokenizer.byte_encoder[b] for b in text.encode()) + mark)


class Gpt2Vocabulary(Vocabulary):
    """GPT-2's byte-level encoding.

    A caption ends with its full stop: GPT-2 has seen sentences in texts, not captions one by one.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer  # transformers' GPT2TokenizerFast
        self.bos = self.pad = tokenizer.eos_token_id
        self.eos = self.raw(".")[0]
        self.newline = self.raw("\n")[0]
        self.special_ids = tuple(dict.fromkeys((self.bos, self.eos, self.newline)))

    def __len__(self) -> int:
        return len(self.tokenizer)

    def raw(self, text: str) -> list[int]:
        """Token ids of exactly this text: a word that follows another begins with a space."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, text: str) -> list[int]:
        """Token ids of a caption that follows other text."""
        return self.raw(f" {clean(text)}") if clean(text) else []

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""
        return clean(self.tokenizer.decode(self._spoken(ids)))

    def piece(self, token_id: int, before: int | None = None) -> str:
        """One token as it is shown."""
        return EOS if token_id == self.eos else self.tokenizer.decode([int(token_id)])

    def token_id(self, piece: str) -> int | None:
        """The inverse of `piece`."""
        if piece == EOS:
            return self.eos
        ids = self.raw(piece)
        return ids[0] if len(ids) == 1 else None


class ByteVocabulary(Gpt2Vocabulary):
    """The same encoding in a captioner, which was taught where a caption begins and ends."""

    def __init__(self, tokenizer: Any, start: int, end: int, size: int):
        self.tokenizer, self.size = tokenizer, size
        self.bos, self.eos, self.pad = start, end, end
        self.special_ids = tuple(dict.fromkeys((end, *tokenizer.all_special_ids, *range(len(tokenizer), size))))

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str) -> list[int]:
        """Token ids of a caption: its first word has no space before it."""
        return self.raw(clean(text)) if clean(text) else []


class WordPieceVocabulary(Vocabulary):
    """BERT's: a piece that begins no word is marked, and shown without a space before it."""

    def __init__(self, tokenizer: Any, start: int, end: int, size: int):
        # transformers' BertTokenizerFast, and how many tokens the model knows
        self.tokenizer, self.size = (tokenizer, size)
        self.bos, self.eos, self.pad = start, end, tokenizer.pad_token_id
        self.special_ids = tuple(dict.fromkeys((end, start, *tokenizer.all_special_ids, *range(len(tokenizer), size))))

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str) -> list[int]:
        """Token ids of a caption, without start and end."""
        return list(self.tokenizer(clean(text), add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""
        return as_written("".join(self.piece(i) for i in self._spoken(ids)))

    def piece(self, token_id: int, before: int | None = None) -> str:
        """One token as it is shown."""
        if token_id == self.eos:
            return EOS
        text = self.tokenizer.convert_ids_to_tokens(int(token_id)) if token_id < len(self.tokenizer) else ""
        return text.removeprefix("##") if text.startswith("##") else f" {text}"

    def token_id(self, piece: str) -> int | None:
        """The inverse of `piece`."""
        if piece == EOS:
            return self.eos
        known: dict[str, int] = self.tokenizer.get_vocab()
        return known.get(piece[1:] if piece.startswith(" ") else f"##{piece}")
