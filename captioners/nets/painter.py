"""A picture from discrete codes: it shows what a VQ-VAE's codes of a feature grid hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class PainterConfig:
    """The size of the painter."""

    codes: int = 2048
    rows: int = 7  # of the square grid that the cells stand in
    width: int = 256  # channels at the size of the grid, halved whenever the side is doubled
    doublings: int = 3  # 7 × 7 cells → 56 × 56 pixels

    @property
    def side(self) -> int:
        """Pixels a side."""
        return self.rows << self.doublings


class CodePainter(nn.Module):
    """Codes (b, cells) → pixels (b, 3, side, side) in [0, 1]."""

    def __init__(self, config: PainterConfig):
        super().__init__()
        self.config = config
        self.cells = nn.Embedding(config.codes, config.width)
        layers: list[nn.Module] = [nn.Conv2d(config.width, config.width, 3, padding=1), nn.GELU()]
        width = config.width
        for _ in range(config.doublings):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width // 2, 3, padding=1), nn.GELU()]
            width //= 2
        self.paint = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, codes: Tensor) -> Tensor:
        grid = self.cells(codes).transpose(1, 2).unflatten(2, (self.config.rows, -1))
        pixels: Tensor = torch.sigmoid(self.paint(grid.contiguous(memory_format=torch.channels_last)))
        return pixels
