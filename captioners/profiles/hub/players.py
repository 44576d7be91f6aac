"""What each method is handed in the hub profile: a seat with the tokenizer and models of that method. Judges are not at this table.

A method for which nothing pretrained is there plays with the embedded weights, and its card says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from captioners.nets.coca import CocaDecoder
from captioners.nets.encoders import Features
from captioners.nets.gpt2 import Gpt2
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.nets.refit import for_few_rows
from captioners.profiles import embedded
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.codes import PictureCodes
from captioners.profiles.hub.library import Library
from captioners.profiles.hub.matchers import ClapMatcher, ClipMatcher, Remembered, load_open_clip, matcher, pixels
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.texts import TransformersClassifier, language_model
from captioners.profiles.hub.vocabularies import ClipVocabulary, Gpt2Vocabulary
from captioners.profiles.store import ASSETS, load_into, read_config
from captioners.types import Media, Modality

NEVER_WITHOUT = (
    "This CoCa was never trained without its picture: the unconditional branch sees {} instead. "
    "`train cfg --profile hub` teaches it, --checkpoint loads the result."
)


class Table:
    """What the seats share: the library, the matchers and classifiers that were asked for, and the embedded players to fall back on."""

    def __init__(self, library: Library):
        self.library = library
        self.matchers: dict[Modality, ClipMatcher | ClapMatcher] = {}

    @cached_property
    def embedded(self) -> embedded.Players:
        """The small models."""
        return embedded.profile(self.library.device).players

    def ranker(self, kind: Modality) -> ClipMatcher | ClapMatcher:
        """The matcher that methods may rank with."""
        if kind not in self.matchers:
            self.matchers[kind] = matcher(kind, "ranker", self.library)
        self.library.note(f"{kind}-ranker")
        return self.matchers[kind]


class Seat:
    """One method's place at the table."""

    profile = "hub"

    def __init__(self, table: Table):
        self.table, self.library = table, table.library

    @property
    def device(self) -> str:
        return self.library.device

    @property
    def notes(self) -> tuple[str, ...]:
        """What a card should tell."""
        return ()

    def ranker(self, kind: Modality) -> ClipMatcher | ClapMatcher:
        """The matcher that methods may rank with."""
        return self.table.ranker(kind)

    def load(self) -> None:
        """Everything that the method uses is read now."""
        self.ranker("image"), self.ranker("audio")


class CocaSeat(Seat):
    """Method 1: CoCa for pictures, GPT-2 beside it."""

    def __init__(self, table: Table):
        super().__init__(table)
        self.grids = Remembered()

    @cached_property
    def tokenizer(self) -> ClipVocabulary:
        """CoCa's vocabulary."""
        from open_clip.tokenizer import SimpleTokenizer

        return ClipVocabulary(SimpleTokenizer())

    @property
    def lm_tokenizer(self) -> Gpt2Vocabulary:
        """The language model's own."""
        return language_model("language-model", self.library)[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """That nothing taught this CoCa to do without a picture, if so."""
        _, _, null = self._coca()
        return (NEVER_WITHOUT.format(null),) if null else ()

    def start_token(self, kind: Modality) -> int:
        """CoCa's."""
        if kind != "image":
            raise ProfileError("CoCa describes pictures only: choose another method for sound, or `--profile embedded`.")
        return self.tokenizer.bos

    @torch.no_grad()
    def encode(self, media: Sequence[Media]) -> list[Features]:
        """The picture tokens (cells, width) of each, and their mean."""
        for m in media:
            self.start_token(m.kind)
        (coca, transform), _, _ = self._coca()
        found = self.grids.get(list(media), lambda some: coca.visual(pixels(transform, some, self.library))[1])
        return [Features(grid, grid.mean(0)) for grid in found]

    def caption_decoder(self) -> CocaDecoder:
        """CoCa, token by token."""
        return self._coca()[1]

    def language_model(self) -> Gpt2:
        """The LM that guides."""
        return language_model("language-model", self.library)[0]

    def load(self) -> None:
        """CoCa and GPT-2 too."""
        super().load()
        self.caption_decoder(), self.language_model()

    def _coca(self) -> tuple[tuple[Any, Any], CocaDecoder, str]:
        """The model with its picture transform, its decoder, and in words what stands for no picture ("" if it was trained)."""
        return self.library.get("captioner", self._load)

    def _load(self, path: Path, source: Source) -> tuple[tuple[Any, Any], CocaDecoder, str]:
        coca, transform = load_open_clip(path, source, self.library)
        if not hasattr(coca, "text_decoder"):
            raise ValueError("it is no CoCa.")
        if self.device == "cpu":
            for_few_rows(coca)
        trained = path / "null.safetensors"
        if trained.is_file():
            null, words = load_file(trained)["null"], ""
        elif source.blank == "zeros":
            null, words = None, "a token of zeros"
        else:
            null, words = self._mean_token(coca, transform, source.blank), "the mean picture token of a few pictures"
        return (coca, transform), self.library.ready(CocaDecoder(coca, null)), words

    @torch.no_grad()
    def _mean_token(self, coca: Any, transform: Any, folder: str) -> Tensor:
        """(width,): over the pictures of a folder, ours if none is given."""
        place = Path(folder) if folder else ASSETS / "examples"
        files = [f for kind in ("*.jpg", "*.jpeg", "*.png") for f in sorted(place.glob(kind))][:64]
        if not files:
            raise ProfileError(f'There are no pictures in {place}: give a folder that has some as blank of the captioner, or "zeros".')
        batch = torch.stack([transform(Image.open(f).convert("RGB")) for f in files]).to(self.device, self.library.dtype)
        return torch.cat([coca.visual(some)[1] for some in batch.split(16)]).float().mean((0, 1))


class Gpt2Seat(Seat):
    """Method 2: GPT-2, steered by a ranker and a classifier."""

    @property
    def tokenizer(self) -> Gpt2Vocabulary:
        """The language model's."""
        return language_model("language-model", self.library)[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """Which classifiers are the small ones."""
        missing = [role for role in ("audibility", "visibility") if not self.library.has(role)]
        return (f"No checkpoint for {' and '.join(missing)} is given: the embedded classifier guides.",) if missing else ()

    def start_token(self, kind: Modality) -> int:
        """GPT-2 has one for everything."""
        return self.tokenizer.bos

    def neutral_start(self) -> list[int]:
        """What stands before a caption: read, not said. It tells nothing of the modality."""
        return [self.tokenizer.bos, *self.tokenizer.encode("An example of")]

    def language_model(self) -> Gpt2:
        """The LM that is steered."""
        return language_model("language-model", self.library)[0]

    def classifier(self, kind: Modality) -> Any:
        """Can it be heard, or seen?"""
        role = {"audio": "audibility", "image": "visibility"}[kind]
        return TransformersClassifier(role, self.library) if self.library.has(role) else self.table.embedded.classifier(kind)

    def load(self) -> None:
        """GPT-2 and the classifiers too."""
        super().load()
        self.language_model(), self.classifier("image"), self.classifier("audio")


class EmbeddedSeat(Seat):
    """A method whose models nobody has published: the embedded ones, and a word about it."""

    def __init__(self, table: Table, part: str):
        super().__init__(table)
        self.part = part

    @property
    def notes(self) -> tuple[str, ...]:
        """That these are the small models."""
        return (f"No checkpoint for {self.part} is given: the embedded weights are used. `train {self.part} --profile hub` makes one.",)

    def ranker(self, kind: Modality) -> Any:
        """The embedded one, so that nothing need be fetched."""
        return self.table.embedded.ranker(kind)

    def load(self) -> None:
        """The embedded ones."""
        self.table.embedded.load()

    def __getattr__(self, name: str) -> Any:
        """Everything else the embedded players have."""
        if name.startswith("__") or name == "table":
            raise AttributeError(name)
        return getattr(self.table.embedded, name)


class TrainedSeat(Seat):
    """A method on a checkpoint of our own training, which describes pictures with the embedded tokenizer."""

    @property
    def tokenizer(self) -> Any:
        """The embedded one: our training uses it."""
        return self.table.embedded.tokenizer

    def start_token(self, kind: Modality) -> int:
        """The domain tag of picture captions."""
        if kind != "image":
            raise ProfileError("This checkpoint describes pictures only: leave --checkpoint out, and the embedded weights describe sound.")
        return self.tokenizer.start(kind)


class MaskSeat(TrainedSeat):
    """Method 3, on a pretrained VQ-VAE."""

    @cached_property
    def _eyes(self) -> PictureCodes:
        return PictureCodes(self.library)

    def codes(self, media: Sequence[Media]) -> list[Tensor]:
        """The discrete tokens (cells,) of each."""
        for m in media:
            self.start_token(m.kind)
        codes = self._eyes(list(media))
        self.library.note("codes")
        return codes

    def mask_denoiser(self) -> MaskDenoiser:
        """Our training's."""
        return self.library.get("mc-diffusion", lambda path, source: _own_part(self.library, path, MaskDenoiser, MaskDenoiserConfig))

    def load(self) -> None:
        """The VQ-VAE too."""
        super().load()
        _ = self._eyes, self.mask_denoiser()


class PrefixSeat(TrainedSeat):
    """Method 4, on the ranker's CLIP vectors."""

    def encode(self, media: Sequence[Media]) -> list[Features]:
        """CLIP's vector of each: the whole grid and its mean."""
        for m in media:
            self.start_token(m.kind)
        return [Features(vector[None], vector) for vector in self.ranker("image").embed_media(list(media))]

    def prefix_denoiser(self) -> PrefixDenoiser:
        """Our training's."""
        return self.library.get(
            "prefix-diffusion", lambda path, source: _own_part(self.library, path, PrefixDenoiser, PrefixDenoiserConfig)
        )

    def load(self) -> None:
        """The denoiser too."""
        super().load()
        self.prefix_denoiser()


def _own_part(library: Library, path: Path, make: Any, config: Any) -> Any:
    """A net of ours from a part's file, or from the folder that holds it."""
    file = path if path.is_file() else next(iter(sorted(path.glob("*.safetensors"))), path)
    if not file.is_file():
        raise ValueError("there are no weights in it.")
    return library.ready(load_into(make(config(**read_config(file))), file))
