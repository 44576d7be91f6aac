"""Which cells of the input a masked condition did not see, drawn over the square of the picture that the encoder looks at."""

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
    """The picture with a hatched square on every masked cell; a sound has the grid alone."""
    if not masked:
        return ""
    (rows, columns), cells = masked["shape"], masked["cells"]
    squares = "".join(f'<rect x="{c % columns}" y="{c // columns}" width="1" height="1"/>' for c in cells)
    lines = "".join(f"M{x} 0V{rows}" for x in range(1, columns)) + "".join(f"M0 {y}H{columns}" for y in range(1, rows))
    behind = (
        f'<image href="{data_uri(media, SIDE, square=True)}" width="{columns}" height="{rows}" preserveAspectRatio="none"/>'
        if media.kind == "image"
        else ""
    )
    words = f"{len(cells)} of {rows * columns} cells masked{AXES[media.kind]}"
    return (
        f'<figure class="cl-masks"><svg viewBox="0 0 {columns} {rows}" role="img" aria-label="{escape(words)}">{behind}'
        f'<path d="{lines}"/>{squares}</svg><figcaption>What the masked branch sees: {escape(words)}.</figcaption></figure>'
    )


def data_uri(media: Media, side: int, square: bool = False) -> str:
    """A picture, no larger than `side` pixels, as text; `square` takes the middle, as the encoders do."""
    image = Image.fromarray(media.data)
    if square:
        least = min(image.size)
        left, top = (image.width - least) // 2, (image.height - least) // 2
        image = image.crop((left, top, left + least, top + least))
    image.thumbnail((side, side))
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
