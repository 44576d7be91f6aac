"""A pretrained VQ-VAE (diffusers' `VQModel`) as method 3's eyes: a picture becomes a grid of discrete tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captioners.nets.encoders import square_pixels
from captioners.profiles.hub.matchers import MediaCache
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.types import Media

SIDE = 256  # pixels a side where the model does not say


class PictureCodes:
    """Pictures → codes (cells,) of a `VQModel`'s codebook.

    In full precision on every device: a code is the nearest of thousands, and a method trained on these codes should
    see no others.
    """

    def __init__(self, loader: ModelLoader):
        self.loader = loader
        self.net = loader.get("codes", self._load)
        self.count: int = self.net.config.num_vq_embeddings
        self.known = MediaCache()

    def _load(self, path: Path, source: Source) -> Any:
        from diffusers import VQModel

        return self.loader.ready(VQModel.from_pretrained(path, torch_dtype=torch.float32))

    @property
    def side(self) -> int:
        """Rows and columns of the grid."""
        return int(self._pixels // 2 ** (len(self.net.config.block_out_channels) - 1))

    @property
    def _pixels(self) -> int:
        size: int = self.net.config.sample_size
        # 32 is what configurations say that never set it
        return SIDE if size == 32 and self.net.config.num_vq_embeddings > 1024 else size

    @torch.no_grad()
    def __call__(self, media: list[Media]) -> list[Tensor]:
        """The codes of each, (cells,) int64, row by row."""
        return list(self.known.get(media, self._encode))

    @torch.no_grad()
    def painted(self, media: Media) -> np.ndarray:
        """The picture (h, w, 3) uint8 that the model's own decoder makes of a picture's codes."""
        shape = (1, self.side, self.side, self.net.config.vq_embed_dim)
        latents = self.net.quantize.get_codebook_entry(self([media])[0].to(self.loader.device), shape)
        pixels = self.net.decode(latents, force_not_quantize=True).sample[0]
        picture: np.ndarray = ((pixels.permute(1, 2, 0) / 2 + 0.5).clamp(0, 1) * 255).round().byte().cpu().numpy()
        return picture

    def _encode(self, media: list[Media]) -> Tensor:
        pixels = torch.stack([square_pixels(torch.from_numpy(m.data), self._pixels) for m in media])
        latents = self.net.encode(pixels.to(self.loader.device) * 2 - 1).latents
        codes: Tensor = self.net.quantize(latents)[2][2]
        return codes.view(len(media), -1).long()
