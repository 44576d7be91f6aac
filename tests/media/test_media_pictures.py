"""What `load_media` makes of a picture: the right pixels, whatever the format, or one clear sentence."""

from __future__ import annotations

import io

import media_files as files
import numpy as np
import pytest
from media_files import refusal
from PIL import Image

from captioners.media import load_media
from captioners.media.pictures import reshaped
from captioners.types import Media

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def near(pixel: np.ndarray, colour: tuple[int, int, int], tolerance: int = 12) -> bool:
    return np.abs(pixel.astype(int) - colour).max() <= tolerance


@pytest.mark.parametrize("format", files.PICTURES)
def test_every_picture_format_keeps_its_pixels(format):
    media = load_media(files.picture(format))
    assert (media.kind, media.rate, media.data.shape, media.data.dtype) == ("image", 0, (64, 96, 3), np.uint8)
    assert near(media.data[8, 8], RED)
    assert near(media.data[56, 8], BLUE)
    assert near(media.data[8, 88], BLUE)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "AVIF", "HEIF", "TIFF"])
@pytest.mark.parametrize(
    ("orientation", "corner"),
    [(1, (8, 8)), (3, (56, 88)), (6, (8, 56)), (8, (88, 8))],  # where the red corner belongs, as (row, column)
)
def test_a_rotated_photo_is_turned_upright(format, orientation, corner):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"tiffinfo": {0x0112: orientation}} if format == "TIFF" else {"exif": exif.tobytes()}
    data = load_media(files.picture(format, **options)).data
    assert data.shape == ((64, 96, 3) if orientation in (1, 3) else (96, 64, 3))
    assert near(data[corner], RED)
    assert near(data[-1 - corner[0], -1 - corner[1]], BLUE)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_every_exif_orientation_is_that_of_pillow(orientation):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    encoded = files.picture("PNG", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
    assert np.array_equal(load_media(encoded).data, np.asarray(upright))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_spoil_the_picture():
    media = load_media(files.picture("JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff\xff\xff"))
    assert near(media.data[8, 8], RED)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
def test_transparency_is_laid_over_white(format):
    image = Image.new("RGBA", (64, 64), (255, 0, 0, 128))
    image.paste((0, 0, 0, 0), (32, 0, 64, 64))
    data = load_media(files.picture(format, image)).data
    assert near(data[32, 8], (255, 127, 127))
    assert near(data[32, 56], WHITE)


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_a_transparent_palette_colour_is_white_and_the_others_stay(format):
    image = Image.new("P", (20, 10), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.paste(1, (10, 0, 20, 10))
    data = load_media(files.picture(format, image, transparency=1)).data
    assert near(data[5, 2], RED, 0)
    assert near(data[5, 15], WHITE, 0)


def test_grey_with_alpha_and_single_bit_pictures_are_right():
    half = load_media(Image.new("LA", (4, 4), (0, 128))).data
    assert near(half[0, 0], (127, 127, 127), 1)
    bits = Image.new("1", (4, 4), 0)
    bits.putpixel((1, 0), 1)
    data = load_media(files.picture("PNG", bits)).data
    assert (data[0, 0, 0], data[0, 1, 0]) == (0, 255)


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(format):
    deep = np.array([[0, 32768, 65535, 257]], np.uint16).repeat(4, axis=0)
    data = load_media(files.picture(format, Image.fromarray(deep))).data
    assert data.shape == (4, 4, 3)
    assert np.abs(data[0, :, 0].astype(int) - [0, 128, 255, 1]).max() <= 1


def test_sixteen_bits_of_either_byte_order_are_the_same():
    deep = np.array([[0, 32768, 60]], ">u2")
    assert (
        load_media(deep).data[0, :, 0].tolist() == load_media(deep.astype("<u2")).data[0, :, 0].tolist() == [0, 128, 0]
    )


def test_the_transparent_value_of_a_sixteen_bit_png_is_white():
    deep = Image.fromarray(np.array([[0, 32768]], np.uint16))
    data = load_media(files.picture("PNG", deep, transparency=0)).data
    assert data[0, :, 0].tolist() == [255, 128]


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_cmyk_red_is_red(format):
    data = load_media(files.picture(format, Image.new("CMYK", (16, 16), (0, 255, 255, 0)))).data
    assert near(data[8, 8], RED)


def test_a_grey_jpeg_has_three_equal_channels():
    data = load_media(files.picture("JPEG", Image.new("L", (16, 16), 77))).data
    assert near(data[8, 8], (77, 77, 77), 2)


@pytest.mark.parametrize("format", ["GIF", "TIFF", "WEBP"])
def test_the_first_frame_of_many_is_taken(format):
    blue = Image.new("RGB", (96, 64), BLUE)
    data = load_media(files.picture(format, files.red_corner(), save_all=True, append_images=[blue])).data
    assert near(data[8, 8], RED)


def test_a_phones_jpeg_that_holds_several_pictures_is_its_first():
    blue = Image.new("RGB", (96, 64), BLUE)
    data = load_media(files.picture("MPO", files.red_corner(), save_all=True, append_images=[blue])).data
    assert near(data[8, 8], RED)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_large_picture_is_reduced_and_looks_the_same(format):
    data = load_media(files.picture(format, files.red_corner(size=(4000, 3000)))).data
    assert data.shape == (768, 1024, 3)
    assert near(data[100, 100], RED)
    assert near(data[700, 100], BLUE)


def test_a_very_long_picture_keeps_at_least_one_pixel_across():
    assert load_media(np.zeros((2, 9000), np.uint8)).data.shape == (1, 1024, 3)


def test_reducing_does_not_bleed_colour_from_transparent_pixels():
    image = Image.new("RGBA", (2048, 64), (0, 0, 0, 0))
    image.paste((255, 0, 0, 255), (0, 0, 1023, 64))
    edge = load_media(image).data[16, 505:520].astype(int)
    assert (edge[:, 0] >= 250).all()  # from red to white without black in between


@pytest.mark.parametrize("format", files.PICTURES)
def test_a_truncated_picture_is_refused(format):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8))
    data = files.picture(format, noise)
    assert "export or download it again" in refusal(data[: len(data) * 6 // 10])


def test_more_than_fifty_megapixels_are_refused_before_decoding():
    assert "60 megapixels" in refusal(files.png_of_size(10_000, 6_000))
    assert "50 megapixels" in refusal(files.png_of_size(60_000, 60_000))
    assert "60 megapixels" in refusal(np.broadcast_to(np.uint8(0), (6_000, 10_000)))
    for format in ("AVIF", "HEIF"):
        assert "60 megapixels" in refusal(files.with_declared_size(files.picture(format), 10_000, 6_000))


def test_a_picture_without_pixels_is_refused():
    assert "choose another" in refusal(np.zeros((0, 5, 3), np.uint8))
    assert "choose another" in refusal(Image.new("RGB", (0, 4)))


@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf", b'<?xml version="1.0"?>\n<!-- a drawing -->\n'])
def test_an_svg_is_to_be_exported_as_png(head):
    assert "export it as PNG" in refusal(head + b'<svg xmlns="http://www.w3.org/2000/svg"></svg>')


def test_formats_that_are_not_listed_are_not_opened():
    for format in ("ICO", "TGA", "PPM", "PCX", "DDS"):
        assert "JPEG, PNG, WebP" in refusal(files.picture(format, files.red_corner(size=(32, 32))))


def test_the_callers_image_is_left_alone():
    image = files.red_corner("P", (3000, 20))
    load_media(image)
    assert (image.mode, image.size) == ("P", (3000, 20))


@pytest.mark.parametrize(
    ("array", "grey"),
    [
        (np.full((3, 5), 200, np.uint8), 200),
        (np.full((3, 5, 1), 200, np.uint8), 200),
        (np.full((3, 5, 3), 32768, np.uint16), 128),
        (np.full((3, 5, 3), 0.5, np.float32), 128),
        (np.full((3, 5, 3), 0.5, np.float64), 128),
        (np.full((3, 5, 3), 200.0, np.float64), 200),
        (np.full((3, 5), True), 255),
        (np.full((3, 5), 200, np.int64), 200),
        (np.array([[[0, 0, 0, 128]]], np.uint8), 127),
        (np.array([[[0.0, 0.0, 0.0, 0.5]]]), 127),
    ],
)
def test_arrays_of_every_number_type_are_pictures(array, grey):
    data = load_media(array).data
    assert (data.dtype, data.shape) == (np.uint8, (*array.shape[:2], 3))
    assert near(data[0, 0], (grey, grey, grey), 1)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(5, np.uint8),
        np.zeros((3, 5, 2), np.uint8),
        np.zeros((3, 5, 5, 3), np.uint8),
        np.full((3, 5), np.nan),
        np.full((3, 5), np.inf),
        np.full((3, 5), -4.0),
        np.full((3, 5), 10**6),
        np.full((3, 5), 1j),
        np.full((3, 5), "x"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(array):
    assert "give" in refusal(array)


# ---------------------------------------------------------------------------------------------- squeezed pictures


def test_a_squeezed_picture_gets_its_proportions_back_and_another_hash():
    square = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    wide, tall = reshaped(square, (640, 480)), reshaped(square, (480, 640))
    assert wide.shape == (224, 299, 3)
    assert tall.shape == (299, 224, 3)
    assert len({Media("image", data).hash for data in (square, wide, tall)}) == 3


def test_a_picture_in_its_own_proportions_stays_as_it_is():
    picture = np.zeros((224, 299, 3), np.uint8)
    assert reshaped(picture, (640, 480)) is picture
