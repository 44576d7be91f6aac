"""A VQ-VAE over pixels, which is what method 3's paper looks through: convolutions make a cell of every 8 × 8 pixels,
and pixels of the cells' codes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captioners.nets.vq import Quantiser, VQConfig

HALVINGS = 3
CELL = 2**HALVINGS  # pixels a side
MEAN, SPREAD = 115.0, 70.0  # of the bytes of photographs: what the net sees has a variance of about one
GROUPS = 4  # of channels that are normalised together


class Residual(nn.Module):
    """Each cell hears from the eight around it, added to what it was: (b, width, rows, rows)."""

    def __init__(self, width: int):
        super().__init__()
        self.change = nn.Sequential(
            nn.GroupNorm(GROUPS, width),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = x + self.change(x)
        return changed


class FromPixels(nn.Module):
    """Pixels (b, 3, side, side) in 0 … 255 → vectors (b, cells, dim)."""

    def __init__(self, config: VQConfig):
        super().__init__()
        layers: list[nn.Module] = []
        channels, wider = 3, config.width
        for _ in range(HALVINGS):
            layers += [nn.Conv2d(channels, wider, 4, stride=2, padding=1), nn.GELU()]
            channels, wider = wider, 2 * wider
        layers[-1] = Residual(channels)  # which begins with a norm and a GELU
        self.layers = nn.Sequential(*layers, nn.Conv2d(channels, config.dim, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        x = ((pixels - MEAN) / SPREAD).contiguous(memory_format=torch.channels_last)
        cells: Tensor = self.layers(x).flatten(2).transpose(1, 2)
        return cells


class ToPixels(nn.Module):
    """Vectors (b, cells, dim) → normalised pixels (b, side · side, 3)."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.rows = config.pixels // CELL
        channels = config.width * 2 ** (HALVINGS - 1)
        layers: list[nn.Module] = [nn.Conv2d(config.dim, channels, 1), Residual(channels)]
        for _ in range(HALVINGS - 1):
            layers += [nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1), nn.GELU()]
            channels //= 2
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, stride=2, padding=1))

    def forward(self, cells: Tensor) -> Tensor:
        pixels: Tensor = self.layers(cells.transpose(1, 2).unflatten(2, (self.rows, self.rows)))
        return pixels.flatten(2).transpose(1, 2)


class PixelVQAutoencoder(Quantiser):
    """Squared pictures (b, 3, side, side), bytes as floats, ↔ codes (b, cells)."""

    def __init__(self, config: VQConfig):
        super().__init__(config, FromPixels(config), ToPixels(config))

    def target(self, media: Tensor) -> Tensor:
        """The pixels one behind the other, normalised: (b, side · side, 3)."""
        return ((media - MEAN) / SPREAD).flatten(2).transpose(1, 2)
