"""What `load_media` promises: right pixels, right samples, and one clear sentence for everything else."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import media_files as files
import numpy as np
import pytest
from PIL import Image

from captioners.media import AUDIO_RATE, MediaError, decoding, load_media, waveform

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def near(pixel: np.ndarray, colour: tuple[int, int, int], tolerance: int = 12) -> bool:
    return np.abs(pixel.astype(int) - colour).max() <= tolerance


def refusal(source, kind=None) -> str:
    """The sentence with which `source` is refused."""
    with pytest.raises(MediaError) as caught:
        load_media(source, kind)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert ". " not in sentence
    assert "\n" not in sentence
    return sentence


def pitch(samples: np.ndarray) -> float:
    """The strongest frequency, in hertz, of a clip at AUDIO_RATE."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * AUDIO_RATE / len(samples))


# ------------------------------------------------------------------------------------------------------ pictures


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
    assert load_media(deep).data[0, :, 0].tolist() == load_media(deep.astype("<u2")).data[0, :, 0].tolist() == [0, 128, 0]


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


# -------------------------------------------------------------------------------------------------------- sounds


@pytest.mark.parametrize("format", files.SOUNDS)
def test_every_sound_format_keeps_its_pitch_and_level(format):
    media = load_media(files.sound(format))
    assert (media.kind, media.rate, media.data.dtype, media.data.ndim) == ("audio", AUDIO_RATE, np.float32, 1)
    assert media.seconds == pytest.approx(1, abs=0.06)
    assert pitch(media.data) == pytest.approx(440, abs=2)
    assert np.abs(media.data).max() == pytest.approx(0.5, abs=0.05)
    assert media.notes == ()


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 44_101, 48_000, 96_000, 192_000, 999_983])
def test_a_tone_keeps_its_pitch_at_every_rate(rate):
    media = load_media((rate, files.tone(1, rate)))
    assert media.seconds == pytest.approx(1, abs=1e-3)
    assert pitch(media.data) == pytest.approx(440, abs=1.5)
    assert np.sqrt(np.mean(media.data**2)) == pytest.approx(0.5 / np.sqrt(2), abs=0.01)


def test_what_the_new_rate_cannot_hold_is_filtered_out():
    media = load_media((48_000, files.tone(1, 48_000, hertz=15_000)))
    assert np.abs(media.data[1000:-1000]).max() < 0.01


def test_channels_are_averaged():
    left, right = files.tone(1, 16_000, 440, 0.8), files.tone(1, 16_000, 1000, 0.2)
    stereo = np.stack([left, right], axis=1)
    for source in ((16_000, stereo), files.wav(stereo, 16_000, "FLOAT")):
        assert np.allclose(load_media(source).data, (left + right) / 2, atol=1e-6)
    assert load_media(files.wav(np.tile(left[:, None], 6), 16_000)).data == pytest.approx(left, abs=1e-3)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint8, np.float16, np.float64])
def test_integers_and_floats_give_the_same_level(dtype):
    wave = files.tone(1, 16_000).astype(np.float64)
    if dtype == np.uint8:
        samples = np.round(wave * 127 + 128).astype(dtype)
    elif dtype == np.int64:
        samples = np.round(wave * 32767).astype(dtype)
    else:
        samples = (wave * (np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else 1)).astype(dtype)
    assert np.abs(load_media((16_000, samples)).data - wave).max() < 0.02


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "IMA_ADPCM"])
def test_every_sample_type_of_a_wav_is_read(subtype):
    wave = files.tone(1, 16_000)
    assert np.sqrt(np.mean((load_media(files.wav(wave, 16_000, subtype)).data[: len(wave)] - wave) ** 2)) < 0.02


def test_silence_is_media_with_a_note():
    for level in (0.0, 0.0005):
        media = load_media((16_000, files.tone(1, 16_000, level=level)))
        assert media.notes == ("The clip is (nearly) silent: captions will be guesses.",)
    assert load_media((16_000, files.tone(1, 16_000, level=0.01))).notes == ()


def test_clipping_is_noted_and_a_loud_sine_is_not_clipping():
    overdriven = np.clip(files.tone(1, 16_000, level=3), -1, 1)
    assert "clipped" in load_media((16_000, overdriven)).notes[0]
    assert "clipped" in load_media((16_000, (overdriven * 32767).astype(np.int16))).notes[0]
    assert load_media((16_000, (files.tone(1, 16_000, level=1) * 32767).astype(np.int16))).notes == ()


def test_a_few_samples_that_are_not_numbers_become_silence():
    samples = files.tone(1, 16_000)
    samples[100], samples[200] = np.nan, -np.inf
    media = load_media((16_000, samples))
    assert (media.data[100], media.data[200]) == (0, 0)
    assert "2 samples" in media.notes[0]
    assert "NaN" in load_media(files.wav(samples, 16_000, "FLOAT")).notes[0]


def test_samples_that_are_mostly_not_numbers_are_refused():
    samples = files.tone(1, 16_000)
    samples[::2] = np.nan
    assert "again" in refusal((16_000, samples))


def test_floats_beyond_full_scale_are_scaled_down_with_a_note():
    media = load_media((16_000, files.tone(1, 16_000, level=4)))
    assert np.abs(media.data).max() == pytest.approx(1, abs=1e-5)
    assert len(media.notes) == 1
    assert "scaled down" in media.notes[0]


def test_resampling_stays_within_full_scale():
    square = np.sign(files.tone(1, 44_100)).astype(np.float32)
    assert np.abs(load_media((44_100, square)).data).max() <= 1


def test_less_than_a_fifth_of_a_second_is_refused():
    assert "at least 0.2 s" in refusal((16_000, files.tone(0.19, 16_000)))
    assert load_media((16_000, files.tone(0.2, 16_000))).seconds == pytest.approx(0.2)


def test_thirty_seconds_are_kept_whole():
    media = load_media((8_000, files.tone(30, 8_000)))
    assert (media.seconds, media.notes) == (30, ())


@pytest.mark.parametrize("rate", [8_000, 11_025])
def test_the_loudest_thirty_seconds_of_a_long_clip_are_taken(rate):
    samples = files.tone(75, rate, level=0.1)
    samples[20 * rate : 50 * rate] *= 8
    media = load_media((rate, samples))
    assert media.seconds == pytest.approx(30)
    assert media.notes == ("Only the loudest 30 s are used: from 20.0 s to 50.0 s.",)
    assert np.abs(media.data[:AUDIO_RATE]).max() == pytest.approx(0.8, abs=0.02)


def test_the_loudest_part_may_be_the_very_end():
    samples = files.tone(45.05, 8_000, level=0.1)
    samples[-8_000:] *= 8
    assert np.abs(load_media((8_000, samples)).data[-100:]).max() > 0.5


def test_reading_stops_after_a_quarter_of_an_hour():
    media = load_media((1_000, np.ones(16 * 60 * 1_000, np.float32) * 0.1))
    assert "first 15 minutes" in media.notes[0]
    assert "first 15 minutes" not in "".join(load_media((1_000, np.ones(15 * 60 * 1_000, np.float32) * 0.1)).notes)


def test_reading_stops_earlier_where_the_rate_would_fill_memory(monkeypatch):
    monkeypatch.setattr(waveform, "MAX_READ_SAMPLES", 400_000)
    assert "first 0.667 minutes" in load_media((10_000, files.tone(60, 10_000))).notes[0]


def test_a_video_without_sound_says_so():
    for container, film in (("mp4", "mpeg4"), ("webm", "libvpx")):
        assert "no sound track" in refusal(files.video(container, film))


@pytest.mark.parametrize("rate", [0, -16_000, 999, 1_000_001, float("nan"), float("inf"), 0.5, "16000", None, [16_000]])
def test_absurd_rates_are_refused(rate):
    refusal((rate, files.tone(1, 16_000)))


@pytest.mark.parametrize(
    "samples",
    [np.zeros(0), np.zeros((0, 2)), np.zeros((100, 0)), np.zeros((2, 16_000)), np.zeros((4, 4, 4)), [], "noise", [1j], [[1], [1, 2]], None],
)
def test_arrays_that_are_no_sound_are_refused(samples):
    refusal((16_000, samples))


def test_a_file_of_too_many_channels_is_refused():
    assert "100 channels" in refusal(files.wav(np.zeros((8_000, 100)), 16_000))


def test_a_tagged_mp3_is_read():
    tag = b"ID3\x04\0\0" + bytes([0, 0, 2, 0]) + b"\0" * 256
    assert pitch(load_media(tag + files.sound("MP3")).data) == pytest.approx(440, abs=2)


def test_a_header_that_promises_more_than_there_is_gives_what_there_is():
    data = bytearray(files.wav(files.tone(1, 16_000), 16_000))
    data[4:8] = data[40:44] = b"\xf0\xff\xff\xff"
    assert load_media(bytes(data)).seconds == pytest.approx(1)


@pytest.mark.parametrize("format", files.SOUNDS)
def test_a_cut_sound_is_refused_or_shorter(format):
    data = files.sound(format)
    try:
        assert load_media(data[: len(data) // 2]).seconds < 0.9
    except MediaError as error:
        assert "again" in str(error)


# ------------------------------------------------------------------------------------------------------- sources


def test_the_content_decides_not_the_name(tmp_path):
    path = tmp_path / "picture.wav"
    path.write_bytes(files.picture("PNG"))
    media = load_media(path)
    assert (media.kind, media.name) == ("image", "picture.wav")
    assert load_media(str(path), name="mine").name == "mine"


def test_a_picture_is_refused_where_a_sound_is_wanted_and_the_reverse():
    assert "not a sound" in refusal(files.picture("PNG"), "audio")
    assert "not a sound" in refusal(files.red_corner(), "audio")
    assert "not a sound" in refusal(np.zeros((4, 4), np.uint8), "audio")
    assert "not a picture" in refusal(files.sound("WAV"), "image")
    assert "not a picture" in refusal((16_000, files.tone(1, 16_000)), "image")
    assert load_media(files.picture("PNG"), "image").kind == "image"
    assert load_media(files.sound("WAV"), "audio").kind == "audio"


def test_what_is_neither_is_told_all_accepted_formats():
    sentence = refusal(b"%PDF-1.7 not a picture and not a sound")
    for format in (
        "JPEG",
        "PNG",
        "WebP",
        "AVIF",
        "HEIC",
        "GIF",
        "TIFF",
        "BMP",
        "WAV",
        "FLAC",
        "OGG",
        "MP3",
        "M4A",
        "AAC",
        "Opus",
        "MP4",
        "MOV",
    ):
        assert format in sentence


def test_a_playlist_cannot_make_the_decoder_open_other_files(tmp_path):
    (tmp_path / "secret.wav").write_bytes(files.sound("WAV"))
    playlists = (f"#EXTM3U\n#EXTINF:1,\nfile://{tmp_path}/secret.wav\n", f"ffconcat version 1.0\nfile {tmp_path}/secret.wav\n")
    for playlist in playlists:
        assert "not a picture or a sound" in refusal(playlist.encode())


@pytest.mark.parametrize("source", [None, 5, 2.5, {}, [], (1, 2, 3), object()])
def test_other_things_are_refused(source):
    refusal(source)


def test_missing_files_folders_and_impossible_paths_are_refused(tmp_path):
    assert "no file called 'gone.png'" in refusal(tmp_path / "gone.png")
    assert "folder" in refusal(tmp_path)
    for path in ("", "\0", "a" * 5_000, "https://example.org/dog.jpg"):
        refusal(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refusal(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    path = tmp_path / "locked.png"
    path.write_bytes(files.picture("PNG"))
    path.chmod(0)
    assert "may be opened" in refusal(path)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.png").touch()
    assert "empty" in refusal(tmp_path / "empty.png")
    assert "empty" in refusal(b"")


def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.wav"
    with path.open("wb") as file:
        file.truncate(2**37)  # a hole: takes no space, and reading it would take all memory
    assert "larger than 100 MB" in refusal(path)


def test_bytes_of_every_kind_are_the_same_media():
    data = files.picture("PNG")
    assert load_media(data).hash == load_media(bytearray(data)).hash == load_media(memoryview(data)).hash


def test_an_unknown_kind_is_refused():
    assert "'image' or 'audio'" in refusal(files.picture("PNG"), "video")


def test_importing_the_package_does_not_import_torch():
    code = "import sys, captioners.media; sys.exit(any(m in sys.modules for m in ('torch', 'torchaudio', 'av', 'soundfile')))"
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_errors_are_chained_to_their_cause():
    for data in (files.picture("PNG")[:60], files.picture("TIFF")[:60]):
        with pytest.raises(MediaError) as caught:
            load_media(data)
        assert caught.value.__cause__ is not None


# ------------------------------------------------------------------------------------------- memory and time


def test_decoding_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(decoding, "CHILD_SECONDS", 0.001)
    assert "too long" in refusal(files.picture("TIFF"))


def test_a_jpeg_of_very_many_scans_is_decoded_where_time_is_limited(monkeypatch):
    progressive = files.picture("JPEG", progressive=True)
    assert load_media(progressive).data.shape == (64, 96, 3)
    start = progressive.rindex(b"\xff\xda")
    scan = progressive[start:-2]
    monkeypatch.setattr(decoding, "CHILD_SECONDS", 0.001)
    assert "too long" in refusal(progressive[:start] + scan * 200 + b"\xff\xd9")


HOSTILE = {
    "png of 3600 megapixels": lambda: files.png_of_size(60_000, 60_000),
    "png with a text of 300 MB": lambda: files.png_with(files.png_chunk(b"zTXt", b"a\0\0" + files.deflated_zeros(300 << 20))),
    "png with a colour profile of 300 MB": lambda: files.png_with(files.png_chunk(b"iCCP", b"a\0\0" + files.deflated_zeros(300 << 20))),
    "gif of 4295 megapixels": lambda: b"GIF89a" + b"\xff" * 4 + files.picture("GIF")[10:],
    "tiff of 3600 megapixels": lambda: files.tiff(60_000, 60_000, 16, files.deflated_zeros(1 << 20)),
    "tiff with a hidden tile of 1.4 GB": lambda: files.tiff(16, 16, 19_200, files.deflated_zeros(1406 << 20)),
    "webp of 268 megapixels": lambda: b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\xff\x3f\0\xff\x3f\0",
    "bmp of 3600 megapixels": lambda: files.picture("BMP")[:18] + (60_000).to_bytes(4, "little") * 2 + files.picture("BMP")[26:],
    "avif of 400 megapixels": lambda: files.with_declared_size(files.picture("AVIF"), 20_000, 20_000),
    "heic of 400 megapixels": lambda: files.with_declared_size(files.picture("HEIF"), 20_000, 20_000),
    "wav that promises 4 GB": lambda: files.wav(np.zeros(100), 16_000)[:40] + b"\xff" * 4 + b"\0" * 99,
    "mp4 with 60 million samples": lambda: files.mp4_of_samples(60_000_000, fragment=False),
    "mp4 with a fragment of 60 million samples": lambda: files.mp4_of_samples(60_000_000, fragment=True),
    "ogg with 256 giant codebooks": lambda: files.ogg_of_codebooks(256),
}
ALLOWED = {
    "largest png": lambda: files.picture("PNG", Image.new("RGBA", (7_070, 7_070), (9, 9, 9, 99)), compress_level=1),
    "flac of sixteen minutes of nothing": lambda: files.wav(np.zeros(16 * 60 * 48_000, np.int16), 48_000, "PCM_16", "FLAC"),
}

# Memory of this process (VmHWM: ru_maxrss would begin at the size of its parent) or of its child, whichever decoded
MEASURE = """
import re, resource, sys
from pathlib import Path
from captioners.media import MediaError, load_media

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = peak()
try:
    answer = load_media(sys.argv[1]).kind
except MediaError:
    answer = "refused"
print(answer, max(peak() - before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", [*HOSTILE, *ALLOWED])
def test_no_file_takes_more_than_a_gigabyte(name, tmp_path):
    path = tmp_path / "file"
    path.write_bytes((HOSTILE | ALLOWED)[name]())
    command = [sys.executable, "-c", MEASURE, path]
    run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    answer, kilobytes = run.stdout.split()
    assert (answer == "refused") == (name in HOSTILE)
    assert int(kilobytes) < 10**6
