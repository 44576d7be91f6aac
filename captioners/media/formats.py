"""What a file is, told from its first bytes; the name it carries counts for nothing.

Only what is recognised here is opened, and by the one decoder meant for it: no decoder gets to guess.
"""

from __future__ import annotations

from captioners.types import Modality

PICTURES = frozenset({"JPEG", "PNG", "WEBP", "AVIF", "HEIF", "GIF", "TIFF", "BMP"})  # as Pillow calls them
SOUNDS = frozenset({"WAV", "FLAC", "OGG", "MP3", "AAC", "MP4", "WebM"})
PICTURE_WORDS = "JPEG, PNG, WebP, AVIF, HEIC, GIF, TIFF or BMP"
SOUND_WORDS = "WAV, FLAC, OGG, MP3, M4A, AAC, WebM, Opus, or an MP4, MOV or WebM video with sound"

_STARTS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
    b"BM": "BMP",
    b"fLaC": "FLAC",
    b"OggS": "OGG",
    b"\x1aE\xdf\xa3": "WebM",
}
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"})


def kind_of(format: str) -> Modality | None:
    """Which modality a format of `sniff` holds."""
    return "image" if format in PICTURES else "audio" if format in SOUNDS else None


def sniff(data: bytes) -> str:
    """The format of `data`: one of PICTURES or SOUNDS, "SVG", or "" for anything else."""
    for start, format in _STARTS.items():
        if data.startswith(start):
            return format
    if data[:4] in (b"RIFF", b"RIFX", b"RF64"):
        return {b"WAVE": "WAV", b"WEBP": "WEBP"}.get(data[8:12], "")
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return _iso_media(data)
    if data.startswith(b"ID3"):
        inside = data[id3_size(data) :]
        return "AAC" if _is_adts(inside) else "FLAC" if inside.startswith(b"fLaC") else "MP3"
    if _is_adts(data):
        return "AAC"
    if _is_mpeg_audio(data):
        return "MP3"
    return "SVG" if _is_svg(data) else ""


def id3_size(data: bytes) -> int:
    """How many bytes of ID3v2 tags (titles, cover pictures) stand before the sound."""
    end = 0
    while data[end : end + 3] == b"ID3" and len(data) >= end + 10:
        a, b, c, d = (byte & 0x7F for byte in data[end + 6 : end + 10])
        footer = 10 if data[end + 5] & 0x10 else 0
        end += 10 + (a << 21 | b << 14 | c << 7 | d) + footer
    return end


def _iso_media(data: bytes) -> str:
    """HEIC, AVIF and MP4 share a container; its first box lists the brands."""
    if data[4:8] != b"ftyp":
        return "MP4"
    size = min(int.from_bytes(data[:4], "big"), 1024)
    brands = {data[i : i + 4] for i in (8, *range(16, size, 4))}
    if brands & {b"avif", b"avis"}:
        return "AVIF"
    return "HEIF" if brands & _HEIF_BRANDS else "MP4"


def _is_adts(data: bytes) -> bool:
    return len(data) > 2 and data[0] == 0xFF and data[1] & 0xF6 == 0xF0


def _is_mpeg_audio(data: bytes) -> bool:
    """A frame header of MPEG layer II or III with a bit rate and a sample rate that exist."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer, bitrate, rate = data[1] >> 3 & 3, data[1] >> 1 & 3, data[2] >> 4, data[2] >> 2 & 3
    return version != 1 and layer in (1, 2) and bitrate != 15 and rate != 3


def _is_svg(data: bytes) -> bool:
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith(b"<") and b"<svg" in head
