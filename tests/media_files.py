"""Files of every accepted format, made here: pictures by Pillow, sounds by libsndfile and FFmpeg; and how a file is
refused.
"""

from __future__ import annotations

import io
import struct
import zlib

import av
import numpy as np
import pytest
import soundfile
from PIL import Image
from pillow_heif import register_heif_opener

from captioners.media import MediaError, load_media

register_heif_opener()

PICTURES = ("JPEG", "PNG", "WEBP", "AVIF", "HEIF", "GIF", "TIFF", "BMP")
SOUNDS = ("WAV", "FLAC", "OGG", "MP3", "Opus", "M4A", "AAC", "WebM", "MP4", "MOV")


def red_corner(mode: str = "RGB", size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Blue, with a red quarter at the upper left."""
    image = Image.new("RGB", size, (0, 0, 255))
    image.paste((255, 0, 0), (0, 0, size[0] // 2, size[1] // 2))
    return image.convert(mode)


def picture(format: str, image: Image.Image | None = None, **options) -> bytes:
    """`image`, or the red corner, in that format."""
    buffer = io.BytesIO()
    (image or red_corner()).save(buffer, format, **options)
    return buffer.getvalue()


def tone(seconds: float = 1.0, rate: int = 44_100, hertz: float = 440, level: float = 0.5) -> np.ndarray:
    """A sine, float32."""
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def sound(format: str, samples: np.ndarray | None = None, rate: int = 44_100) -> bytes:
    """`samples`, or one second of a tone, in that format."""
    if format in ("M4A", "AAC", "WebM", "MP4", "MOV"):
        return _through_ffmpeg(format, tone(rate=48_000) if samples is None else samples)
    if format == "Opus":
        return wav(tone(rate=48_000) if samples is None else samples, 48_000, "OPUS", "OGG")
    return wav(tone(rate=rate) if samples is None else samples, rate, None, format)


def wav(samples: np.ndarray, rate: int, subtype: str | None = None, format: str = "WAV") -> bytes:
    """What libsndfile writes."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, subtype=subtype, format=format)
    return buffer.getvalue()


def _through_ffmpeg(format: str, samples: np.ndarray) -> bytes:
    container, codec, film = {
        "M4A": ("mp4", "aac", ""),
        "AAC": ("adts", "aac", ""),
        "WebM": ("webm", "libopus", ""),
        "MP4": ("mp4", "aac", "mpeg4"),
        "MOV": ("mov", "pcm_s16le", "mpeg4"),
    }[format]
    return video(container, film, codec, samples)


def video(container: str, film: str, codec: str = "", samples: np.ndarray | None = None) -> bytes:
    """A video of a few grey frames with mono sound at 48 kHz; either of the two may be left out."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as out:
        streams = []
        if film:
            stream = out.add_stream(film, rate=10, width=64, height=48, pix_fmt="yuv420p")
            frames = [av.VideoFrame.from_ndarray(np.full((48, 64, 3), 128, np.uint8), format="rgb24") for _ in range(5)]
            streams.append((stream, frames))
        if codec:
            stream = out.add_stream(codec, rate=48_000, layout="mono")
            streams.append((stream, [_audio_frame(samples)]))
        for stream, frames in streams:
            for frame in frames:
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    return buffer.getvalue()


def _audio_frame(samples: np.ndarray) -> av.AudioFrame:
    frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
    frame.sample_rate = 48_000
    return frame


# ------------------------------------------------------------------------------------------------- hostile files


def png_chunk(name: bytes, body: bytes) -> bytes:
    """One chunk with its checksum."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_with(extra: bytes) -> bytes:
    """A real PNG with chunks put in behind its header."""
    data = picture("PNG")
    return data[:33] + extra + data[33:]


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that only claims its size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + png_chunk(b"IEND", b"")
    )


def with_declared_size(data: bytes, width: int, height: int) -> bytes:
    """An AVIF or HEIC whose container claims another size."""
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", width, height) + data[at + 8 :]


def tiff(width: int, height: int, tile: int, pixels: bytes) -> bytes:
    """A TIFF of one deflated RGBA tile of tile × tile pixels."""
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 4, 146),
        (259, 3, 1, 8),
        (262, 3, 1, 2),
        (277, 3, 1, 4),
    ]
    entries += [(322, 4, 1, tile), (323, 4, 1, tile), (324, 4, 1, 154), (325, 4, 1, len(pixels)), (338, 3, 1, 2)]
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return (
        b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + b"\0" * 4 + struct.pack("<4H", 8, 8, 8, 8) + pixels
    )


def deflated_zeros(count: int) -> bytes:
    """What inflates to `count` zeros."""
    deflate, block = zlib.compressobj(1), b"\0" * 2**20
    return b"".join(deflate.compress(block) for _ in range(count >> 20)) + deflate.flush()


def mp4_of_samples(count: int, fragment: bool) -> bytes:
    """A small MP4 whose table, or whose fragment, claims `count` samples."""
    inside = 0 if fragment else count
    matrix = _words(0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    begin = _box(b"ftyp", b"isom", _words(0x200), b"isom")
    entry = _box(b"sowt", b"\0" * 6, struct.pack(">H8xHHHH", 1, 1, 16, 0, 0), _words(16_000 << 16))
    table = _box(
        b"stbl",
        _box(b"stsd", _words(0, 1), entry),
        _box(b"stts", _words(0, 1, inside, 2)),
        _box(b"stsc", _words(0, 1, 1, inside, 1)),
        _box(b"stsz", _words(0, 2, inside)),
        _box(b"stco", _words(0, 1, len(begin) + 8)),
    )
    handler = _box(b"hdlr", _words(0, 0), b"soun", b"\0" * 13)
    media = _box(
        b"mdia",
        _box(b"mdhd", _words(0, 0, 0, 16_000, inside, 0)),
        handler,
        _box(b"minf", _box(b"smhd", _words(0, 0)), table),
    )
    track = _box(b"trak", _box(b"tkhd", _words(3, 0, 0, 1, 0, inside), b"\0" * 16, matrix, _words(0, 0)), media)
    head = _box(b"mvhd", _words(0, 0, 0, 16_000, inside, 0x10000), b"\0" * 12, matrix, b"\0" * 24, _words(2))
    extends = _box(b"mvex", _box(b"trex", _words(0, 1, 1, 2, 2, 0)))
    run = _box(b"traf", _box(b"tfhd", _words(0x20000, 1)), _box(b"trun", _words(1, count, 8)))
    moof = _box(b"moof", _box(b"mfhd", _words(0, 1)), run)
    data = _box(b"mdat", b"\0" * 65_536)
    return begin + data + _box(b"moov", head, track, extends if fragment else b"") + (moof + data if fragment else b"")


def ogg_of_codebooks(count: int) -> bytes:
    """A Vorbis stream of 3 kB whose codebooks have eight million entries each."""
    bits = "".join(_bits(value, width) for value, width in [(count - 1, 8)] + count * _CODEBOOK)
    setup = int(bits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")
    ident = b"\x01vorbis" + struct.pack("<IBIiiiBB", 0, 1, 16_000, 0, 64_000, 0, 0xB8, 1)
    comment = b"\x03vorbis" + b"\0" * 8 + b"\x01"
    return _ogg_page([ident], 0, 2) + _ogg_page([comment, b"\x05vorbis" + setup], 1, 0)


_ENTRIES = 2**23 - 1
# ordered, all of length 23
_CODEBOOK = [(0x564342, 24), (1, 16), (_ENTRIES, 24), (1, 1), (22, 5), (_ENTRIES, 23), (0, 4)]


def _bits(value: int, width: int) -> str:
    return format(value, f"0{width}b")[::-1]


def _ogg_page(packets: list[bytes], number: int, flags: int) -> bytes:
    lacing = b"".join(b"\xff" * (len(p) // 255) + bytes([len(p) % 255]) for p in packets)
    page = (
        b"OggS\0"
        + bytes([flags])
        + struct.pack("<qIII", 0, 1, number, 0)
        + bytes([len(lacing)])
        + lacing
        + b"".join(packets)
    )
    return page[:22] + struct.pack("<I", _ogg_checksum(page)) + page[26:]


def _ogg_checksum(page: bytes) -> int:
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value & 0x80000000 else 0)) & 0xFFFFFFFF
    return value


def _box(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), name) + body


def _words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def refusal(source, kind=None) -> str:
    """The sentence with which `source` is refused."""
    with pytest.raises(MediaError) as caught:
        load_media(source, kind)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert ". " not in sentence
    assert "\n" not in sentence
    return sentence
