"""A vector-quantised autoencoder over a frozen encoder's grid: it turns a picture or a sound into discrete tokens.

Each cell becomes the nearest of `codes` codebook vectors, and the decoder gives its features back. The codebook follows its cells by
exponential moving averages, and codes that nobody uses are restarted at random cells.
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
    dim: int = 256  # of a codebook vector
    media_dim: int = 512
    decay: float = 0.99  # of the moving averages
    dead: float = 0.02  # a code with fewer cells a batch, on average, is restarted


@dataclass(frozen=True)
class Quantised:
    """What became of a batch of grids."""

    codes: Tensor  # (b, cells) int64
    reconstruction: Tensor  # (b, cells, media_dim), of the normalised features


class VQAutoencoder(nn.Module):
    """Grids (b, cells, media_dim) ↔ codes (b, cells)."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        self.enter = nn.Sequential(nn.LayerNorm(config.media_dim), nn.Linear(config.media_dim, config.dim))
        self.register_buffer("codebook", torch.randn(config.codes, config.dim))
        self.register_buffer("counts", torch.ones(config.codes))  # cells of each code in a batch, on average
        self.leave = nn.Sequential(nn.Linear(config.dim, config.dim), nn.GELU(), nn.Linear(config.dim, config.media_dim))

    def encode(self, grid: Tensor) -> Tensor:
        """The nearest code of every cell: (b, cells, media_dim) → (b, cells)."""
        return self._nearest(self.enter(grid))

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (b, cells) → normalised features (b, cells, media_dim)."""
        return self.leave(self.codebook[codes])

    def forward(self, grid: Tensor) -> Quantised:
        z = self.enter(grid)
        codes = self._nearest(z)
        if self.training:
            self._follow(z.detach().flatten(0, 1), codes.flatten())
        return Quantised(codes, self.decode(codes))

    def loss(self, grid: Tensor) -> Tensor:
        """How far the features that come back are from those that went in, cells normalised."""
        return F.mse_loss(self(grid).reconstruction, F.layer_norm(grid, grid.shape[-1:]))

    def _nearest(self, z: Tensor) -> Tensor:
        """argmin |z − e|² without the term that all codes share."""
        return (z @ self.codebook.T - 0.5 * self.codebook.square().sum(-1)).argmax(-1)

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
