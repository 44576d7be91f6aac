"""A picture as text that HTML, SVG and JSON can carry."""

from __future__ import annotations

import base64
from io import BytesIO

from PIL import Image


def png_uri(image: Image.Image) -> str:
    """The picture as a data URI."""
    buffer = BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
