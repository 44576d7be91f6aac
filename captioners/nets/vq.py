"""A vector-quantised autoencoder over a frozen encoder's grid (arXiv 1711.00937): it turns a picture or a sound into
discrete tokens.

An encoder makes a short vector of each cell and its neighbours, the nearest of `codes` codebook vectors takes its
place, and a decoder gives the cells' features back. The codebook follows its cells by exponential moving averages;
codes that nobody uses are restarted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class VQConfig:
    """The size of the autoencoder."""

    codes: int = 1024
    dim: int = 64  # of a codebook vector
    hidden: int = (
        0  # of encoder and decoder, whose cells then hear from their neighbours; 0: one layer, each cell alone
    )
    media_dim: int = 512
    rows: int = 7  # of the grid that the cells stand in
    decay: float = 0.99  # of the moving averages
    dead: float = 0.02  # a code with fewer cells a batch, on average, is restarted


@dataclass(frozen=True)
class Quantised:
    """What became of a batch of grids."""

    codes: Tensor  # (b, cells) int64
    reconstruction: Tensor  # (b, cells, media_dim), of the normalised features
    commitment: Tensor  # (), how far the encoder's vectors are from their codes


class Neighbours(nn.Module):
    """Each cell hears from the eight around it: a depthwise convolution over the grid, added to what it was."""

    def __init__(self, width: int, rows: int):
        super().__init__()
        self.rows = rows
        self.mix = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        grid = x.unflatten(1, (self.rows, -1)).permute(0, 3, 1, 2)
        mixed: Tensor = x + self.mix(grid).permute(0, 2, 3, 1).flatten(1, 2)
        return mixed


class VQAutoencoder(nn.Module):
    """Grids (b, cells, media_dim) ↔ codes (b, cells)."""

    codebook: Tensor  # (codes, dim)
    counts: Tensor  # (codes,): cells of each code in a batch, on average

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        wide, rows = config.hidden or config.dim, config.rows
        self.enter = nn.Sequential(nn.LayerNorm(config.media_dim), nn.Linear(config.media_dim, wide))
        self.leave = nn.Sequential(nn.Linear(config.dim, wide), nn.GELU())
        if config.hidden:
            self.enter.extend([nn.GELU(), Neighbours(wide, rows), nn.Linear(wide, config.dim)])
            self.leave.append(Neighbours(wide, rows))
        self.leave.append(nn.Linear(wide, config.media_dim))
        self.register_buffer("codebook", torch.randn(config.codes, config.dim))
        self.register_buffer("counts", torch.ones(config.codes))

    def encode(self, grid: Tensor) -> Tensor:
        """The code of every cell: (b, cells, media_dim) → (b, cells)."""
        return self._nearest(self.enter(grid))

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (b, cells) → normalised features (b, cells, media_dim)."""
        features: Tensor = self.leave(self.codebook[codes])
        return features

    def forward(self, grid: Tensor) -> Quantised:
        z = self.enter(grid).float()
        codes = self._nearest(z)
        quantised = self.codebook[codes]
        commitment = F.mse_loss(z, quantised)
        straight = z + (quantised - z).detach()  # the decoder's gradient goes straight through to the encoder
        if self.training:
            self._follow(z.detach().flatten(0, 1), codes.flatten())
        return Quantised(codes, self.leave(straight), commitment)

    def loss(self, grid: Tensor, commitment: float = 0.25) -> Tensor:
        """How far the features that come back are from those that went in, cells normalised, and the encoder from
        its codes.
        """
        out: Quantised = self(grid)
        return F.mse_loss(out.reconstruction, F.layer_norm(grid, grid.shape[-1:])) + commitment * out.commitment

    def _nearest(self, z: Tensor) -> Tensor:
        """argmin |z − e|² without the term that all codes share; always in single precision."""
        with torch.autocast(z.device.type, enabled=False):
            return (z.float() @ self.codebook.T - 0.5 * self.codebook.square().sum(-1)).argmax(-1)

    @torch.no_grad()
    def _follow(self, z: Tensor, codes: Tensor) -> None:
        """Each code moves towards the mean of its cells z (n, dim); dead ones jump to a random cell."""
        now = torch.zeros_like(self.counts).index_add_(0, codes, torch.ones_like(z[:, 0]))
        sums = torch.zeros_like(self.codebook).index_add_(0, codes, z)
        self.counts.lerp_(now, 1 - self.config.decay)
        pull = (1 - self.config.decay) / self.counts.clamp(min=1e-8)
        self.codebook.add_(pull[:, None] * (sums - now[:, None] * self.codebook))
        dead = self.counts < self.config.dead
        self.codebook[dead] = z[torch.randint(len(z), (int(dead.sum()),), device=z.device)]
        self.counts[dead] = 1.0
