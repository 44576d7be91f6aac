"""The files that the page offers to begin with; CREDITS.md beside them has their licences."""

from __future__ import annotations

from captioners.resources import EXAMPLES

PICTURES = [str(EXAMPLES / f"{name}.jpg") for name in ("dog", "beach", "baseball", "astronaut", "cat", "coffee")]
SOUNDS = [str(EXAMPLES / f"{name}.ogg") for name in ("rooster", "crickets", "baby", "bell", "guitar", "party")]
