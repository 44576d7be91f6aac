"""Clips as training hears them: played at other speeds, rare classes more often, two over each other."""

import random

import torch

from captioners.nets.encoders import AUDIO_RATE, WINDOW
from captioners.training.audio_encoder import drawn
from captioners.training.sound_pairs import Version
from captioners.training.sounds import played


def tone(pitch: float) -> torch.Tensor:
    return torch.sin(2 * torch.pi * pitch * torch.arange(WINDOW) / AUDIO_RATE)


def loudest_pitch(clip: torch.Tensor) -> float:
    return torch.fft.rfft(clip).abs().argmax().item() * AUDIO_RATE / len(clip)


def test_a_clip_played_faster_is_as_much_higher_and_as_long():
    faster = played(tone(500), 1.1)
    assert faster.shape == (WINDOW,)
    assert abs(loudest_pitch(faster) - 550) < 1


def test_at_its_own_speed_a_clip_is_what_it_was():
    clip = torch.randn(WINDOW)
    assert torch.equal(played(clip, 1.0), clip)


def test_rare_classes_are_drawn_more_often_than_their_clips_are_many():
    label = torch.tensor([0] * 900 + [1] * 100)
    counts = {b: label[drawn(label, b, torch.Generator().manual_seed(0))].bincount() for b in (0.0, 0.5, 1.0)}
    assert counts[0.0].tolist() == [900, 100]
    assert 200 < counts[0.5][1] < 300  # √900 : √100
    assert 440 < counts[1.0][1] < 560


def test_two_sounds_laid_over_each_other_are_equally_loud():
    samples = torch.stack([tone(500), 0.1 * tone(2000)]).mul(32767).to(torch.int16)
    spectrum = torch.fft.rfft(Version(0, 1).made(samples)).abs()
    at = [round(pitch * WINDOW / AUDIO_RATE) for pitch in (500, 2000)]
    assert torch.isclose(spectrum[at[0]], spectrum[at[1]], rtol=0.05)


def test_a_version_without_change_is_the_clip():
    samples = tone(500)[None].mul(32767).to(torch.int16)
    assert torch.allclose(Version(0).made(samples), samples[0] / 32767)
    assert not torch.allclose(Version.drawn(0, None, random.Random(0)).made(samples), samples[0] / 32767)
