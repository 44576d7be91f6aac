"""The hand-written table of sounds: every caption names its own sound, and a prompt names no other."""

import pytest

from captioners.metrics.base import Rows
from captioners.metrics.naming import naming
from captioners.sound_classes import ESC50, MUSIC, SOUND_CLASSES, VOICES, named


def test_the_table_has_fifty_classes_beside_voices_and_music():
    assert len(ESC50) == 50
    assert {*ESC50, *VOICES, *MUSIC} == set(SOUND_CLASSES)


@pytest.mark.parametrize("category", SOUND_CLASSES)
def test_every_caption_of_a_class_names_it(category):
    for caption in SOUND_CLASSES[category].captions:
        assert named(category, caption), caption


@pytest.mark.parametrize("category", ESC50)
def test_a_prompt_names_no_other_sound(category):
    prompt = SOUND_CLASSES[category].captions[0]
    assert [other for other in ESC50 if other != category and named(other, prompt)] == []


def test_any_voice_names_a_voice_but_no_music():
    assert named("speech_man", "a woman talks")
    assert not named("music", "a woman talks")


def test_naming_is_the_share_of_captions_that_name_their_clip():
    rows = Rows(["a", "b"], ["a dog barks", "a dog barks"], categories=["dog", "rain"])
    (result,) = naming(rows)
    assert (result.name, result.mean, result.items) == ("named", 0.5, [1.0, 0.0])
