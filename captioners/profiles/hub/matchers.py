"""CLIP (open_clip) and CLAP (transformers) behind the `Matcher` protocol, as rankers and as judges."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchaudio.functional as AF
from PIL import Image
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from captioners.contract import Calibration
from captioners.media import load_media
from captioners.nets.clip_text import embed_text
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.vocabularies import with_words
from captioners.recently_used import RecentlyUsed
from captioners.resources import EXAMPLES
from captioners.types import Media, Modality

# what is heard in our examples: how far apart right and wrong captions lie on a CLAP's own scale is measured on them
HEARD = {
    "rooster": "a rooster crows",
    "crickets": "crickets chirp at night",
    "baby": "a baby cries",
    "bell": "church bells ring",
    "guitar": "somebody plays a guitar",
    "party": "people talk and laugh at a party",
}
SCALE = 2.5  # of CLIPScore
NEAREST = 0.05  # a smaller distance between right and wrong captions is no scale

CLIP_PROMPT = "A photo depicts "  # CLIPScore's own (arXiv 2104.08718)
CACHED_MEDIA = 1024
BATCH = 64


class MediaCache:
    """Vectors of media by their hash, those used last kept."""

    def __init__(self) -> None:
        self.known: RecentlyUsed[str, Tensor] = RecentlyUsed(CACHED_MEDIA)

    def get(self, media: list[Media], make: Callable[[list[Media]], Tensor]) -> Tensor:
        """One row for each; `make` is asked for those not known."""
        vectors = {m.hash: vector for m in media if (vector := self.known.get(m.hash)) is not None}
        new = list({m.hash: m for m in media if m.hash not in vectors}.values())
        for start in range(0, len(new), BATCH):
            batch = new[start : start + BATCH]
            vectors |= zip((m.hash for m in batch), make(batch), strict=True)
        for m in media:
            self.known.keep(m.hash, vectors[m.hash])
        return torch.stack([vectors[m.hash] for m in media])


class SkipWeightInit(TorchFunctionMode):
    """Weights that are about to be read are not drawn at random first, which takes longer than reading them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named_args = kwargs or {}
        if func in (Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_):
            return args[0] if args else named_args["tensor"]
        return func(*args, **named_args)


def load_open_clip(path: Path, source: Source, loader: ModelLoader) -> tuple[Any, Any]:
    """A model of open_clip and its picture transform, from a folder with its configuration or with weights of a
    known architecture.
    """
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2

    # its own "fp16" halves some of a CoCa's weights and leaves others whole, on which it then fails
    precision = "pure_fp16" if loader.dtype == torch.float16 else "fp32"
    name, pretrained = f"local-dir:{path}", None
    if not (path / "open_clip_config.json").is_file():
        files = [f for kind in ("*.safetensors", "*.bin", "*.pt") for f in sorted(path.glob(kind))]
        if not files:
            raise ValueError("the folder holds no weights.")
        name, pretrained = source.architecture, str(files[0])
    with SkipWeightInit():
        model = open_clip.create_model(name, pretrained=pretrained, precision=precision, require_pretrained=True)
    return loader.ready(model), image_transform_v2(PreprocessCfg(**model.visual.preprocess_cfg), is_train=False)


def pixels(transform: Any, media: list[Media], loader: ModelLoader) -> Tensor:
    """(n, 3, side, side), as a model's own transform makes them."""
    return torch.stack([transform(Image.fromarray(m.data)) for m in media]).to(loader.device, loader.dtype)


def processed(processor: Any, media: list[Media], loader: ModelLoader) -> Tensor:
    """The same by an image processor of transformers."""
    inputs = processor([Image.fromarray(m.data) for m in media], return_tensors="pt")
    values: Tensor = inputs["pixel_values"]
    return values.to(loader.device, loader.dtype)


class ClipMatcher:
    """Pictures and text in CLIP's space."""

    calibration = None
    prompt = CLIP_PROMPT

    def __init__(self, role: str, loader: ModelLoader):
        from open_clip.tokenizer import SimpleTokenizer

        self.loader = loader
        self.net, self.transform = loader.get(role, lambda path, source: load_open_clip(path, source, loader))
        self.name = f"CLIP {loader.names[role]}"
        self.tokenizer = SimpleTokenizer(context_length=self.net.context_length)
        self.pictures = MediaCache()

    @torch.no_grad()
    def embed_media(self, media: list[Media]) -> Tensor:
        """Vectors (n, d) of unit length."""
        return self.pictures.get(
            media,
            lambda batch: self.net.encode_image(pixels(self.transform, batch, self.loader), normalize=True).float(),
        )

    @torch.no_grad()
    def embed_text(self, texts: list[str]) -> Tensor:
        """Vectors (n, d) of unit length."""
        ids = self.tokenizer(texts).to(self.loader.device)
        return torch.cat([embed_text(self.net, batch).float() for batch in ids.split(4 * BATCH)])


class ClapMatcher:
    """Sound and text in CLAP's space.

    A long clip's windows are embedded apart and averaged, so that nothing is left to a random crop.
    """

    prompt = ""

    def __init__(self, role: str, loader: ModelLoader):
        self.loader, self.role = loader, role
        self.net, self.processor = loader.get(role, self._load)
        self.name = f"CLAP {loader.names[role]}"
        self.sounds = MediaCache()

    def _load(self, path: Path, source: Source) -> tuple[Any, Any]:
        from transformers import ClapModel, ClapProcessor

        processor = ClapProcessor.from_pretrained(path)
        with_words(processor.tokenizer)
        return self.loader.ready(ClapModel.from_pretrained(path, dtype=self.loader.dtype)), processor

    @cached_property
    def calibration(self) -> Calibration | None:
        """Of a ranker, for method 2's temperature: our examples with their own captions and with each other's.

        A judge shows none.
        """
        if not self.role.endswith("-ranker"):
            return None
        sounds = self.embed_media([load_media(EXAMPLES / f"{name}.ogg", "audio") for name in HEARD])
        scores = SCALE * (sounds @ self.embed_text(list(HEARD.values())).T).clamp(min=0)
        right = scores.diagonal().mean().item()
        wrong = (scores.sum() - scores.diagonal().sum()).item() / (len(scores) * (len(scores) - 1))
        return Calibration(wrong, right) if right - wrong > NEAREST else None

    @torch.no_grad()
    def embed_media(self, media: list[Media]) -> Tensor:
        """Vectors (n, d) of unit length."""
        return self.sounds.get(media, lambda batch: torch.stack([self._sound(m) for m in batch]))

    def _sound(self, media: Media) -> Tensor:
        features = self.processor.feature_extractor
        data, rate = media.widest
        samples = AF.resample(torch.from_numpy(data), rate, features.sampling_rate)
        windows = [
            w.numpy()
            for w in samples.split(features.nb_max_samples)
            if len(w) >= features.sampling_rate or len(w) == len(samples)
        ]
        inputs = features(windows, sampling_rate=features.sampling_rate, return_tensors="pt")
        device, dtype = self.loader.device, self.loader.dtype
        kept = {k: v.to(device, dtype) if v.is_floating_point() else v.to(device) for k, v in inputs.items()}
        vectors = F.normalize(_vector(self.net.get_audio_features(**kept)), dim=-1)
        return F.normalize(vectors.mean(0), dim=-1)

    @torch.no_grad()
    def embed_text(self, texts: list[str]) -> Tensor:
        """Vectors (n, d) of unit length."""
        vectors = []
        for start in range(0, len(texts), 4 * BATCH):
            inputs = self.processor.tokenizer(
                texts[start : start + 4 * BATCH], padding=True, truncation=True, return_tensors="pt"
            )
            inputs = {k: v.to(self.loader.device) for k, v in inputs.items() if k in ("input_ids", "attention_mask")}
            vectors.append(F.normalize(_vector(self.net.get_text_features(**inputs)), dim=-1))
        return torch.cat(vectors)


def _vector(features: Any) -> Tensor:
    """transformers 5 gives an output object where 4 gave the projected vectors."""
    return (features if isinstance(features, Tensor) else features.pooler_output).float()


def matcher(kind: Modality, role: str, loader: ModelLoader) -> ClipMatcher | ClapMatcher:
    """The matcher of a kind of media in one of its roles."""
    return (ClipMatcher if kind == "image" else ClapMatcher)(f"{kind}-{role}", loader)
