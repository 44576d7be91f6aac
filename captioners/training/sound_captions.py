"""Captions for clips that have only a class: written by hand, and found in AudioCaps and Clotho.

A found caption is about that sound and nothing else: it is short, has one clause, and names no other sound.
"""

from __future__ import annotations

import random
import re

from captioners.sound_classes import SOUND_CLASSES
from captioners.text import clean
from captioners.training import Job, corpus

MORE_THAN_ONE = re.compile(
    r"\b(?:and|then|while|followed|as|after|before|during|with|when|background|distance|over|but)\b|[,;]", re.IGNORECASE
)
LONGEST, MOST = 9, 40  # words; captions of one class
JOINTS = ("{} while {}", "{} and {}", "{} as {}", "{} with {} in the background")
# captions found by these words mean something else in the corpora often enough to be left out
FOUND_BY_HAND_ONLY = (
    "engine",
    "speech",
    "mouse_click",
    "brushing_teeth",
    "can_opening",
    "clock_alarm",
    "church_bells",
    "glass_breaking",
    "washing_machine",
)


def captions_by_class(job: Job) -> dict[str, list[str]]:
    """{class: captions}, the hand-written ones first."""
    by_class: dict[str, list[str]] = {name: [] for name in SOUND_CLASSES}
    for text in dict.fromkeys(clean(t).lower() for t in corpus.captions_about(job.data, "audio")):
        if not of_one_sound(text):
            continue
        name = _the_one([name for name, sound in SOUND_CLASSES.items() if sound.named_in(text)])
        if name is not None and name not in FOUND_BY_HAND_ONLY:
            by_class[name].append(text)
    rng = random.Random(0)
    return {
        name: [*SOUND_CLASSES[name].captions, *rng.sample(captions, min(MOST, len(captions)))]
        for name, captions in by_class.items()
    }


def of_one_sound(caption: str) -> bool:
    """Whether a caption is short and has one clause: most of those speak of a single sound."""
    return len(caption.split()) <= LONGEST and not MORE_THAN_ONE.search(caption)


def _the_one(names: list[str]) -> str | None:
    """The single class named; a man's or woman's speech is also speech, a piano's music also music."""
    for general, special in (
        ("speech", ("speech_man", "speech_woman")),
        ("music", ("piano", "guitar", "street_music")),
    ):
        if sum(name in special for name in names) == 1:
            names = [name for name in names if name != general]
    return names[0] if len(names) == 1 else None


def joined(first: str, second: str, rng: random.Random) -> str:
    """One caption for two sounds that are heard together."""
    return rng.choice(JOINTS).format(first, second)
