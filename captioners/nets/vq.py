"""A vector-quantised autoencoder over a frozen encoder's grid: it turns a picture or a sound into discrete tokens.

Each cell becomes the nearest of `codes` codebook vectors; the decoder sees all cells' codes and gives the features back.
The codebook follows its cells by exponential moving averages, and codes that nobody uses are restarted at random cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.transformer import Block


@dataclass(frozen=True)
class VQConfig:
    """The size of the autoencoder."""

    codes: int = 1024
    dim: int = 128  # of a codebook vector
    media_dim: int = 512
    cells: int = 49
    heads: int = 4
    commitment: float = 0.25
    decay: float = 0.99  # of the moving averages
    dead: float = 0.02  # a code with fewer cells a batch, on average, is restarted


@dataclass(frozen=True)
class Quantised:
    """What became of a batch of grids."""

    codes: Tensor  # (b, cells) int64
    reconstruction: Tensor  # (b, cells, media_dim)
    commitment: Tensor  # mean squared distance of cells to their codes


class VQAutoencoder(nn.Module):
    """Grids (b, cells, media_dim) ↔ codes (b, cells)."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        dim, media = config.dim, config.media_dim
        self.enter = nn.Linear(media, dim)
        nn.init.eye_(self.enter.weight)  # the grid's first channels are its principal components
        nn.init.zeros_(self.enter.bias)
        self.register_buffer("codebook", torch.randn(config.codes, dim))
        self.register_buffer("sums", torch.zeros(config.codes, dim))  # moving averages behind the codebook
        self.register_buffer("counts", torch.zeros(config.codes))
        self.positions = nn.Parameter(torch.zeros(config.cells, dim))
        self.mix = Block(dim, config.heads)
        self.leave = nn.Linear(dim, media)

    def encode(self, grid: Tensor) -> Tensor:
        """The nearest code of every cell: (b, cells, media_dim) → (b, cells)."""
        return self._nearest(self.enter(grid))

    def decode(self, vectors: Tensor) -> Tensor:
        """Codebook vectors (b, cells, dim) → features (b, cells, media_dim)."""
        x, _ = self.mix(vectors + self.positions)
        return self.leave(x)

    def forward(self, grid: Tensor) -> Quantised:
        z = self.enter(grid)
        codes = self._nearest(z)
        if self.training:
            self._follow(z.detach().flatten(0, 1), codes.flatten())
        vectors = self.codebook[codes]
        straight = z + (vectors - z).detach()  # the gradient passes the choice of a code
        return Quantised(codes, self.decode(straight), F.mse_loss(z, vectors))

    def loss(self, grid: Tensor) -> Tensor:
        """Reconstruction of the features, and cells that stay near their codes."""
        out = self(grid)
        return F.mse_loss(out.reconstruction, grid) + self.config.commitment * out.commitment

    def _nearest(self, z: Tensor) -> Tensor:
        """argmin |z − e|² without the term that all codes share."""
        return (z @ self.codebook.T - 0.5 * self.codebook.square().sum(-1)).argmax(-1)

    @torch.no_grad()
    def _follow(self, z: Tensor, codes: Tensor) -> None:
        """Each code moves to the mean of its cells z (n, dim); dead ones jump to a random cell."""
        decay = self.config.decay
        counts = torch.zeros_like(self.counts).index_add_(0, codes, torch.ones_like(z[:, 0]))
        self.counts.lerp_(counts, 1 - decay)
        self.sums.lerp_(torch.zeros_like(self.sums).index_add_(0, codes, z), 1 - decay)
        dead = self.counts < self.config.dead
        fresh = z[torch.randint(len(z), (int(dead.sum()),), device=z.device)]
        self.sums[dead], self.counts[dead] = fresh, 1.0
        self.codebook.copy_(self.sums / self.counts[:, None])
