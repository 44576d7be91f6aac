"""The one error of this package, and the boundary that turns every other one into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from captioners.types import CaptionLabError


class MediaError(CaptionLabError):
    """A picture or sound that cannot be used; its text is one sentence that says what to do."""


@contextmanager
def boundary(sentence: str) -> Iterator[None]:
    """Whatever a decoder raises inside leaves as a MediaError: `sentence`, or one about memory."""
    try:
        yield
    except MediaError:
        raise
    except MemoryError as error:
        raise MediaError("This needs too much memory: make the picture smaller or the sound shorter.") from error
    except Exception as error:
        raise MediaError(sentence) from error
