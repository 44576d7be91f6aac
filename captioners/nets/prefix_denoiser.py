"""Prefix-diffusion's network (arXiv 2309.04965): [prefix; noisy word embeddings] → x0, by way of the rounding head.

A pooled vector of the picture or sound becomes a few prefix embeddings, and each of its quarters one more where they
are pooled too. Their keys and values are computed once per caption. Word embeddings have a fixed length, so that
nearest means most similar, and x0 is the mean embedding of the words that the tied rounding head believes in. Noise is
told as its level ᾱ and not as a step number: any schedule runs on the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.transformer import Block, KeysValues, Places, init_weights

ILLEGIBLE = 0.01


@dataclass(frozen=True)
class PrefixDenoiserConfig:
    """The size of the denoiser. Its blocks have the shape of `CaptionDecoder`'s, so that it can start from one."""

    vocab: int = 4096
    embed: int = 128  # dimension of the word embeddings that noise is added to
    dim: int = 256
    layers: int = 4
    heads: int = 4
    prefix: int = 5  # prefix embeddings of the whole input
    hidden: int = 768  # of the MLP that makes them
    image_dim: int = 512  # of the encoder's pooled vector
    audio_dim: int = 512
    canvas: int = 28  # the most positions of a caption, the end included
    words: int = 24  # the most words that a caption can be asked to have
    schedule: str = "truncated-linear"  # that training drew its noise from
    shaded: bool = (
        True  # the network is shown a noisy word as far as it can be read; otherwise as it is, as in the paper
    )
    dropout: float = 0.1  # of the pooled vector and the MLP; the body has none
    # pooled vectors of the input that the prefix is made of: 1 is the mean of all cells; 5 adds the four quarters of a
    # picture, or of a sound's time, each of which makes one more prefix embedding
    regions: int = 1

    @property
    def prefix_length(self) -> int:
        """All prefix embeddings: those of the whole, and one of every other region."""
        return self.prefix + self.regions - 1


@dataclass(frozen=True)
class Prefix:
    """What the caption's positions look at: keys and values of every layer, and what the length head says."""

    keys_values: list[KeysValues]  # each (b, heads, prefix_length, d)
    lengths: Tensor  # (b, words) log-probabilities of 1, 2, … words

    def __getitem__(self, rows: Tensor) -> Prefix:
        return Prefix([(k[rows], v[rows]) for k, v in self.keys_values], self.lengths[rows])


class PrefixDenoiser(nn.Module):
    """p(word at every position | noisy embeddings, prefix or nothing)."""

    def __init__(self, config: PrefixDenoiserConfig):
        super().__init__()
        self.config = config
        dim, embed = config.dim, config.embed
        self.directions = nn.Parameter(torch.randn(config.vocab, embed))  # word embeddings, of any length here
        self.bias = nn.Parameter(torch.zeros(config.vocab))
        widths = {"image": config.image_dim, "audio": config.audio_dim}
        self.enter = nn.ModuleDict(
            {
                kind: nn.Sequential(nn.LayerNorm(c), nn.Dropout(config.dropout), nn.Linear(c, config.hidden))
                for kind, c in widths.items()
            }
        )
        self.mlp = nn.Sequential(nn.GELU(), nn.Dropout(config.dropout), nn.Linear(config.hidden, config.prefix * dim))
        self.quarter = nn.Linear(config.hidden, dim) if config.regions > 1 else None  # in the MLP's last layer's place
        self.null = nn.Parameter(torch.zeros(config.prefix_length, dim))  # the prefix of nothing
        self.tag = nn.Linear(embed, dim)
        self.prefix_positions = nn.Parameter(torch.zeros(config.prefix_length, dim))
        self.lengths = nn.Linear(dim, config.words)
        self.noisy, self.believed = nn.Linear(embed, dim), nn.Linear(embed, dim, bias=False)
        self.level = nn.Sequential(nn.Linear(64, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.count = nn.Embedding(1 + config.words, dim)  # 0: any number of words
        self.positions = nn.Parameter(torch.zeros(config.canvas, dim))
        self.blocks = nn.ModuleList(Block(dim, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dim)
        self.leave = nn.Linear(dim, embed)
        init_weights(self)
        nn.init.zeros_(self.believed.weight)

    def table(self) -> Tensor:
        """(vocab, embed): every word's embedding, of length √embed, so that a coordinate has variance 1 as the noise
        has.
        """
        return F.normalize(self.directions, dim=-1) * math.sqrt(self.config.embed)

    def embed(self, ids: Tensor) -> Tensor:
        """ids (…) → x0 (…, embed)."""
        return self.table()[ids]

    def round(self, x: Tensor) -> Tensor:
        """x (…, embed) → ids (…) of the nearest words."""
        return (x @ self.table().T).argmax(-1)

    def legible(self, levels: Tensor) -> Tensor:
        """How far a word can be read at noise levels ᾱ (…): half where x_t tells as many nats, embed · ᾱ / (1 − ᾱ), as
        naming a word takes.

        Where that is next to nothing, it is nothing: all such levels are one to the network.
        """
        if not self.config.shaded:
            return torch.ones_like(levels)
        nats = self.config.embed * levels / (1 - levels).clamp(min=1e-9)
        share = nats / (nats + math.log(self.config.vocab))
        return share.masked_fill(share < ILLEGIBLE, 0.0)

    def prefix(self, pooled: dict[str, Tensor], order: Tensor, tags: Tensor, keep: Tensor | None = None) -> Prefix:
        """{kind: (n, regions, c)} of all kinds, rows put into `order`; tags (b,) start tokens; keep (b,) False where
        nothing is to be seen.

        With nothing pooled, `order` only counts the rows, all of which see nothing.
        """
        vectors = self.null.expand(len(order), -1, -1)
        if pooled:
            rows = torch.cat([self.prefix_embeddings(kind, x) for kind, x in pooled.items()])[order]
            vectors = rows if keep is None else torch.where(keep[:, None, None], rows, vectors)
        x = vectors + self.tag(self.embed(tags))[:, None] + self.prefix_positions
        lengths = self.lengths(F.gelu(x).mean(1)).log_softmax(-1)
        cache = []
        for block in self.blocks:
            x, kv = block(x)
            cache.append(kv)
        return Prefix(cache, lengths)

    def prefix_embeddings(self, kind: str, pooled: Tensor) -> Tensor:
        """Pooled vectors (n, regions, c) → (n, prefix_length, dim), before tag and positions: first those of the
        whole.
        """
        hidden = self.mlp[:-1](self.enter[kind](pooled))
        whole: Tensor = self.mlp[-1](hidden[:, 0]).unflatten(1, (self.config.prefix, -1))
        return whole if self.quarter is None else torch.cat([whole, self.quarter(hidden[:, 1:])], 1)

    def prefix_means(self, kind: str, pooled: Tensor) -> Tensor:
        """Pooled vectors (n, regions, c) → the mean of their prefix embeddings (n, dim)."""
        return self.prefix_embeddings(kind, pooled).mean(1)

    def caption_means(self, captions: Sequence[Sequence[int]]) -> Tensor:
        """Token rows → the mean of their words' embeddings (n, dim), as the first layer sees clean words."""
        return torch.stack([self.noisy(self.embed(torch.tensor(row))).mean(0) for row in captions])

    def forward(
        self,
        x: Tensor,
        alpha_bar: Tensor,
        prefix: Prefix,
        count: Tensor,
        believed: Tensor | None = None,
        mask: Tensor | None = None,
        asked: Tensor | None = None,
    ) -> Tensor:
        """Log-probabilities of the word at every position (b, t, vocab), not normalised; takes what `vectors` takes."""
        return self.logits(self.vectors(x, alpha_bar, prefix, count, believed, mask, asked))

    def logits(self, hidden: Tensor) -> Tensor:
        """The tied rounding head: (…, embed) → (…, vocab)."""
        return hidden @ self.table().T + self.bias

    def vectors(
        self,
        x: Tensor,  # (b, t, embed), noisy
        alpha_bar: Tensor,  # (b,), or (b, t) where some positions are cleaner than others
        prefix: Prefix,
        count: Tensor,  # (b,) words wanted, 0 for any
        believed: Tensor | None = None,  # (b, t, embed), the x0 of the step before (self-conditioning)
        mask: Tensor | None = None,  # (b, t), False at positions that are not there
        asked: Tensor | None = None,  # (b, t), False where the network's opinion is not wanted
    ) -> Tensor:
        """What the rounding head reads at every position (b, t, embed), 0 at those that are not there.

        Two opinions are added: what the context says of the word, by the network, and what the noisy word says of
        itself, which is known: log q(x_t | word e) = √ᾱ / (1 − ᾱ) x_t · e + …, for all words are of one length. The
        network is shown a noisy word as far as it can be read: noise that hides the word would only lead it astray.
        """
        levels = alpha_bar.expand(x.shape[1], -1).T if alpha_bar.ndim == 1 else alpha_bar
        levels = levels.masked_fill(self.legible(levels) == 0, 0.0)
        places = Places.of(torch.ones_like(levels, dtype=torch.bool) if mask is None else mask)
        row, position = places.index // x.shape[1], places.index % x.shape[1]
        x, levels = places.gather(x), places.gather(levels)  # (m, embed), (m,)
        h = (
            self.noisy(x * self.legible(levels)[:, None])
            + self._embedded_levels(levels)
            + self.count(count)[row]
            + self.positions[position]
        )
        if believed is not None:
            h = h + self.believed(places.gather(believed))
        visible = (
            None if places.all else F.pad(places.present, (self.config.prefix_length, 0), value=True)[:, None, None]
        )
        answered = places if asked is None else Places.of(places.present & asked)
        for block, past in zip(self.blocks, prefix.keys_values, strict=True):
            h, _ = block(
                h, mask=visible, past=past, places=places, asked=answered if block is self.blocks[-1] else None
            )
        itself = (levels.sqrt() / (1 - levels).clamp(min=1e-3))[:, None] * x
        return places.spread(itself.index_add(0, places.find(answered), self.leave(self.norm(h)).to(itself.dtype)))

    def _embedded_levels(self, levels: Tensor) -> Tensor:
        """Embeddings (m, dim) of noise levels (m,), few of which differ."""
        distinct, index = levels.unique(return_inverse=True)
        table: Tensor = self.level(_waves((distinct / (1 - distinct).clamp(min=1e-9)).clamp(1e-6, 1e4).log()))
        return table[index]

    def expected(self, logits: Tensor) -> Tensor:
        """x0 (b, t, embed): the mean embedding under the rounding head's distribution."""
        return logits.softmax(-1) @ self.table()


def _waves(x: Tensor) -> Tensor:
    """(…) → (…, 64): sines and cosines from fast to slow."""
    rates = torch.exp(torch.linspace(math.log(0.05), math.log(3.0), 32, device=x.device))
    angles = x[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def noised(x0: Tensor, alpha_bar: Tensor, noise: Tensor) -> Tensor:
    """q(x_t|x0): √ᾱ x0 + √(1 − ᾱ) ε, with alpha_bar (b,) or (b, t)."""
    a = alpha_bar[..., None] if alpha_bar.ndim == 2 else alpha_bar[:, None, None]
    return a.sqrt() * x0 + (1 - a).sqrt() * noise
