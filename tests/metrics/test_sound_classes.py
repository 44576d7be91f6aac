"""The hand-written table of sounds: every caption names its own sound, and a prompt names no other."""

import pytest

from captioners.metrics.base import CaptionSet
from captioners.metrics.naming import naming
from captioners.metrics.sound_words import SOUND_WORDS, names_sound
from captioners.sound_classes import CITY, ESC50, MUSIC, SOUND_CLASSES, VOICES


def test_the_table_has_fifty_classes_beside_voices_music_and_the_city():
    assert len(ESC50) == 50
    assert {*ESC50, *VOICES, *MUSIC, *CITY} == set(SOUND_CLASSES)
    assert set(SOUND_WORDS) == {*ESC50, *CITY}


@pytest.mark.parametrize("category", SOUND_CLASSES)
def test_every_caption_of_a_class_names_it(category):
    for caption in SOUND_CLASSES[category].captions:
        assert names_sound(category, caption), caption


# what one word names of two classes: a rooster crows as a crow does, and both are heard in one word
SHARED = {
    ("rooster", "crow"),
    ("crow", "rooster"),
    ("church_bells", "clock_alarm"),
    ("chirping_birds", "crickets"),
    ("crickets", "chirping_birds"),
}


@pytest.mark.parametrize("category", ESC50)
def test_a_prompt_names_no_other_sound(category):
    prompt = SOUND_CLASSES[category].captions[0]
    others = [
        other for other in ESC50 if other != category and names_sound(other, prompt) and (category, other) not in SHARED
    ]
    assert others == []


def test_any_voice_names_a_voice_but_not_the_other_ones_and_no_music():
    assert names_sound("speech", "a woman talks") and names_sound("happy_man_speaks", "someone speaks")
    assert not names_sound("speech_man", "a woman talks")
    assert not names_sound("music", "a woman talks")
    assert names_sound("jazz_music", "a saxophone plays")


def test_naming_is_the_share_of_captions_that_name_their_clip():
    rows = CaptionSet(["a", "b"], ["a dog barks", "a dog barks"], categories=["dog", "rain"])
    (result,) = naming(rows)
    assert (result.name, result.mean, result.items) == ("named", 0.5, [1.0, 0.0])
