"""CLIPScore, RefCLIPScore and retrieval: how well captions match their media, by a matcher that only judges.

Captions and references are always embedded with the matcher's prompt before them. Sound has the same formulas and
names; the encoder beside a number says whose it is, and numbers of two encoders cannot be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from captioners.metrics.base import CaptionSet, MetricResult, mean_of, metric, needed

if TYPE_CHECKING:
    from torch import Tensor

    from captioners.contract import Matcher
    from captioners.types import Media

BATCH = 256
RECALLS = (1, 5, 10)


def embed_media(matcher: Matcher, media: Sequence[Media]) -> np.ndarray:
    """Vectors (n, d) of unit length."""
    return matcher.embed_media(list(media)).detach().float().cpu().numpy()


def embed_captions(matcher: Matcher, captions: Sequence[str]) -> np.ndarray:
    """(n, d), unit length, the prompt put before each caption."""
    texts = [matcher.prompt + c for c in captions]
    parts = [
        matcher.embed_text(texts[i : i + BATCH]).detach().float().cpu().numpy() for i in range(0, len(texts), BATCH)
    ]
    return np.concatenate(parts)


def clipscore(media: np.ndarray, captions: np.ndarray) -> np.ndarray:
    """2.5 · max(cos, 0) of each pair of rows (arXiv 2104.08718)."""
    scores: np.ndarray = 2.5 * np.maximum((media * captions).sum(-1), 0.0)
    return scores


def ref_clipscore(scores: np.ndarray, captions: np.ndarray, references: list[np.ndarray]) -> np.ndarray:
    """The harmonic mean of CLIPScore and max(best cosine with a reference, 0)."""
    best = np.array([max((refs @ caption).max(), 0.0) for caption, refs in zip(captions, references, strict=True)])
    means: np.ndarray = 2 * scores * best / np.maximum(scores + best, 1e-12)
    return means


class TextCachingMatcher:
    """A matcher that embeds no text twice: references are the same for every method that is measured."""

    def __init__(self, matcher: Matcher):
        self.matcher = matcher
        self.name, self.prompt, self.calibration = matcher.name, matcher.prompt, matcher.calibration
        self.embed_media = matcher.embed_media
        self.known: dict[str, Tensor] = {}

    def embed_text(self, texts: list[str]) -> Tensor:
        """What the matcher's own `embed_text` gives, computed once per text."""
        import torch

        if new := [t for t in dict.fromkeys(texts) if t not in self.known]:
            self.known.update(zip(new, self.matcher.embed_text(new), strict=True))
        return torch.stack([self.known[t] for t in texts])


@metric("media")
def matching(rows: CaptionSet) -> list[MetricResult]:
    """CLIPScore, RefCLIPScore where there are references, and caption→media recall among the measured media."""
    matcher, media = needed(rows.matcher), needed(rows.media)
    captions = embed_captions(matcher, rows.captions)
    scores = clipscore(media, captions)
    results = [mean_of("clipscore", scores, rows, matcher.name)]
    if rows.references is not None:
        texts = list(dict.fromkeys(r for refs in rows.references for r in refs))
        vectors = dict(zip(texts, embed_captions(matcher, texts), strict=True))
        references = [np.stack([vectors[r] for r in refs]) for refs in rows.references]
        results.append(mean_of("ref_clipscore", ref_clipscore(scores, captions, references), rows, matcher.name))
    if len({*rows.ids}) == 1:  # among one, every caption finds its own
        return results
    rank = ranks(rows.ids, media, captions)
    return results + [mean_of(f"recall@{k}", rank < k, rows, matcher.name) for k in RECALLS]


def ranks(ids: list[str], media: np.ndarray, captions: np.ndarray) -> np.ndarray:
    """The rank of each caption's own media, 0 for the nearest, among all media; an id is one of them however often
    it stands there.
    """
    import torch

    from captioners.metrics.recall import ranks

    first = {name: row for row, name in reversed(list(enumerate(ids)))}
    column = {name: i for i, name in enumerate(first)}
    similarity = torch.from_numpy(captions @ media[list(first.values())].T)
    return ranks(similarity, [column[name] for name in ids]).numpy()
