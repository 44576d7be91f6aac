"""The files that the page offers to begin with; CREDITS.md beside them has their licences."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "examples"
PICTURES = [str(FOLDER / f"{name}.jpg") for name in ("dog", "beach", "baseball", "astronaut", "cat", "coffee")]
SOUNDS = [str(FOLDER / f"{name}.ogg") for name in ("rooster", "crickets", "baby", "bell", "guitar", "party")]
