"""Captions for clips that have a class."""

import itertools
import random

import pytest

from captioners.sound_classes import MUSIC, SOUND_CLASSES, VOICES
from captioners.training import Job
from captioners.training.sound_captions import FOUND_BY_HAND_ONLY, LONGEST, MOST, captions_by_class, joined

ONE_SOUND = {
    "a dog barks loudly": "dog",
    "Rain is pouring down on a tin surface.": None,  # pouring is another class
    "rain falls hard": "rain",
    "a man is talking": "speech_man",
    "a woman speaks slowly": "speech_woman",
    "a piano tune": "piano",
    "a guitar song plays": "guitar",
    "a dog barks and a cat meows": None,
    "a dog barks near a running train": None,
    "thunder, then silence": None,
    "a helicopter is flying very high up in the sky above us": None,  # too long
    "the engine runs": None,  # a class whose words mean other things too often
    "something happens": None,
}


@pytest.fixture(scope="module")
def by_class(tmp_path_factory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("sounds")
    prompts = [sound.captions[0] for sound in SOUND_CLASSES.values() if sound.words]
    pairs = [f"{a} near {b}" for a, b in itertools.permutations(prompts, 2)]
    many = [f"a cow moos {number}" for number in range(100)]
    (folder / "one.txt").write_text("\n".join([*ONE_SOUND, *pairs]))
    (folder / "two.txt").write_text("\n".join(["A dog barks loudly", *many]))
    entries = [f'[[texts]]\nname = "{name}"\nfiles = ["{name}.txt"]\nof = "audio"\n' for name in ("one", "two")]
    (folder / "data.toml").write_text("\n".join(entries))
    return captions_by_class(Job(folder, folder, folder))


@pytest.mark.parametrize(("caption", "category"), ONE_SOUND.items())
def test_a_found_caption_goes_to_the_one_class_that_it_names(by_class, caption, category):
    assert [name for name, some in by_class.items() if caption.lower() in some] == ([category] if category else [])


def test_no_found_caption_names_another_sound(by_class):
    for category, captions in by_class.items():
        own = SOUND_CLASSES[category].captions
        assert tuple(captions[: len(own)]) == own
        kin = next((group for group in (VOICES, MUSIC) if category in group), (category,))
        for caption in captions[len(own) :]:
            assert category not in FOUND_BY_HAND_ONLY
            assert len(caption.split()) <= LONGEST
            assert {name for name, sound in SOUND_CLASSES.items() if sound.named_in(caption)} <= set(kin)


def test_no_class_has_more_than_its_share_and_none_has_a_caption_twice(by_class):
    assert len(by_class["cow"]) == MOST + len(SOUND_CLASSES["cow"].captions)
    assert all(len(captions) == len(set(captions)) for captions in by_class.values())


def test_two_sounds_make_one_caption():
    made = {joined("a dog barks", "rain falls", random.Random(seed)) for seed in range(20)}
    assert "a dog barks while rain falls" in made
    assert all("a dog barks" in text and "rain falls" in text for text in made)
