"""The files that the page offers to begin with; CREDITS.md beside them has their licences.

The page opens on the first one, an orchestra: guidance sees the musicians. By `captioners.evaluation.first_example` the
judge likes the change on three of its four cards.
"""

from __future__ import annotations

from captioners.resources import EXAMPLES

PICTURE_NAMES = [
    "orchestra",
    "polar-bear",
    "cow",
    "giraffes",
    "kitten",
    "kitchen",
    "pool",
    "beach",
    "baseball",
    "dog",
    "sheep",
    "astronaut",
    "cat",
    "coffee",
]
SOUND_NAMES = ["rooster", "crickets", "baby", "barking", "mooing", "applause", "typing", "guitar", "party", "bell"]
PICTURES = [str(EXAMPLES / f"{name}.jpg") for name in PICTURE_NAMES]
SOUNDS = [str(EXAMPLES / f"{name}.ogg") for name in SOUND_NAMES]
