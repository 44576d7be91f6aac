"""What a method is handed, declared: the models, tokenizers and matchers that every profile must offer under these
names.

A profile gives each method an object of one of the `…Models` protocols below; a method uses nothing beyond its own. The
implementations are in `captioners/profiles`, the tests' stand-ins in `tests/fakes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from captioners.types import Media, Modality

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from captioners.nets.captioner import Condition
    from captioners.nets.encoders import Features
    from captioners.nets.mask_denoiser import MaskDenoiser
    from captioners.nets.prefix_denoiser import PrefixDenoiser
    from captioners.nets.transformer import KeysValues


# ------------------------------------------------------------------------------------------------------- tokenizers


class Tokenizer(Protocol):
    """Caption text ↔ token ids of one vocabulary."""

    pad: int
    bos: int
    eos: int
    special_ids: tuple[int, ...]  # tokens that are no text: start, end, padding, …

    def __len__(self) -> int:
        """How many tokens there are."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a caption, without start and end."""
        ...

    def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
        """The token ids of several texts, each as `encode` gives them."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids up to the first end token; special tokens are dropped."""
        ...

    def piece(self, token_id: int, before: int | None = None) -> str:
        """One token as it is shown, with a leading space where a word begins; `before` is the token in front of it."""
        ...

    def token_id(self, piece: str) -> int | None:
        """The inverse of `piece`; None if there is no such token."""
        ...

    def start(self, kind: Modality) -> int:
        """The token that captions of this modality begin with."""
        ...

    def batch(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of ids → (b, t), padded on the right."""
        ...


class SpellingTokenizer(Tokenizer, Protocol):
    """A language model's own tokenizer, which can also spell text that is no caption."""

    newline: int

    def raw(self, text: str) -> list[int]:
        """Token ids of exactly this text: a word that follows another begins with a space."""
        ...


# ----------------------------------------------------------------------------------------------------------- models


class LanguageModelConfig(Protocol):
    """What callers ask of a language model's configuration."""

    @property
    def context(self) -> int:
        """How many positions may be used."""
        ...


class LanguageModel(Protocol):
    """p(next token | tokens so far), with a cache of keys and values that is plain pairs of tensors."""

    @property
    def config(self) -> LanguageModelConfig:
        """The size of the model."""
        ...

    def __call__(
        self, ids: Tensor, past: list[KeysValues] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache, which now covers past + t tokens.

        `mask` (b, past + t) is False where a row is padded on the left; positions count from a row's first real token.
        """
        ...


class BranchingLanguageModel(LanguageModel, Protocol):
    """One that can also read several continuations of a row at once."""

    def branches(self, ids: Tensor, past: list[KeysValues], mask: Tensor, sizes: Sequence[Sequence[int]]) -> Tensor:
        """ids (b, t), a row's continuations one behind the other, `sizes` their lengths → logits (b, t, vocab).

        They share the row's cache, of which they see what `mask` (b, past) allows.
        """
        ...


class ConditionalDecoder(Protocol):
    """p(next token | tokens so far, input or nothing), with a cache of keys and values."""

    def condition(self, grids: dict[str, Tensor], order: Tensor) -> Condition:
        """{modality: (n, cells, c)} → what the rows, put into `order`, attend to."""
        ...

    def __call__(
        self, ids: Tensor, condition: Condition, past: list[KeysValues] | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """ids (b, t) → logits (b, t, vocab) and the cache, which now covers past + t tokens."""
        ...


@dataclass(frozen=True)
class Calibration:
    """Where on a matcher's own scale random and human captions lie: means of CLIPScore on the development split."""

    random: float
    human: float

    def place(self, score: float) -> float:
        """0 at the level of random captions, 1 at that of human ones."""
        return (score - self.random) / (self.human - self.random)


class Matcher(Protocol):
    """Media and text in one space, as vectors of unit length."""

    @property
    def name(self) -> str:
        """The model's name, shown beside every number that came from it."""
        ...

    @property
    def prompt(self) -> str:
        """Put before a caption that is scored ("A photo depicts " for CLIP)."""
        ...

    @property
    def calibration(self) -> Calibration | None:
        """Where random and human captions lie, where that was measured."""
        ...

    def embed_media(self, media: list[Media]) -> Tensor:
        """The vectors (n, d) of the media."""
        ...

    def embed_text(self, texts: list[str]) -> Tensor:
        """The vectors (n, d) of the texts, without the prompt: callers add it."""
        ...


@runtime_checkable
class PartialMatcher(Matcher, Protocol):
    """A matcher that can also look at a part of its input."""

    def embed_without(self, media: Media, hidden: Tensor) -> Tensor | None:
        """One input with some cells hidden: hidden (m, cells) → (m, d); None if it has other cells."""
        ...


class YesNoClassifier(Protocol):
    """A text classifier behind one question: can this be heard, or seen?"""

    @property
    def name(self) -> str:
        """The model's name, shown beside every number that came from it."""
        ...

    def probability(self, texts: list[str]) -> Tensor:
        """(n,): the probability of "yes"."""
        ...


class FluencyJudge(Protocol):
    """A language model that only judges."""

    @property
    def name(self) -> str:
        """The model's name, shown beside every number that came from it."""
        ...

    @property
    def human(self) -> Mapping[Modality, float]:
        """Perplexity of people's captions, where it was measured."""
        ...

    def log_likelihood(self, texts: list[str]) -> list[float]:
        """The log-likelihood of each text in nats, the end of the sentence included."""
        ...


@dataclass(frozen=True)
class TokenVectors:
    """One sentence as an encoder reads it."""

    vectors: Tensor  # (t, d), unit length, the start and the end of the sentence among them
    counted: Tensor  # (t,) False for start and end


class TextJudge(Protocol):
    """A text encoder that only judges: BERTScore's."""

    @property
    def name(self) -> str:
        """The model's name, shown beside every number that came from it."""
        ...

    def embed_tokens(self, texts: list[str]) -> list[TokenVectors]:
        """Each sentence's tokens in their context."""
        ...


# ------------------------------------------------------------------------------------- what each method is handed


class MethodModels(Protocol):
    """What every method is handed, whatever its models are."""

    @property
    def profile(self) -> str:
        """The name of the profile that these models come from."""
        ...

    @property
    def device(self) -> str:
        """Where the models are."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a card should tell of these models."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary in which the method writes."""
        ...

    def start_token(self, kind: Modality) -> int:
        """The token that captions of this modality begin with; raises ProfileError if the models do not know it."""
        ...

    def ranker(self, kind: Modality) -> Matcher:
        """The matcher that methods may rank with; never a judge."""
        ...


class CaptionerModels(MethodModels, Protocol):
    """Method 1: a captioner that can also be asked without its input, and a language model."""

    @property
    def lm_tokenizer(self) -> Tokenizer:
        """The language model's vocabulary; the same object as `tokenizer` where both share one."""
        ...

    def encode(self, media: Sequence[Media]) -> list[Features]:
        """The encoder's features of each."""
        ...

    def caption_decoder(self) -> ConditionalDecoder:
        """The captioner, token by token."""
        ...

    def language_model(self) -> LanguageModel:
        """The language model that guides."""
        ...


class SteeredModels(MethodModels, Protocol):
    """Method 2: a language model that is steered, and the classifiers that steer it."""

    def text_start(self, kind: Modality | None) -> list[int]:
        """What the language model reads before a caption, and does not say: at least two tokens. It tells the modality
        of the caption, or nothing where that is None.
        """
        ...

    def language_model(self) -> LanguageModel:
        """The language model that writes."""
        ...

    def classifier(self, kind: Modality) -> YesNoClassifier:
        """Can a sentence be heard, or seen?"""
        ...


class MaskDenoiserModels(MethodModels, Protocol):
    """Method 3: a denoiser of masked captions that reads the input as discrete codes."""

    def codes(self, media: Sequence[Media]) -> list[Tensor]:
        """The discrete tokens (cells,) of each."""
        ...

    def painted(self, media: Media) -> np.ndarray | None:
        """A picture's codes as the picture (h, w, 3) uint8 that they hold; None where there is nothing to show."""
        ...

    def mask_denoiser(self) -> MaskDenoiser:
        """The denoiser."""
        ...


class PrefixDenoiserModels(MethodModels, Protocol):
    """Method 4: a denoiser of word embeddings behind a prefix of the pooled input."""

    def encode(self, media: Sequence[Media]) -> list[Features]:
        """The encoder's features of each."""
        ...

    def prefix_denoiser(self) -> PrefixDenoiser:
        """The denoiser."""
        ...
