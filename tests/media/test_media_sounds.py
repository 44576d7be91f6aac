"""What `load_media` makes of a sound: the right samples, whatever the format, or one clear sentence."""

from __future__ import annotations

import media_files as files
import numpy as np
import pytest
from media_files import refusal

from captioners.media import AUDIO_RATE, MediaError, load_media, waveform


def pitch(samples: np.ndarray) -> float:
    """The strongest frequency, in hertz, of a clip at AUDIO_RATE."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * AUDIO_RATE / len(samples))


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
    [
        np.zeros(0),
        np.zeros((0, 2)),
        np.zeros((100, 0)),
        np.zeros((2, 16_000)),
        np.zeros((4, 4, 4)),
        [],
        "noise",
        [1j],
        [[1], [1, 2]],
        None,
    ],
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


@pytest.mark.parametrize(
    ("rate", "kept"), [(8_000, None), (16_000, None), (44_100, 44_100), (48_000, 48_000), (96_000, 48_000)]
)
def test_tones_above_eight_kilohertz_are_kept_beside_the_samples(rate, kept):
    time = np.arange(rate) / rate
    tone = 3 * np.sin(2 * np.pi * min(12_000, rate / 3) * time).astype(np.float32)
    media = load_media((rate, tone))
    assert media.rate == AUDIO_RATE
    assert (media.band and media.band[1]) == kept
    samples, found = media.widest
    assert found == (kept or AUDIO_RATE)
    assert np.abs(samples).max() <= 1
    loudest = np.abs(np.fft.rfft(samples[: found // 2])).argmax() * 2
    if kept:
        assert loudest == pytest.approx(12_000, abs=10)
        assert np.abs(media.data[500:-500]).max() < 0.1  # the models that hear less have nothing of it
