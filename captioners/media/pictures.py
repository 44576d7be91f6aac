"""Pictures of every accepted kind → (height, width, 3) uint8: upright, opaque, eight bits, at most MAX_SIDE long."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from captioners.media.errors import MediaError

MAX_PIXELS = 50_000_000
MAX_SIDE = 1024  # encoders see 224 pixels or so; what is longer is reduced, to bound memory

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def from_bytes(data: bytes, format: str) -> np.ndarray:
    """An encoded picture (its first frame) → (h, w, 3) uint8. `format` is Pillow's name, and no other is tried."""
    if format == "HEIF":
        from pillow_heif import register_heif_opener

        register_heif_opener()
    try:
        image = Image.open(io.BytesIO(data), formats=[format])
    except Image.DecompressionBombError as error:
        raise MediaError(f"The picture has more than {MAX_PIXELS // 10**6} megapixels: make it smaller.") from error
    if format == "JPEG":
        _check_size(image.size)
        width, height = _fitted(image.size)
        image.draft(None, (2 * width, 2 * height))  # decodes at 1/2, 1/4 or 1/8 of the size where that is enough
    return from_image(image)


def from_image(image: Image.Image) -> np.ndarray:
    """A Pillow image of any mode → (h, w, 3) uint8. The image itself is left as it is."""
    _check_size(image.size)
    image.load()
    upright = _orientation(image)
    image = _eight_bits(image)
    if max(image.size) > MAX_SIDE:
        image = image.resize(_fitted(image.size), Image.Resampling.BICUBIC, reducing_gap=2.0)
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if upright is not None:
        image = image.transpose(upright)
    return np.array(image)


def from_array(array: np.ndarray) -> np.ndarray:
    """Grey (h, w) or (h, w, 1), RGB (h, w, 3) or RGBA (h, w, 4) of any number type → (h, w, 3) uint8."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise MediaError(
            f"An array of shape {array.shape} is not a picture: give (height, width), or that with 1, 3 or 4 channels."
        )
    _check_size((array.shape[1], array.shape[0]))
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return from_image(Image.fromarray(np.ascontiguousarray(_to_uint8(array))))


def reshaped(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A picture that was squeezed, in the proportions of `size` (width, height) again: one side grows, none shrinks."""
    height, width = picture.shape[:2]
    growth = (size[0] / size[1]) / (width / height)
    if abs(growth - 1) < 0.01:  # rounding to whole pixels
        return picture
    grown = (round(width * growth), height) if growth > 1 else (width, round(height / growth))
    return np.array(Image.fromarray(picture).resize(_fitted(grown), Image.Resampling.BICUBIC))


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise MediaError(f"The picture is {width} by {height} pixels, which is nothing to see: choose another one.")
    if width * height > MAX_PIXELS:
        raise MediaError(
            f"The picture has {width * height / 1e6:.0f} megapixels: make it smaller than {MAX_PIXELS // 10**6}."
        )


def _fitted(size: tuple[int, int]) -> tuple[int, int]:
    """The size with its longer side brought to MAX_SIDE, if it is above that."""
    scale = min(1.0, MAX_SIDE / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    return width, height


def _orientation(image: Image.Image) -> Image.Transpose | None:
    try:
        return _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 0))
    except Exception:  # damaged EXIF says nothing about the pixels, which are fine
        return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Any mode → RGB, or RGBA where something may be transparent."""
    if image.mode[0] in "IF":  # 16 or 32 bits a pixel, grey; Pillow's own conversion would clip
        image = _deep_grey(image)
    mode = "RGBA" if image.has_transparency_data else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _deep_grey(image: Image.Image) -> Image.Image:
    deep = np.asarray(image)
    grey = _to_uint8(deep)
    if (clear := image.info.get("transparency")) is not None:
        grey[deep == clear] = 255
    return Image.fromarray(grey)


def _to_uint8(array: np.ndarray) -> np.ndarray:
    """Numbers → 0 to 255. Their type tells the range: uint16 is 16 bits deep; floats go to 1, 255 or 65535."""
    if array.dtype.kind not in "buif":
        raise MediaError(f"An array of {array.dtype} is not a picture: give uint8, uint16 or floats from 0 to 1.")
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "u" and array.itemsize == 2:  # of either byte order
        return (array >> 8).astype(np.uint8)
    low, high = float(array.min()), float(array.max())
    if not (low >= -0.01 and high <= 65535):  # also when one is NaN
        raise MediaError("The picture's numbers are out of range: give 0 to 255, or 0 to 1 as floats.")
    unit = array.dtype.kind in "bf" and high <= 1.01
    scale = 255.0 if unit else 1.0 if high <= 255 else 1 / 257
    return np.clip(np.rint(array * np.float32(scale)), 0, 255).astype(np.uint8)
