"""Whatever is thrown at `load_media`, it answers with valid Media or a MediaError of one sentence.

pytest tests/media/test_media_fuzz.py             # about half a minute
pytest tests/media/test_media_fuzz.py -m slow     # many times more of the same
"""

from __future__ import annotations

from functools import cache

import media_files as files
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from captioners.media import AUDIO_RATE, MediaError, load_media
from captioners.media.decoding import CHILD_FORMATS, decode_here
from captioners.media.formats import sniff
from captioners.media.waveform import to_media_rate
from captioners.types import Media

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about every damaged tag
FORMATS = (*files.PICTURES, *files.SOUNDS)
NUMBERS = (
    arrays.integer_dtypes(endianness="?"),
    arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?"),
)


def examples(count: int):
    """So many examples, without a clock: machines differ."""
    return settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
    )


def check(media: Media) -> None:
    assert all(isinstance(note, str) for note in media.notes)
    if media.kind == "image":
        assert (media.rate, media.data.dtype, media.data.shape[2:]) == (0, np.uint8, (3,))
        assert 1 <= min(media.data.shape[:2]) <= max(media.data.shape[:2]) <= 1024
    else:
        assert (media.rate, media.data.dtype, media.data.ndim) == (AUDIO_RATE, np.float32, 1)
        assert 0.19 < media.seconds <= 30
        assert np.abs(media.data).max() <= 1  # NaN would fail here too


def survives(source) -> None:
    """The promise of this file."""
    try:
        check(load_media(source))
    except MediaError as error:
        assert_sentence(error)


def survives_here(data: bytes) -> None:
    """The same without a child process where there would be one: a hundred times faster."""
    format = sniff(data)
    if format not in CHILD_FORMATS:
        survives(data)
        return
    try:
        decoded = decode_here(data, format)
        if not isinstance(decoded, np.ndarray):
            to_media_rate(decoded)
    except MediaError as error:
        assert_sentence(error)


def assert_sentence(error: MediaError) -> None:
    sentence = str(error)
    assert sentence.endswith(".")
    assert ". " not in sentence
    assert "\n" not in sentence
    assert len(sentence) < 250


@cache
def original(format: str) -> bytes:
    """A real file, small and busy enough that its bytes matter."""
    if format in files.PICTURES:
        noise = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
        return files.picture(format, Image.fromarray(noise))
    return files.sound(format, files.tone(0.3, 48_000), 48_000)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with bytes changed (most of them near the start, where headers are), a piece lost or repeated, or the
    end cut.
    """
    broken = bytearray(data)
    reach = draw(st.sampled_from([64, 512, len(data)]))
    position = st.integers(0, min(reach, len(data)) - 1)
    for at, byte in draw(st.lists(st.tuples(position, st.integers(0, 255)), max_size=8)):
        broken[at] = byte
    if draw(st.booleans()):
        start, length = draw(position), draw(st.integers(1, 64))
        broken[start : start + length] = broken[start : start + length] * draw(st.sampled_from([0, 2]))
    if draw(st.booleans()):
        del broken[draw(st.integers(0, len(broken))) :]
    return bytes(broken)


def fuzz_files(format: str, count: int) -> None:
    @examples(count)
    @given(damaged(original(format)))
    def run(data: bytes) -> None:
        survives_here(data)

    run()


def fuzz_bytes(count: int) -> None:
    starts = [
        b"",
        *(original(format)[:16] for format in FORMATS),
        b"ID3\x04\0\0\0\0\0\x04",
        b"\xff\xfb",
        b"\xff\xf1",
        b"<svg",
    ]

    @examples(count)
    @given(st.sampled_from(starts), st.binary(max_size=400))
    def run(start: bytes, rest: bytes) -> None:
        survives_here(start + rest)

    run()


def fuzz_arrays(count: int) -> None:
    side = st.integers(0, 9)
    shapes = st.one_of(
        st.tuples(side, side), st.tuples(side, side, st.sampled_from([1, 3, 4])), st.lists(side, max_size=4).map(tuple)
    )
    kinds = st.one_of(
        *NUMBERS, arrays.boolean_dtypes(), arrays.complex_number_dtypes(), arrays.unicode_string_dtypes(max_len=3)
    )

    @examples(count)
    @given(kinds.flatmap(lambda kind: arrays.arrays(kind, shapes)))
    def run(array: np.ndarray) -> None:
        survives(array)

    run()


def fuzz_samples(count: int) -> None:
    rates = st.one_of(
        st.integers(900, 200_000),
        st.sampled_from([8_000, 16_000, 48_000]),
        st.integers(),
        st.floats(),
        st.text(),
        st.none(),
    )
    shapes = st.one_of(st.integers(0, 9_000), st.tuples(st.integers(0, 9_000), st.integers(0, 70)))

    @examples(count)
    @given(rates, st.one_of(*NUMBERS).flatmap(lambda kind: arrays.arrays(kind, shapes, fill=arrays.from_dtype(kind))))
    def run(rate, samples: np.ndarray) -> None:
        survives((rate, samples))

    run()


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_file_is_media_or_an_error(format):
    fuzz_files(format, 200)


@pytest.mark.parametrize("format", sorted(CHILD_FORMATS & set(FORMATS)))
def test_a_damaged_file_is_media_or_an_error_through_the_child(format):
    data = original(format)
    for at in range(0, len(data), len(data) // 4):
        survives(data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :])


def test_random_bytes_are_an_error():
    fuzz_bytes(1_000)


def test_any_array_is_a_picture_or_an_error():
    fuzz_arrays(400)


def test_any_rate_and_samples_are_a_sound_or_an_error():
    fuzz_samples(300)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_many_damaged_files_are_media_or_errors(format):
    fuzz_files(format, 3_000)


@pytest.mark.slow
def test_many_random_inputs_are_media_or_errors():
    fuzz_bytes(20_000)
    fuzz_arrays(5_000)
    fuzz_samples(2_000)
