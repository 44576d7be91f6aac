"""What each method is handed in the hub profile: the tokenizer and models of that method. Judges are not among them.

A method for which nothing pretrained is there uses the embedded weights, and its card says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captioners.contract import ConditionalDecoder
from captioners.nets.encoders import Features
from captioners.nets.gpt2 import Gpt2
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.profiles import embedded
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.codes import PictureCodes
from captioners.profiles.hub.families import CaptionModel, load_captioner
from captioners.profiles.hub.matchers import ClapMatcher, ClipMatcher, MediaCache, matcher
from captioners.profiles.hub.model_loader import ModelLoader, Net
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.texts import TransformersClassifier, language_model
from captioners.profiles.hub.vocabularies import Gpt2Vocabulary, Vocabulary
from captioners.profiles.store import load_into, read_config
from captioners.types import Media, Modality

NEVER_WITHOUT = (
    "This captioner was never trained without its input: the unconditional branch sees {} instead. "
    "`train cfg --profile hub` teaches a CoCa, --checkpoint loads the result."
)


NO_CHECKPOINT = "No checkpoint for {0} is given: the embedded weights are used. `train {0} --profile hub` makes one."
PICTURES_ONLY = "The checkpoint for {0} describes pictures only: the embedded weights are used for sound."
NO_SOUND = "No audio-captioner is named: the embedded weights are used for sound. --models FILE names one."


class SharedModels:
    """What the methods' models share: the loader, the matchers that were asked for, and the embedded models to fall
    back on.
    """

    def __init__(self, loader: ModelLoader, profile: str = "hub"):
        self.loader, self.profile = loader, profile
        self.matchers: dict[Modality, ClipMatcher | ClapMatcher] = {}

    @cached_property
    def embedded(self) -> Any:
        """The small models."""
        return embedded.profile(self.loader.device).models

    def ranker(self, kind: Modality) -> ClipMatcher | ClapMatcher:
        """The matcher that methods may rank with."""
        if kind not in self.matchers:
            self.matchers[kind] = matcher(kind, "ranker", self.loader)
        self.loader.note(f"{kind}-ranker")
        return self.matchers[kind]


class HubModels:
    """The models of one method."""

    def __init__(self, shared: SharedModels):
        self.shared, self.loader = shared, shared.loader

    @property
    def notes(self) -> tuple[str, ...]:
        """What a card should tell."""
        return ()

    @property
    def profile(self) -> str:
        """The name of the profile."""
        return self.shared.profile

    @property
    def device(self) -> str:
        return self.loader.device

    def ranker(self, kind: Modality) -> ClipMatcher | ClapMatcher:
        """The matcher that methods may rank with."""
        return self.shared.ranker(kind)

    def load(self) -> None:
        """Everything that the method uses is read now."""
        self.ranker("image"), self.ranker("audio")


class CaptionerFamilyModels(HubModels):
    """Method 1: a captioner of any family, GPT-2 beside it."""

    def __init__(self, shared: SharedModels, role: str = "captioner"):
        super().__init__(shared)
        self.role = role
        self.grids = MediaCache()

    @property
    def model(self) -> CaptionModel:
        """The captioner."""
        return self.loader.get(self.role, lambda path, source: load_captioner(path, source, self.loader))

    @property
    def tokenizer(self) -> Vocabulary:
        """The captioner's vocabulary."""
        return self.model.vocabulary

    @property
    def lm_tokenizer(self) -> Gpt2Vocabulary:
        """The language model's own."""
        return language_model("language-model", self.loader)[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """That nothing taught this captioner to do without an input, if so."""
        instead = self.model.no_input.words
        return (NEVER_WITHOUT.format(instead),) if instead else ()

    @cached_property
    def _for_sound(self) -> HubModels:
        named = self.loader.has("audio-captioner")
        return (
            CaptionerFamilyModels(self.shared, "audio-captioner")
            if named
            else FallbackModels(self.shared, "cfg", NO_SOUND)
        )

    def for_kind(self, kind: Modality) -> HubModels:
        """Sound has a captioner of its own, or the embedded one."""
        return self._for_sound if kind == "audio" and self.role == "captioner" else self

    def start_token(self, kind: Modality) -> int:
        """The captioner's."""
        if kind != self.model.kind:
            does = {"image": "pictures", "audio": "sound"}[self.model.kind]
            raise ProfileError(f"The {self.role} describes {does} only: name one for the other with --models FILE.")
        return self.tokenizer.bos

    @torch.no_grad()
    def encode(self, media: Sequence[Media]) -> list[Features]:
        """The cells (cells, width) of each, and their mean."""
        for m in media:
            self.start_token(m.kind)
        grids = self.grids.get(list(media), self.model.grids)
        return [Features(grid, grid.mean(0)) for grid in grids]

    def caption_decoder(self) -> ConditionalDecoder:
        """The captioner, token by token."""
        decoder: ConditionalDecoder = self.model.decoder
        return decoder

    def language_model(self) -> Gpt2:
        """The LM that guides."""
        return language_model("language-model", self.loader)[0]

    def load(self) -> None:
        """The captioner and GPT-2 too."""
        super().load()
        self.caption_decoder(), self.language_model()
        if self.role == "captioner":
            self._for_sound.load()


class Gpt2Models(HubModels):
    """Method 2: GPT-2, steered by a ranker and a classifier."""

    @property
    def tokenizer(self) -> Gpt2Vocabulary:
        """The language model's."""
        return language_model("language-model", self.loader)[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """Which classifiers are the small ones."""
        missing = [role for role in ("audibility", "visibility") if not self.loader.has(role)]
        return (
            (f"No checkpoint for {' and '.join(missing)} is given: the embedded classifier guides.",) if missing else ()
        )

    def start_token(self, kind: Modality) -> int:
        """GPT-2 has one for everything."""
        return self.tokenizer.bos

    def text_start(self, kind: Modality | None) -> list[int]:
        """What stands before a caption: read, not said. GPT-2 has no token for a modality: it is never told."""
        return [self.tokenizer.bos, *self.tokenizer.encode("An example of")]

    def language_model(self) -> Gpt2:
        """The LM that is steered."""
        return language_model("language-model", self.loader)[0]

    def classifier(self, kind: Modality) -> Any:
        """Can it be heard, or seen?"""
        role = {"audio": "audibility", "image": "visibility"}[kind]
        return (
            TransformersClassifier(role, self.loader)
            if self.loader.has(role)
            else self.shared.embedded.classifier(kind)
        )

    def load(self) -> None:
        """GPT-2 and the classifiers too, and the ranker's scale for sound, which a loan would measure and forget."""
        super().load()
        self.language_model(), self.classifier("image"), self.classifier("audio")
        _ = self.ranker("audio").calibration


class FallbackModels(HubModels):
    """A method whose models nobody has published: the embedded ones, and a word about it."""

    def __init__(self, shared: SharedModels, part: str, note: str = NO_CHECKPOINT):
        super().__init__(shared)
        self._note = note.format(part)  # that these are the small models

    @property
    def notes(self) -> tuple[str, ...]:
        """That these are the small models."""
        return (self._note,)

    def ranker(self, kind: Modality) -> Any:
        """The embedded one, so that nothing need be fetched."""
        return self.shared.embedded.ranker(kind)

    def load(self) -> None:
        """The embedded ones."""
        self.shared.embedded.load()

    def __getattr__(self, name: str) -> Any:
        """Everything else that the embedded models have."""
        if name.startswith("__") or name == "shared":
            raise AttributeError(name)
        return getattr(self.shared.embedded, name)


class TrainedModels(HubModels):
    """A method on a checkpoint of our own training, which describes pictures with the embedded tokenizer."""

    def __init__(self, shared: SharedModels, part: str):
        super().__init__(shared)
        self.for_sound = FallbackModels(shared, part, PICTURES_ONLY)

    def for_kind(self, kind: Modality) -> HubModels:
        """The embedded weights describe sound."""
        return self if kind == "image" else self.for_sound

    @property
    def tokenizer(self) -> Any:
        """The embedded one: our training uses it."""
        return self.shared.embedded.tokenizer

    def start_token(self, kind: Modality) -> int:
        """The domain tag of picture captions."""
        return int(self.tokenizer.start(kind))


class MaskCheckpointModels(TrainedModels):
    """Method 3, on a pretrained VQ-VAE."""

    @cached_property
    def _eyes(self) -> PictureCodes:
        return PictureCodes(self.loader)

    def codes(self, media: Sequence[Media]) -> list[Tensor]:
        """The discrete tokens (cells,) of each."""
        codes = self._eyes(list(media))
        self.loader.note("codes")
        return codes

    def painted(self, media: Media) -> np.ndarray | None:
        """What the VQ-VAE's own decoder makes of a picture's codes."""
        return self._eyes.painted(media) if media.kind == "image" else None

    def mask_denoiser(self) -> MaskDenoiser:
        """Our training's."""
        return self.loader.get(
            "mc-diffusion", lambda path, source: _own_part(self.loader, path, MaskDenoiser, MaskDenoiserConfig)
        )

    def load(self) -> None:
        """The VQ-VAE too."""
        super().load()
        self.for_sound.load()
        _ = self._eyes, self.mask_denoiser()


class PrefixCheckpointModels(TrainedModels):
    """Method 4, on the ranker's CLIP vectors."""

    def encode(self, media: Sequence[Media]) -> list[Features]:
        """CLIP's vector of each: the whole grid and its mean."""
        return [Features(vector[None], vector) for vector in self.ranker("image").embed_media(list(media))]

    def prefix_denoiser(self) -> PrefixDenoiser:
        """Our training's, whose prefix is made of one vector."""

        def load(path: Path, source: Source) -> PrefixDenoiser:
            net = _own_part(self.loader, path, PrefixDenoiser, PrefixDenoiserConfig)
            if net.config.regions > 1:
                raise ValueError(f"its prefix is made of {net.config.regions} regions, and CLIP gives one vector.")
            return net

        return self.loader.get("prefix-diffusion", load)

    def load(self) -> None:
        """The denoiser too."""
        super().load()
        self.for_sound.load()
        self.prefix_denoiser()


def _own_part(loader: ModelLoader, path: Path, make: Callable[[Any], Net], config: Any) -> Net:
    """A net of ours from a part's file, or from the folder that holds it."""
    file = path if path.is_file() else next(iter(sorted(path.glob("*.safetensors"))), path)
    if not file.is_file():
        raise ValueError("there are no weights in it.")
    net = make(config(**read_config(file)))
    load_into(net, file)
    return loader.ready(net)
