"""What `load_media` takes and refuses, whatever is in it, and that no file takes much memory or time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import media_files as files
import numpy as np
import pytest
from media_files import refusal
from PIL import Image

from captioners.media import MediaError, decoding, load_media

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def near(pixel: np.ndarray, colour: tuple[int, int, int], tolerance: int = 12) -> bool:
    return np.abs(pixel.astype(int) - colour).max() <= tolerance


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
    playlists = (
        f"#EXTM3U\n#EXTINF:1,\nfile://{tmp_path}/secret.wav\n",
        f"ffconcat version 1.0\nfile {tmp_path}/secret.wav\n",
    )
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
    code = (
        "import sys, captioners.media; sys.exit(any(m in sys.modules for m in ('torch', 'torchaudio', 'av', "
        "'soundfile')))"
    )
    root = Path(__file__).parents[2]
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
    "png with a text of 300 MB": lambda: files.png_with(
        files.png_chunk(b"zTXt", b"a\0\0" + files.deflated_zeros(300 << 20))
    ),
    "png with a colour profile of 300 MB": lambda: files.png_with(
        files.png_chunk(b"iCCP", b"a\0\0" + files.deflated_zeros(300 << 20))
    ),
    "gif of 4295 megapixels": lambda: b"GIF89a" + b"\xff" * 4 + files.picture("GIF")[10:],
    "tiff of 3600 megapixels": lambda: files.tiff(60_000, 60_000, 16, files.deflated_zeros(1 << 20)),
    "tiff with a hidden tile of 1.4 GB": lambda: files.tiff(16, 16, 19_200, files.deflated_zeros(1406 << 20)),
    "webp of 268 megapixels": lambda: b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\xff\x3f\0\xff\x3f\0",
    "bmp of 3600 megapixels": lambda: (
        files.picture("BMP")[:18] + (60_000).to_bytes(4, "little") * 2 + files.picture("BMP")[26:]
    ),
    "avif of 400 megapixels": lambda: files.with_declared_size(files.picture("AVIF"), 20_000, 20_000),
    "heic of 400 megapixels": lambda: files.with_declared_size(files.picture("HEIF"), 20_000, 20_000),
    "wav that promises 4 GB": lambda: files.wav(np.zeros(100), 16_000)[:40] + b"\xff" * 4 + b"\0" * 99,
    "mp4 with 60 million samples": lambda: files.mp4_of_samples(60_000_000, fragment=False),
    "mp4 with a fragment of 60 million samples": lambda: files.mp4_of_samples(60_000_000, fragment=True),
    "ogg with 256 giant codebooks": lambda: files.ogg_of_codebooks(256),
}
ALLOWED = {
    "largest png": lambda: files.picture("PNG", Image.new("RGBA", (7_070, 7_070), (9, 9, 9, 99)), compress_level=1),
    "flac of sixteen minutes of nothing": lambda: files.wav(
        np.zeros(16 * 60 * 48_000, np.int16), 48_000, "PCM_16", "FLAC"
    ),
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
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    answer, kilobytes = run.stdout.split()
    assert (answer == "refused") == (name in HOSTILE)
    assert int(kilobytes) < 10**6
