"""A picture as text that HTML, SVG and JSON can carry."""

from __future__ import annotations

import base64
from io import BytesIO

from PIL import Image

from captioners.types import Media


def jpeg_uri(media: Media, side: int) -> str:
    """A picture that somebody gave, no larger than `side` pixels."""
    image = Image.fromarray(media.data)
    image.thumbnail((side, side))
    return _uri(image, "jpeg", quality=80)


def png_uri(image: Image.Image) -> str:
    """A picture that was made here, to the pixel."""
    return _uri(image, "png", optimize=True)


def _uri(image: Image.Image, form: str, **options: int) -> str:
    buffer = BytesIO()
    image.save(buffer, form, **options)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"
