"""Frozen encoders: a picture or a sound clip → a grid of feature vectors and their mean.

Both are an EfficientNet-Lite0 (timm) followed by a fixed linear projection (the principal components of its last
feature map). The picture's sees 224 × 224 pixels, the sound's a log-mel spectrogram drawn as a picture of one channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE_SIZE = 224  # pixels a side
AUDIO_RATE = 16_000  # samples a second
WINDOW_SECONDS = 5.0  # a longer clip is cut into windows of this length
FEATURE_DIM = 1280  # channels of EfficientNet-Lite0's last feature map


@dataclass(frozen=True)
class Features:
    """What an encoder says of a batch."""

    grid: Tensor  # (b, cells, c)
    pooled: Tensor  # (b, c), the mean over cells

    def __getitem__(self, rows) -> Features:
        return Features(self.grid[rows], self.pooled[rows])


class ImageEncoder(nn.Module):
    """Pixels (b, 3, 224, 224) in [0, 1] → a 7 × 7 grid."""

    grid_shape = (7, 7)

    def __init__(self, dim: int = 512):
        super().__init__()
        self.backbone = _lite0(in_chans=3)
        self.project = nn.Linear(FEATURE_DIM, dim)

    def forward(self, pixels: Tensor) -> Features:
        # the TensorFlow weights were trained on (x − 127) / 128 of 8-bit values
        x = (pixels * 255 - 127) / 128
        maps = self.backbone.forward_features(x.contiguous(memory_format=torch.channels_last))
        grid = self.project(maps.flatten(2).transpose(1, 2))
        return Features(grid, grid.mean(1))


def _lite0(in_chans: int) -> nn.Module:
    """EfficientNet-Lite0 without its classifier."""
    net = timm.create_model("tf_efficientnet_lite0", in_chans=in_chans, num_classes=0)
    return net.to(memory_format=torch.channels_last)


def image_pixels(image: Tensor) -> Tensor:
    """(h, w, 3) uint8 → (3, 224, 224) in [0, 1]: short side to 224, centre crop."""
    x = image.permute(2, 0, 1)[None].float() / 255
    h, w = x.shape[-2:]
    scale = IMAGE_SIZE / min(h, w)
    size = (max(IMAGE_SIZE, round(h * scale)), max(IMAGE_SIZE, round(w * scale)))
    x = F.interpolate(x, size=size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
    top, left = (size[0] - IMAGE_SIZE) // 2, (size[1] - IMAGE_SIZE) // 2
    return x[0, :, top : top + IMAGE_SIZE, left : left + IMAGE_SIZE]
