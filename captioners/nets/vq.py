"""Vector-quantised autoencoders (arXiv 1711.00937): they turn a picture or a sound into discrete tokens.

An encoder makes a short vector of each cell, the nearest of `codes` codebook vectors takes its place, and a decoder
gives back what went in: here the features of a frozen encoder's grid. The codebook follows its cells by exponential
moving averages; codes that nobody uses are restarted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    pixels: int = 0  # side of the squared picture that codes are made from; 0: from the encoder's features
    width: int = 24  # channels of the largest maps over pixels, doubled whenever the side is halved


@dataclass(frozen=True)
class Quantised:
    """What became of a batch."""

    codes: Tensor  # (b, cells) int64
    reconstruction: Tensor  # of `target`, and of its shape
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


class Quantiser(nn.Module, ABC):
    """Media ↔ codes (b, cells), between any encoder and decoder of vectors (b, cells, dim)."""

    codebook: Tensor  # (codes, dim)
    counts: Tensor  # (codes,): cells of each code in a batch, on average

    def __init__(self, config: VQConfig, enter: nn.Module, leave: nn.Module):
        super().__init__()
        self.config = config
        self.enter, self.leave = enter, leave
        self.register_buffer("codebook", torch.randn(config.codes, config.dim))
        self.register_buffer("counts", torch.ones(config.codes))

    @abstractmethod
    def target(self, media: Tensor) -> Tensor:
        """What is to come back of a batch: (b, places, channels)."""

    def encode(self, media: Tensor) -> Tensor:
        """The code of every cell: (b, cells)."""
        return self._nearest(self.enter(media))

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (b, cells) → what `target` would be (b, places, channels)."""
        decoded: Tensor = self.leave(self.codebook[codes])
        return decoded

    def forward(self, media: Tensor) -> Quantised:
        z = self.enter(media).float()
        codes = self._nearest(z)
        quantised = self.codebook[codes]
        commitment = F.mse_loss(z, quantised)
        straight = z + (quantised - z).detach()  # the decoder's gradient goes straight through to the encoder
        if self.training:
            self._follow(z.detach().flatten(0, 1), codes.flatten())
        return Quantised(codes, self.leave(straight), commitment)

    def loss(self, media: Tensor, commitment: float = 0.25) -> Tensor:
        """How far what comes back is from what went in, and the encoder from its codes."""
        out: Quantised = self(media)
        return F.mse_loss(out.reconstruction, self.target(media)) + commitment * out.commitment

    def _nearest(self, z: Tensor) -> Tensor:
        """argmin |z − e|² without the term that all codes share; always in single precision."""
        with torch.autocast(z.device.type, enabled=False):
            return (z.float() @ self.codebook.T).sub_(0.5 * self.codebook.square().sum(-1)).argmax(-1)

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


class VQAutoencoder(Quantiser):
    """Grids of features (b, cells, media_dim) ↔ codes (b, cells)."""

    def __init__(self, config: VQConfig):
        wide, rows = config.hidden or config.dim, config.rows
        enter = nn.Sequential(nn.LayerNorm(config.media_dim), nn.Linear(config.media_dim, wide))
        leave = nn.Sequential(nn.Linear(config.dim, wide), nn.GELU())
        if config.hidden:
            enter.extend([nn.GELU(), Neighbours(wide, rows), nn.Linear(wide, config.dim)])
            leave.append(Neighbours(wide, rows))
        leave.append(nn.Linear(wide, config.media_dim))
        super().__init__(config, enter, leave)

    def target(self, media: Tensor) -> Tensor:
        """The features, each cell normalised."""
        return F.layer_norm(media, media.shape[-1:])
