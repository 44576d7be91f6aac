"""Where words come from, drawn: a heat map over the picture for each word, or the stretches of a sound that it was
heard in.

The page's script lays a word's map over the input while somebody points at the word; the same maps stand small beside
the card and in the downloaded report. Light and shade carry the map, so that it needs no colour to be read.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape

import numpy as np
from PIL import Image

from captioners.attribution import GRIDS, Attribution, along_time, of_result
from captioners.media.data_uri import jpeg_uri, png_uri
from captioners.types import Media, Result
from captioners.ui.rendering.markup import number

ORANGE = (230, 97, 1)
# opacity: of the dark over a picture, of the orange on its lit cells, of the orange on a sound
VEIL, GLOW, LIT = (0.66, 0.25, 0.6)
FINE = 6  # pixels a side of a cell, as drawn
FAINT = 0.35  # of the strongest support in a caption: a word whose own is weaker is drawn as faint as it is
LEAST = 0.02  # nats: less than this is nothing
SIDE = 120  # pixels of the picture behind the small maps
BARS = 80  # of a sound's outline
WAITING = "Not known for this caption: it is found out a moment after a caption is there, by methods that can tell."


@dataclass(frozen=True)
class WordMap:
    """One word's map."""

    word: str
    positions: list[int]
    gain: float  # nats that its strongest cell adds
    image: Image.Image


def word_maps(media: Media, result: Result) -> list[WordMap]:
    """A map for each word; none if the result does not tell."""
    attribution = of_result(result)
    if not attribution:
        return []
    values = _values(media, attribution)
    strongest = max(max(cells_of_word) for cells_of_word in values)
    maps = []
    for word, cells in zip(attribution.words, values, strict=True):
        scale = max(max(cells), FAINT * strongest, LEAST)
        lit = np.clip(np.array(cells) / scale, 0, 1)
        shape = GRIDS["image"] if media.kind == "image" else (1, len(cells))
        maps.append(WordMap(word.word, word.positions, max(cells), draw(lit.reshape(shape), media.kind == "image")))
    return maps


def _values(media: Media, attribution: Attribution) -> list[list[float]]:
    return [
        word.cells if media.kind == "image" else along_time(word.cells, media.seconds) for word in attribution.words
    ]


def draw(lit: np.ndarray, over_picture: bool) -> Image.Image:
    """(rows, columns) from 0 to 1 → what is laid over the input: a veil that opens where the word comes from, or an
    orange light.
    """
    rows, columns = lit.shape
    smooth = Image.fromarray((255 * lit).astype(np.uint8)).resize(
        (columns * FINE, rows * FINE), Image.Resampling.BICUBIC
    )
    level = np.asarray(smooth, dtype=np.float32)[..., None] / 255
    veil = VEIL * max(0.2, float(lit.max()))  # a word that comes from nowhere hides nothing
    alpha = veil * (1 - level) + GLOW * level if over_picture else LIT * level
    colour = np.array(ORANGE, np.float32) * (level if over_picture else np.ones_like(level))
    return Image.fromarray(np.concatenate([colour, 255 * alpha], axis=-1).round().astype(np.uint8))


def where_html(method: str, media: Media, result: Result) -> str:
    """All words of a card's caption, each over its own small picture; a place for them while the result does not
    tell.
    """
    maps = word_maps(media, result)
    head = f'<details data-key="{method}-where"><summary>Where each word comes from</summary>'
    if not maps:
        return f'{head}<p class="cl-note">{WAITING}</p></details>' if result.trace else ""
    figures = "".join(_figure(m) for m in maps)
    height, width = media.data.shape[:2] if media.kind == "image" else (1, 4)
    style = f"--picture: url({_behind(media)}); --shape: {width} / {height}"
    seen = (
        "Bright is where the word comes from: hiding it makes the word less likely, "
        "by so many nats at its strongest cell."
    )
    heard = "Orange is when the word was heard: hiding it makes the word less likely, by so many nats at its strongest."
    return (
        f'{head}<p class="cl-note">{seen if media.kind == "image" else heard}</p>'
        f'<div class="cl-where cl-{media.kind}" style="{escape(style)}">{figures}</div></details>'
    )


def _figure(word: WordMap) -> str:
    at = " ".join(map(str, word.positions))
    label = f"{escape(word.word)} <span>{number(word.gain, '+.2f')}</span>"
    return (
        f'<figure class="cl-word" data-at="{at}"><span class="cl-thumb"><img alt="" src="{png_uri(word.image)}"></span>'
        f"<figcaption>{label}</figcaption></figure>"
    )


def _behind(media: Media) -> str:
    return jpeg_uri(media, SIDE) if media.kind == "image" else outline_uri(media.data)


def outline(samples: np.ndarray, bars: int = BARS) -> list[float]:
    """How loud a sound is along its length, from 0 to 1."""
    loud = [float(np.abs(part).max()) if len(part) else 0.0 for part in np.array_split(samples, bars)]
    most = max(loud) or 1.0
    return [value / most for value in loud]


def outline_uri(samples: np.ndarray) -> str:
    """A sound's outline as a picture in text."""
    loud = outline(samples)
    bars = "".join(
        f"<rect x='{i}' y='{50 - 45 * v:.0f}' width='.7' height='{max(2, 90 * v):.0f}'/>" for i, v in enumerate(loud)
    )
    drawn = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {BARS} 100' preserveAspectRatio='none' "
        f"fill='#888'>{bars}</svg>"
    )
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()}"
