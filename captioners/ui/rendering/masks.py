"""What a method over discrete codes sees of the input: which cells were masked, and what the codes hold."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from captioners.media.data_uri import jpeg_uri
from captioners.types import Media, Result

SIDE = 120  # pixels of the small picture
AXES = {"image": "", "audio": " (rows: frequency, columns: time)"}


def condition_html(media: Media, result: Result) -> str:
    """What a method over discrete codes sees: the masked cells over the input and over what the codes of a picture
    hold.
    """
    masked, seen = result.details.get("masked_cells"), result.details.get("seen")
    figures = []
    if masked:
        (rows, columns), cells = masked["shape"], masked["cells"]
        words = f"{len(cells)} of {rows * columns} cells masked{AXES[media.kind]}"
        behind = jpeg_uri(media, SIDE) if media.kind == "image" else ""
        figures.append(_figure(media, behind, masked, words, f"What the masked branch sees: {words}."))
    if seen:
        figures.append(
            _figure(
                media,
                seen,
                masked,
                "the codes as a picture",
                "What the codes hold, painted: what things are more than how they look.",
            )
        )
    return "".join(figures)


def _figure(media: Media, behind: str, masked: Mapping[str, Any] | None, words: str, caption: str) -> str:
    """A small picture, every masked cell hatched; a sound has the grid alone."""
    (rows, columns), cells = (masked["shape"], masked["cells"]) if masked else ((1, 1), [])
    squares = "".join(f'<rect x="{c % columns}" y="{c // columns}" width="1" height="1"/>' for c in cells)
    lines = "".join(f"M{x} 0V{rows}" for x in range(1, columns)) + "".join(f"M0 {y}H{columns}" for y in range(1, rows))
    image, shape = "", ""
    if behind:
        image = f'<image href="{behind}" width="{columns}" height="{rows}" preserveAspectRatio="none"/>'
        shape = f' preserveAspectRatio="none" style="aspect-ratio: {media.data.shape[1]} / {media.data.shape[0]}"'
    return (
        f'<figure class="cl-masks"><svg viewBox="0 0 {columns} {rows}"{shape} role="img" '
        f'aria-label="{escape(words)}">{image}'
        f'<path d="{lines}"/>{squares}</svg><figcaption>{escape(caption)}</figcaption></figure>'
    )
