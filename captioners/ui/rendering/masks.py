"""Which cells of the input a masked condition did not see, drawn over the picture."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from io import BytesIO
from typing import Any

from PIL import Image

from captioners.types import Media

SIDE = 120  # pixels of the small picture
AXES = {"image": "", "audio": " (rows: frequency, columns: time)"}


def masked_html(media: Media, masked: Mapping[str, Any] | None) -> str:
    """The picture with every masked cell hatched; a sound has the grid alone."""
    if not masked:
        return ""
    (rows, columns), cells = masked["shape"], masked["cells"]
    squares = "".join(f'<rect x="{c % columns}" y="{c // columns}" width="1" height="1"/>' for c in cells)
    lines = "".join(f"M{x} 0V{rows}" for x in range(1, columns)) + "".join(f"M0 {y}H{columns}" for y in range(1, rows))
    behind, shape = "", ""
    if media.kind == "image":
        behind = f'<image href="{data_uri(media, SIDE)}" width="{columns}" height="{rows}" preserveAspectRatio="none"/>'
        shape = f' preserveAspectRatio="none" style="aspect-ratio: {media.data.shape[1]} / {media.data.shape[0]}"'
    words = f"{len(cells)} of {rows * columns} cells masked{AXES[media.kind]}"
    return (
        f'<figure class="cl-masks"><svg viewBox="0 0 {columns} {rows}"{shape} role="img" '
        f'aria-label="{escape(words)}">{behind}'
        f'<path d="{lines}"/>{squares}</svg><figcaption>What the masked branch sees: '
        f"{escape(words)}.</figcaption></figure>"
    )


def data_uri(media: Media, side: int) -> str:
    """A picture, no larger than `side` pixels, as text."""
    image = Image.fromarray(media.data)
    image.thumbnail((side, side))
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
