"""Method 3's denoiser: a bidirectional transformer that reads a noisy caption, the time and the media's discrete
tokens.

It has the shape of `CaptionDecoder`, so that it can start from one: the output at each position is about the next one,
and grids have become embeddings of codes. A code may be [MASK]; with all of them masked the condition is gone. The
start token alone tells how long the caption will be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.captioner import CaptionDecoder, Condition, side_by_side
from captioners.nets.d3pm import MaskReplaceDiffusion
from captioners.nets.transformer import Attention, Block, init_weights


@dataclass(frozen=True)
class MaskDenoiserConfig:
    """The size of the denoiser."""

    vocab: int = 4096
    dim: int = 256
    text_layers: int = 2
    cross_layers: int = 2
    heads: int = 4
    max_tokens: int = 64
    image_codes: int = 1024
    image_cells: int = 49
    audio_codes: int = 512
    audio_cells: int = 20
    image_rows: int = 7  # of the grid that the cells stand in
    audio_rows: int = 2
    image_pixels: int = 0  # side of the squared pictures that `image-vq` read; 0: it read features
    longest: int = 30  # tokens of the longest caption
    steps: int = 100  # T
    masked: float = 0.9  # γ̄_T: what is not masked by then is a random word
    dropout: float = 0.1


class MaskDenoiser(nn.Module):
    """log p(x0 | x_t, codes) and log p(length | codes)."""

    def __init__(self, config: MaskDenoiserConfig):
        super().__init__()
        self.config = config
        dim = config.dim
        self.diffusion = MaskReplaceDiffusion(config.vocab, config.steps, config.masked)
        self.tokens = nn.Embedding(config.vocab, dim)  # also the output layer
        self.marks = nn.Embedding(2, dim)  # [MASK], which has the index `vocab`, and what stands behind the last token
        self.positions = nn.Parameter(torch.zeros(config.max_tokens, dim))
        self.times = nn.Embedding(config.steps + 1, dim)  # time 0 asks for the length
        kinds = {"image": (config.image_codes, config.image_cells), "audio": (config.audio_codes, config.audio_cells)}
        # the last code of each kind is [MASK]
        self.codes = nn.ModuleDict({kind: nn.Embedding(codes + 1, dim) for kind, (codes, _) in kinds.items()})
        self.cells = nn.ParameterDict({kind: torch.zeros(cells, dim) for kind, (_, cells) in kinds.items()})
        self.context_norm = nn.LayerNorm(dim)
        plain = [Block(dim, config.heads, dropout=config.dropout) for _ in range(config.text_layers)]
        crossed = [Block(dim, config.heads, dim, config.dropout) for _ in range(config.cross_layers)]
        self.blocks = nn.ModuleList(plain + crossed)
        self.norm = nn.LayerNorm(dim)
        self.length = nn.Linear(dim, config.longest)
        self.drop = nn.Dropout(config.dropout)
        init_weights(self)
        nn.init.zeros_(self.times.weight)

    @property
    def mask(self) -> int:
        """The index of [MASK]."""
        return self.config.vocab

    def grid_shape(self, kind: str) -> tuple[int, int]:
        """Rows and columns of the cells."""
        rows = {"image": self.config.image_rows, "audio": self.config.audio_rows}[kind]
        return rows, len(self.cells[kind]) // rows

    def masked(self, kind: str, codes: Tensor, where: Tensor) -> Tensor:
        """Codes (b, cells) with [MASK] where `where` is True."""
        return codes.masked_fill(where, self.code_table(kind).num_embeddings - 1)

    def code_table(self, kind: str) -> nn.Embedding:
        """The embeddings of one kind's codes."""
        table = self.codes[kind]
        assert isinstance(table, nn.Embedding)
        return table

    def condition(self, codes: dict[str, Tensor], order: Tensor) -> Condition:
        """{kind: (n, cells)} of all kinds → keys and values of every cross layer, rows put into `order`."""
        x, present = side_by_side(
            {kind: self.codes[kind](kind_codes) + self.cells[kind] for kind, kind_codes in codes.items()}, order
        )
        x = self.context_norm(x)
        return Condition(
            [b.cross.keys_values(x) for b in self.blocks if isinstance(b.cross, Attention)], present[:, None, None]
        )

    def forward(self, start: Tensor, x_t: Tensor, t: Tensor, condition: Condition, lengths: Tensor) -> Tensor:
        """start (b,) tags, x_t (b, n) with [MASK]s, t (b,), lengths (b,) ≤ n → logits of x0 (b, n, vocab)."""
        return self.words(self.vectors(start, x_t, t, condition, lengths))

    def vectors(self, start: Tensor, x_t: Tensor, t: Tensor, condition: Condition, lengths: Tensor) -> Tensor:
        """What `words` makes logits of: (b, n, dim)."""
        ids = torch.cat([start[:, None], F.pad(x_t, (0, 1))], 1)
        index = torch.arange(ids.shape[1], device=ids.device)
        ids = torch.where(index == lengths[:, None] + 1, self.mask + 1, ids)  # the end
        visible = index <= lengths[:, None] + 1
        return self._hidden(ids, t, condition, visible[:, None, None])[:, :-2]

    def words(self, vectors: Tensor) -> Tensor:
        """The output layer: (…, dim) → (…, vocab)."""
        return vectors @ self.tokens.weight.T

    def length_logits(self, start: Tensor, condition: Condition) -> Tensor:
        """start (b,) → logits (b, longest) of 1 … longest tokens."""
        logits: Tensor = self.length(self._hidden(start[:, None], torch.zeros_like(start), condition, None)[:, 0])
        return logits

    def _hidden(self, ids: Tensor, t: Tensor, condition: Condition, visible: Tensor | None) -> Tensor:
        words = torch.where(
            (ids < self.mask)[..., None],
            self.tokens(ids.clamp(max=self.mask - 1)),
            self.marks((ids - self.mask).clamp(min=0)),
        )
        x = self.drop(words + self.positions[: ids.shape[1]] + self.times(t)[:, None])
        crossed = iter(condition.keys_values)
        for block in self.blocks:
            context = next(crossed) if block.cross is not None else None
            x, _ = block(x, mask=visible, context=context, context_mask=condition.mask)
        hidden: Tensor = self.norm(x)
        return hidden


@torch.no_grad()
def warm_start(
    denoiser: MaskDenoiser, decoder: CaptionDecoder, code_embeddings: dict[str, Tensor], mask: int, end: int
) -> None:
    """Take over everything from a trained decoder; code_embeddings {kind: (codes, dim)} stand where its grid stood."""
    for name in ("tokens", "context_norm", "blocks", "norm"):
        getattr(denoiser, name).load_state_dict(getattr(decoder, name).state_dict())
    denoiser.positions.copy_(decoder.positions)
    denoiser.marks.weight.copy_(decoder.tokens.weight[[mask, end]])
    for kind, table in code_embeddings.items():
        denoiser.cells[kind].copy_(_stretched(decoder.cells[kind], denoiser.grid_shape(kind)))
        denoiser.code_table(kind).weight.copy_(torch.cat([table, decoder.null[None]]))


def _stretched(cells: Tensor, shape: tuple[int, int]) -> Tensor:
    """Embeddings of a grid's places (cells, dim) → those of a grid of another shape, if it is another."""
    if len(cells) == shape[0] * shape[1]:
        return cells
    square = cells.T.unflatten(1, (math.isqrt(len(cells)), -1))
    return F.interpolate(square[None], shape, mode="bilinear")[0].flatten(1).T
