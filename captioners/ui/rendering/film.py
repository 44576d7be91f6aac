"""The making of the captions as an animated picture for slides: every method's words as they came, over where they
come from.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from PIL import Image, ImageDraw, ImageFont

from captioners.types import Media, Result, Spec
from captioners.ui.rendering.heat import ORANGE, WordMap, outline, word_maps
from captioners.ui.rendering.tint import strength

PANEL = (480, 270)  # pixels of one method; two stand side by side
PICTURE = 190  # pixels of its input's longer side
MARGIN, LINE = 14, 26
MOMENTS = 24  # pictures of the film
PACE, REST = 160, 2600  # milliseconds of a picture, and of the last one
INK, QUIET, PAPER, PURPLE = (17, 24, 39), (100, 106, 118), (255, 255, 255), (94, 60, 153)


@dataclass(frozen=True)
class Word:
    """A token at one moment: what is written, whether it is masked, and its tint from −1, purple, to 1, orange."""

    text: str
    masked: bool
    tint: float


def moments(result: Result) -> list[list[Word]]:
    """The caption in the making: token by token, or step by step if it was denoised."""
    frames = result.details.get("denoising")
    if frames:
        return [
            [_word(result, i, text, state == "masked") for i, (text, state, _) in enumerate(f["tokens"])]
            for f in frames
        ]
    words = [_word(result, t.position, t.token, False) for t in result.trace if not t.token.startswith("<")]
    return [words[:n] for n in range(1, len(words) + 1)] or [[Word(result.caption, False, 0.0)]]


def _word(result: Result, position: int, text: str, masked: bool) -> Word:
    trace = result.trace[position] if position < len(result.trace) else None
    tint = strength(trace.cond - trace.uncond) if trace and not masked else 0.0
    return Word("" if text.startswith("<") else text, masked, tint)


def film(media: Media, rows: Sequence[tuple[Spec, Result]]) -> bytes:
    """A GIF of all methods, two a row, that plays once and rests on the finished captions."""
    panels = [(spec, result, moments(result), word_maps(media, result)) for spec, result in rows]
    behind = _input(media)
    pictures = []
    for moment in range(MOMENTS):
        size = (PANEL[0] * min(2, len(panels)), PANEL[1] * -(-len(panels) // 2))
        picture = Image.new("RGB", size, PAPER)
        for place, (spec, result, along, maps) in enumerate(panels):
            now = min(len(along) - 1, moment * len(along) // (MOMENTS - 1))
            panel = _panel(spec, result, behind, along[now], _newest(along, now, maps))
            picture.paste(panel, (PANEL[0] * (place % 2), PANEL[1] * (place // 2)))
        pictures.append(picture.quantize(128))
    buffer = BytesIO()
    durations = [PACE] * (MOMENTS - 1) + [REST]
    pictures[0].save(buffer, "GIF", save_all=True, append_images=pictures[1:], duration=durations, optimize=True)
    return buffer.getvalue()


def film_text(media: Media, rows: Sequence[tuple[Spec, Result]]) -> str:
    """The film as text, for the browser to write."""
    return base64.b64encode(film(media, rows)).decode()


def _newest(along: list[list[Word]], now: int, maps: list[WordMap]) -> WordMap | None:
    """The map of the strongest of the words that have just come; at the end, of the strongest of all."""
    before = along[now - 1] if 0 < now < len(along) - 1 else []
    final = [word.text for word in along[-1]]  # a map is of the word that stayed
    arrived = [i for i, word in enumerate(along[now]) if not word.masked and i < len(final) and word.text == final[i]]
    new = {i for i in arrived if i >= len(before) or before[i].text != along[now][i].text}
    fresh = [m for m in maps if new & {*m.positions}]
    return max(fresh, key=lambda m: m.gain, default=None)


def _input(media: Media) -> Image.Image:
    if media.kind == "image":
        picture = Image.fromarray(media.data)
        picture.thumbnail((PICTURE, PICTURE))
        return picture
    picture = Image.new("RGB", (PICTURE, PICTURE // 2), (243, 244, 246))
    drawn, middle = ImageDraw.Draw(picture), PICTURE // 4
    for x, loud in enumerate(outline(media.data, PICTURE)):
        drawn.line([(x, middle - loud * 0.9 * middle), (x, middle + loud * 0.9 * middle)], fill=QUIET)
    return picture


def _panel(spec: Spec, result: Result, behind: Image.Image, words: list[Word], where: WordMap | None) -> Image.Image:
    """One method at one moment."""
    panel = Image.new("RGB", PANEL, PAPER)
    drawn = ImageDraw.Draw(panel)
    drawn.text((MARGIN, MARGIN), spec.title, fill=INK, font=_font(18))
    left, top = MARGIN, MARGIN + 32
    panel.paste(behind, (left, top))
    if where:
        veil = where.image.resize(behind.size, Image.Resampling.BICUBIC)
        panel.paste(veil, (left, top), veil)
        drawn.text((left, top + behind.height + 4), f"“{where.word}” comes from here", fill=QUIET, font=_font(13))
    _write(drawn, words, (left + PICTURE + MARGIN, top), PANEL[0] - MARGIN)
    drawn.rectangle((0, 0, PANEL[0] - 1, PANEL[1] - 1), outline=(221, 221, 221))
    return panel


def _write(drawn: ImageDraw.ImageDraw, words: list[Word], start: tuple[int, int], right: int) -> None:
    """Words from left to right, a new line where the next one does not fit."""
    font, x, y = _font(19), float(start[0]), start[1]
    for word in words:
        text = word.text.strip()
        width = 34 if word.masked else drawn.textlength(text, font=font)
        gap = 7 if word.masked or word.text.startswith(" ") else 0
        if x > start[0] and x + gap + width > right:
            x, y = float(start[0]), y + LINE
        elif x > start[0]:
            x += gap
        box = (x - 1, y, x + width + 1, y + LINE - 4)
        if word.masked:
            drawn.rectangle(box, fill=(214, 216, 222))
        else:
            if word.tint:
                drawn.rectangle(box, fill=_mixed(ORANGE if word.tint > 0 else PURPLE, abs(word.tint)))
            drawn.text((x, y), text, fill=INK, font=font)
        x += width


def _mixed(colour: tuple[int, int, int], share: float) -> tuple[int, int, int]:
    red, green, blue = (round(share * c + (1 - share) * p) for c, p in zip(colour, PAPER, strict=True))
    return red, green, blue


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
