"""Frozen encoders: a picture or a sound clip → a grid of feature vectors and their mean.

All are an EfficientNet-Lite (timm) followed by a linear projection of its last feature map. The picture's sees the
whole picture in its own proportions, the sound's a log-mel spectrogram drawn as a picture of one channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import timm
import torch
import torch.nn.functional as F
import torchaudio.functional as AF
from torch import Tensor, nn

from captioners.nets.regions import GRIDS

if TYPE_CHECKING:
    from timm.models import EfficientNet

IMAGE_SIZE = 224  # pixels of a picture's shorter side, where an encoder does not say otherwise
LONGEST = 2  # times the shorter side: a longer picture is squeezed
STRIDE = 32  # pixels a side of a cell of the last feature map
BATCH = 8  # pictures that are encoded at once
AUDIO_RATE = 16_000  # samples a second
HOP = 256  # samples between two columns of the spectrogram: 16 ms
FRAMES = 320  # columns of one window
WINDOW = HOP * FRAMES  # samples of one window, 5.12 s; a longer clip is cut into windows, a shorter one zero-padded
MELS = 64
# what an encoder is shown of an input; features that are kept on disk say so
SEEN = {"image": "whole", "audio": "windows"}
FEATURE_DIM = 1280  # channels of an EfficientNet-Lite's last feature map
STEM_STAGES = 4  # the first stages, which stay ImageNet's; their maps have twice the last map's rows and columns
LITE0, LITE2 = "tf_efficientnet_lite0", "tf_efficientnet_lite2"


@dataclass(frozen=True)
class Features:
    """What an encoder says of a batch."""

    grid: Tensor  # (b, cells, c)
    pooled: Tensor  # (b, c), the mean over cells


class ImageEncoder(nn.Module):
    """Pixels (b, 3, h, w) in [0, 1] → a 7 × 7 grid over the whole of them."""

    grid_shape = GRIDS["image"]

    def __init__(self, dim: int = 512, backbone: str = LITE0, size: int = IMAGE_SIZE):
        super().__init__()
        self.size = size  # pixels of a picture's shorter side
        self.backbone = _backbone(backbone, in_chans=3)
        self.project = nn.Linear(FEATURE_DIM, dim)

    def forward(self, pixels: Tensor) -> Features:
        return self.features(self.upper(self.stem(pixels)))

    def stem(self, pixels: Tensor) -> Tensor:
        """The first stages: (b, 3, h, w) → (b, c, h / 16, w / 16)."""
        x = (pixels * 255 - 127) / 128  # the TensorFlow weights were trained on this of 8-bit values
        x = self.backbone.conv_stem(x.contiguous(memory_format=torch.channels_last))
        maps: Tensor = self.backbone.blocks[:STEM_STAGES](self.backbone.bn1(x))
        return maps

    def upper(self, maps: Tensor) -> Tensor:
        """The other stages: (b, c, h / 16, w / 16) → (b, FEATURE_DIM, h / 32, w / 32)."""
        last: Tensor = self.backbone.bn2(self.backbone.conv_head(self.backbone.blocks[STEM_STAGES:](maps)))
        return last

    def features(self, maps: Tensor) -> Features:
        """The last maps (b, FEATURE_DIM, rows, columns) as a grid of one shape."""
        grid = self.project(F.adaptive_avg_pool2d(maps, self.grid_shape).flatten(2).transpose(1, 2))
        return Features(grid, grid.mean(1))


class AudioEncoder(nn.Module):
    """Samples (b, WINDOW) at 16 kHz → a grid of 2 frequency bands × 10 half-seconds."""

    grid_shape = GRIDS["audio"]
    bank: Tensor  # (257, MELS)
    hann: Tensor

    def __init__(self, dim: int = 512):
        super().__init__()
        self.backbone = _backbone(LITE0, in_chans=1)
        self.project = nn.Linear(FEATURE_DIM, dim)
        bank = AF.melscale_fbanks(257, 50.0, AUDIO_RATE / 2, MELS, AUDIO_RATE, norm=None, mel_scale="htk")
        self.register_buffer("bank", bank, persistent=False)
        self.register_buffer("hann", torch.hann_window(512), persistent=False)

    def log_mel(self, samples: Tensor) -> Tensor:
        """(b, WINDOW) → (b, 1, MELS, FRAMES), about zero mean and unit variance, whatever the clip's loudness."""
        loudness = samples.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-4)
        spectrum = torch.stft(samples / loudness, 512, HOP, window=self.hann, center=True, return_complex=True)
        power = spectrum.abs().square()[..., :FRAMES].transpose(1, 2) @ self.bank  # (b, FRAMES, MELS)
        return ((power + 1e-2).log10().transpose(1, 2)[:, None] - 1.0) / 1.5

    def maps(self, spectrogram: Tensor) -> Tensor:
        """(b, 1, MELS, FRAMES) → (b, FEATURE_DIM, 2, 10)."""
        maps: Tensor = self.backbone.forward_features(spectrogram.contiguous(memory_format=torch.channels_last))
        return maps

    def forward(self, samples: Tensor) -> Features:
        grid = self.project(self.maps(self.log_mel(samples)).flatten(2).transpose(1, 2))
        return Features(grid, grid.mean(1))


@torch.no_grad()
def picture_grids(encoder: ImageEncoder, pixels: Sequence[Tensor], device: str = "cpu") -> Tensor:
    """Pictures of any shapes, each (3, h, w) → (n, cells, c); those of one shape go through the encoder together."""
    grids: dict[int, Tensor] = {}
    for shape in dict.fromkeys(p.shape for p in pixels):
        places = [i for i, p in enumerate(pixels) if p.shape == shape]
        for start in range(0, len(places), BATCH):
            batch = places[start : start + BATCH]
            grids |= zip(batch, encoder(torch.stack([pixels[i] for i in batch]).to(device)).grid, strict=True)
    return torch.stack([grids[i] for i in range(len(pixels))])


def audio_windows(samples: Tensor) -> Tensor:
    """(n,) of any length → (windows, WINDOW): zero-padded; a rest shorter than a second joins no window of its own."""
    full, rest = divmod(len(samples), WINDOW)
    count = max(1, full + (rest >= AUDIO_RATE))
    return F.pad(samples[: count * WINDOW], (0, max(0, count * WINDOW - len(samples)))).view(count, WINDOW)


def _backbone(name: str, in_chans: int) -> EfficientNet:
    """An EfficientNet-Lite without its classifier."""
    net = timm.create_model(name, in_chans=in_chans, num_classes=0)
    return net.to(memory_format=torch.channels_last)


def image_pixels(image: Tensor, ratio: float | None = None, size: int = IMAGE_SIZE) -> Tensor:
    """(h, w, 3) uint8 → (3, h, w) in [0, 1]: the whole picture, its shorter side `size` pixels, the other a multiple of
    32 up to twice as many.

    `ratio`, width by height, is told where the picture was squeezed into another shape.
    """
    sides: Sequence[float] = image.shape[:2] if ratio is None else (1.0, ratio)
    scale = size / min(sides)
    return _scaled(image, *(min(LONGEST * size, max(size, round(side * scale / STRIDE) * STRIDE)) for side in sides))


def square_pixels(image: Tensor, size: int = IMAGE_SIZE) -> Tensor:
    """(h, w, 3) uint8 → (3, size, size) in [0, 1]: the square in the middle, scaled."""
    h, w = image.shape[:2]
    side = min(h, w)
    top, left = (h - side) // 2, (w - side) // 2
    return _scaled(image[top : top + side, left : left + side], size, size)


def _scaled(image: Tensor, height: int, width: int) -> Tensor:
    x = image.permute(2, 0, 1)[None].float() / 255
    if x.shape[2:] != (height, width):
        x = F.interpolate(x, size=(height, width), mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
    return x[0]
