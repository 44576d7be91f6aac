"""The embedded profile: small models trained on public data, shipped in `assets/weights`. No network, CPU or GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.classifier import BagClassifier, BagClassifierConfig, TextClassifier, TextClassifierConfig
from captioners.nets.encoders import (
    SEEN,
    AudioEncoder,
    Features,
    ImageEncoder,
    audio_windows,
    image_pixels,
    picture_grids,
)
from captioners.nets.language_model import (
    CausalLM,
    CausalLMConfig,
    RecurrentLM,
    RecurrentLMConfig,
    sequence_log_likelihood,
)
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig
from captioners.nets.matcher import MatcherConfig, MatcherNet
from captioners.nets.painter import CodePainter, PainterConfig
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.nets.vq import VQAutoencoder, VQConfig
from captioners.profiles.base import Calibration, Profile, ProfileError
from captioners.profiles.features import Encode, FeatureStore
from captioners.profiles.store import (
    MissingPart,
    UnfitPart,
    file_hash,
    find_part,
    load_into,
    read_config,
    read_metrics,
)
from captioners.recently_used import RecentlyUsed
from captioners.resources import WEIGHTS
from captioners.run_record import record_weights
from captioners.text import CaptionTokenizer
from captioners.types import Media, Modality

Net = TypeVar("Net", bound=nn.Module)
Row = TypeVar("Row")

CHUNK = 64  # pictures whose pixels are held at once
CACHED_MEDIA = 1024  # media whose features are kept: 100 MB of pictures


class PartLoader:
    """Trained modules by part name: read on first use, frozen, kept; safe to use from several threads."""

    def __init__(self, device: str, *folders: Path):
        self.device, self.folders = device, folders or (WEIGHTS,)  # the first that has a part is asked
        self.modules: dict[str, Any] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.lock = threading.RLock()

    def get(self, part: str, build: Callable[[dict[str, Any]], Net]) -> Net:
        """The part's module, in evaluation mode and without gradients."""
        with self.lock:
            if part not in self.modules:
                path = find_part(part, *self.folders)
                self.configs[part] = read_config(path)
                module = load_into(build(dict(self.configs[part])), path)
                self.modules[part] = module.eval().requires_grad_(False).to(self.device)
            record_weights(part, self.hash(part))
            loaded: Net = self.modules[part]
            return loaded

    def hash(self, part: str) -> str:
        """A short name for the part's weights."""
        return file_hash(find_part(part, *self.folders))


class Encoder:
    """Media → grids, remembered by the media's hash, so that all who look with these parts share the work."""

    def __init__(self, loader: PartLoader, image: str = "image-encoder", audio: str = "audio-encoder"):
        self.loader, self.parts = loader, {"image": image, "audio": audio}
        self.known: RecentlyUsed[str, Tensor] = RecentlyUsed(CACHED_MEDIA)
        self.disk: FeatureStore | None = None
        self.lock = threading.RLock()

    @torch.no_grad()
    def grids(self, media: Sequence[Media]) -> list[Tensor]:
        """(cells, c) of each. Kinds may be mixed."""
        with self.lock:
            grids = {m.hash: grid for m in media if (grid := self.known.get(m.hash)) is not None}
            new = {m.hash: m for m in media if m.hash not in grids}
            encoders: dict[Modality, Encode] = {"image": self._images, "audio": self._sounds}
            for kind, encode in encoders.items():
                of_kind = [m for m in new.values() if m.kind == kind]
                if self.disk and of_kind:
                    encode = self.disk.around(
                        encode, f"{self.loader.hash(self.parts[kind])}-{SEEN[kind]}", self.loader.device
                    )
                for start in range(0, len(of_kind), CHUNK):
                    chunk = of_kind[start : start + CHUNK]
                    grids |= zip((m.hash for m in chunk), encode(chunk), strict=True)
            for m in media:
                self.known.keep(m.hash, grids[m.hash])
                record_weights(self.parts[m.kind], self.loader.hash(self.parts[m.kind]))
            return [grids[m.hash] for m in media]

    def net(self, kind: Modality) -> Any:
        """What encodes this kind of media."""
        make: Any = {"image": ImageEncoder, "audio": AudioEncoder}[kind]
        return self.loader.get(self.parts[kind], lambda config: make(**config))

    def _images(self, media: list[Media]) -> list[Tensor]:
        net = self.net("image")
        pixels = [image_pixels(torch.from_numpy(m.data), size=net.size) for m in media]
        return list(picture_grids(net, pixels, self.loader.device))

    def _sounds(self, media: list[Media]) -> list[Tensor]:
        """A long clip's windows are encoded apart and their grids averaged."""
        windows = [audio_windows(torch.from_numpy(m.data)) for m in media]
        grid = self.net("audio")(torch.cat(windows).to(self.loader.device)).grid
        return [part.mean(0) for part in grid.split([len(w) for w in windows])]


class EmbeddedMatcher:
    """One of our small CLIPs or CLAPs behind the `Matcher` protocol."""

    prompt = ""  # trained on bare captions

    def __init__(self, part: str, loader: PartLoader, encoder: Encoder, tokenizer: CaptionTokenizer):
        self.net: MatcherNet = loader.get(part, _matcher_net)
        self.name = f"{part} {loader.hash(part)} (embedded)"
        self.calibration = Calibration(**loader.configs[part]["calibration"])
        self.device, self.encoder, self.tokenizer = loader.device, encoder, tokenizer

    @torch.no_grad()
    def embed_media(self, media: list[Media]) -> Tensor:
        """(n, d), unit length."""
        return torch.cat([self.net.media(torch.stack(chunk)) for chunk in _chunks(self.encoder.grids(media), 128)])

    @torch.no_grad()
    def embed_without(self, media: Media, hidden: Tensor) -> Tensor | None:
        """One input with some cells hidden: hidden (m, cells) → (m, d)."""
        (grid,) = self.encoder.grids([media])
        if len(grid) != hidden.shape[1]:
            return None
        vectors: Tensor = self.net.media(grid.expand(len(hidden), -1, -1), ~hidden.to(grid.device))
        return vectors

    @torch.no_grad()
    def embed_text(self, texts: list[str]) -> Tensor:
        """(n, d), unit length."""
        return torch.cat(
            [
                self.net.text(self.tokenizer.batch(rows).to(self.device))
                for rows in _chunks(self.tokenizer.encode_all(texts), 128)
            ]
        )


def _matcher_net(config: dict[str, Any]) -> MatcherNet:
    return MatcherNet(MatcherConfig(**{k: v for k, v in config.items() if k not in ("calibration", "encoder")}))


def _chunks(rows: list[Row], size: int) -> list[list[Row]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


class EmbeddedFluency:
    """The LSTM behind the `FluencyJudge` protocol."""

    def __init__(self, loader: PartLoader, tokenizer: CaptionTokenizer):
        self.net: RecurrentLM = loader.get("fluency-judge", lambda config: RecurrentLM(RecurrentLMConfig(**config)))
        self.name = f"fluency-judge {loader.hash('fluency-judge')} (embedded)"
        measured = read_metrics(find_part("fluency-judge", *loader.folders))
        self.human: dict[Modality, float] = {
            "image": measured["perplexity_pictures"],
            "audio": measured["perplexity_sounds"],
        }
        self.device, self.tokenizer = loader.device, tokenizer

    @torch.no_grad()
    def log_likelihood(self, texts: list[str]) -> list[float]:
        """The log-likelihood of each text in nats, the end of the sentence included."""
        t = self.tokenizer
        nats: list[float] = []
        for rows in _chunks([[t.bos, *row, t.eos] for row in t.encode_all(texts)], 64):
            ids = t.batch(rows).to(self.device)
            nats += sequence_log_likelihood(self.net(ids[:, :-1]), ids[:, 1:], t.pad).tolist()
        return nats


class EmbeddedClassifier:
    """A text classifier behind one question."""

    def __init__(
        self, part: str, loader: PartLoader, tokenizer: CaptionTokenizer, build: Callable[[dict[str, Any]], nn.Module]
    ):
        self.net = loader.get(part, build)
        self.name = f"{part} {loader.hash(part)} (embedded)"
        self.device, self.tokenizer = loader.device, tokenizer

    @torch.no_grad()
    def probability(self, texts: list[str]) -> Tensor:
        """(n,): the probability of "yes"."""
        rows = self.tokenizer.encode_all(texts)
        return torch.cat(
            [self.net(self.tokenizer.batch(chunk).to(self.device)) for chunk in _chunks(rows, 128)]
        ).sigmoid()


class EmbeddedModels:
    """What methods may use."""

    profile = "embedded"
    notes: tuple[str, ...] = ()  # what a card should tell of these models

    def __init__(self, loader: PartLoader, encoder: Encoder, tokenizer: CaptionTokenizer):
        self.loader, self.encoder, self.tokenizer = loader, encoder, tokenizer
        self.rankers: dict[Modality, EmbeddedMatcher] = {}

    @property
    def device(self) -> str:
        return self.loader.device

    @property
    def lm_tokenizer(self) -> CaptionTokenizer:
        """The language model shares the captioners' vocabulary."""
        return self.tokenizer

    def start_token(self, kind: Modality) -> int:
        """The domain tag that captions of this modality begin with."""
        return self.tokenizer.start(kind)

    def text_start(self, kind: Modality | None) -> list[int]:
        """What stands before a caption that the language model writes alone: the end of an unseen caption, and the
        tag of the modality's own pairs or the neutral one.
        """
        return [self.tokenizer.eos, self.start_token(kind) if kind else self.tokenizer.bos]

    def encode(self, media: Sequence[Media]) -> list[Features]:
        """The encoder's word on each."""
        return [Features(grid, grid.mean(0)) for grid in self.encoder.grids(media)]

    def load(self) -> None:
        """Everything is read now."""
        for kind in ("image", "audio"):
            self.encoder.net(kind), self._vq(kind), self.ranker(kind), self.classifier(kind)
        self.caption_decoder(), self.language_model(), self.mask_denoiser(), self.prefix_denoiser()

    def keep_features(self, folder: Path) -> None:
        """Every picture and clip is encoded once for as many runs as look into this folder."""
        self.encoder.disk = FeatureStore(folder)

    def ranker(self, kind: Modality) -> EmbeddedMatcher:
        """The matcher that methods may rank with."""
        if kind not in self.rankers:
            self.rankers[kind] = EmbeddedMatcher(f"{kind}-ranker", self.loader, self.encoder, self.tokenizer)
        record_weights(f"{kind}-ranker", self.loader.hash(f"{kind}-ranker"))
        return self.rankers[kind]

    @torch.no_grad()
    def codes(self, media: Sequence[Media]) -> list[Tensor]:
        """The discrete tokens (cells,) of each."""
        nets = {kind: self._vq(kind) for kind in {m.kind for m in media}}
        return [nets[m.kind].encode(grid[None])[0] for m, grid in zip(media, self.encoder.grids(media), strict=True)]

    @torch.no_grad()
    def painted(self, media: Media) -> np.ndarray | None:
        """A picture's codes as the small picture (h, w, 3) uint8 that they hold.

        A sound's cannot be shown, nor those of a VQ-VAE of another size than the painter's.
        """
        if media.kind != "image":
            return None
        painter = self.loader.get("image-painter", lambda config: CodePainter(PainterConfig(**config)))
        if painter.config.codes != self._vq("image").config.codes:
            return None
        pixels = painter(torch.stack(self.codes([media])))[0]
        picture: np.ndarray = (pixels.permute(1, 2, 0) * 255).round().byte().cpu().numpy()
        return picture

    def _vq(self, kind: Modality) -> VQAutoencoder:
        def build(config: dict[str, Any]) -> VQAutoencoder:
            _refuse_pixels(f"{kind}-vq", config.get("pixels", 0))
            return VQAutoencoder(VQConfig(**config))

        return self.loader.get(f"{kind}-vq", build)

    def mask_denoiser(self) -> MaskDenoiser:
        """Method 3's model."""

        def build(config: dict[str, Any]) -> MaskDenoiser:
            _refuse_pixels("mc-diffusion", config.get("image_pixels", 0))
            return MaskDenoiser(MaskDenoiserConfig(**config))

        return self.loader.get("mc-diffusion", build)

    def prefix_denoiser(self) -> PrefixDenoiser:
        """Method 4's model."""
        return self.loader.get("prefix-diffusion", lambda config: PrefixDenoiser(PrefixDenoiserConfig(**config)))

    def caption_decoder(self) -> CaptionDecoder:
        """Method 1's model."""
        return self.loader.get("cfg", lambda config: CaptionDecoder(CaptionerConfig(**config)))

    def classifier(self, kind: Modality) -> EmbeddedClassifier:
        """Can it be heard, or seen? Method 2's guide."""
        part = {"audio": "audibility", "image": "visibility"}[kind]
        return EmbeddedClassifier(
            part, self.loader, self.tokenizer, lambda config: TextClassifier(TextClassifierConfig(**config))
        )

    def language_model(self) -> CausalLM:
        """The LM that guides."""
        return self.loader.get("caption-lm", lambda config: CausalLM(CausalLMConfig(**config)))


def _refuse_pixels(part: str, pixels: int) -> None:
    """Codes of pixels are for comparison in training: whoever plays method 3 has the encoder's features alone."""
    if pixels:
        raise UnfitPart(
            f"The checkpoint's {part} was trained on codes of pixels, and method 3 is played with codes of features: "
            "give one whose image-vq was trained without `--set pixels`."
        )


class EmbeddedJudges:
    """What only ever scores."""

    def __init__(self, loader: PartLoader, encoder: Encoder, tokenizer: CaptionTokenizer):
        self.loader, self.encoder, self.tokenizer = loader, encoder, tokenizer
        self.matchers: dict[Modality, EmbeddedMatcher] = {}

    def matcher(self, kind: Modality) -> EmbeddedMatcher:
        """CLIPScore's encoder, or its twin for sound."""
        if kind not in self.matchers:
            self.matchers[kind] = EmbeddedMatcher(f"{kind}-judge", self.loader, self.encoder, self.tokenizer)
        return self.matchers[kind]

    def load(self) -> None:
        """The encoders that they look and listen with are read now."""
        self.encoder.net("image"), self.encoder.net("audio")

    def keep_features(self, folder: Path) -> None:
        """As the methods' models do."""
        self.encoder.disk = FeatureStore(folder)

    def fluency(self) -> EmbeddedFluency:
        """Perplexity's language model."""
        return EmbeddedFluency(self.loader, self.tokenizer)

    def audibility(self) -> EmbeddedClassifier:
        """The share of audible captions."""
        return EmbeddedClassifier(
            "audibility-judge", self.loader, self.tokenizer, lambda config: BagClassifier(BagClassifierConfig(**config))
        )

    def texts(self) -> None:
        """There is no text encoder among the embedded models."""


def profile(device: str, checkpoints: Sequence[str] = ()) -> Profile:
    """The methods' models and the judges, with loaders of their own. The judge of pictures looks with the encoder that
    its header names.

    The models look for a part among `checkpoints` first, the last one before the others. Judges are always the shipped
    ones, so that scores can be compared.
    """
    folders = (*map(_trained, reversed(checkpoints)), WEIGHTS)
    loader, tokenizer = PartLoader(device, *folders), _tokenizer(*folders)
    models = EmbeddedModels(loader, Encoder(loader), tokenizer)
    shipped = PartLoader(device)
    looks = read_config(find_part("image-judge", WEIGHTS)).get("encoder", "image-encoder")
    shared = looks == "image-encoder" and not checkpoints  # then a picture is encoded once for both sides
    encoder = models.encoder if shared else Encoder(shipped, image=looks)
    judges = EmbeddedJudges(shipped, encoder, _tokenizer(WEIGHTS))

    def load() -> None:
        models.load()
        judges.load()

    return Profile("embedded", models, judges, load=load)


def _tokenizer(*folders: Path) -> CaptionTokenizer:
    """The tokenizer of the first folder that has one."""
    path = next((f / "tokenizer.json" for f in folders if (f / "tokenizer.json").exists()), None)
    if path is None:
        raise MissingPart(f"There is no {folders[-1] / 'tokenizer.json'}: run `python -m captioners train tokenizer`.")
    return CaptionTokenizer(Tokenizer.from_file(str(path)))


def _trained(checkpoint: str) -> Path:
    """The folder that `train` wrote parts into."""
    if not any(Path(checkpoint).glob("*.safetensors")):
        raise ProfileError(
            f"{checkpoint} holds no weights: give a folder that `python -m captioners train PART --out` wrote."
        )
    return Path(checkpoint)
