"""Pictures to race on, and a method's captions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from captioners import registry
from captioners.profiles.base import Profile
from captioners.types import Media, Result


def picture(seed: int) -> Media:
    """Smooth random colours: what is in a picture does not change how long a token takes."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Media("image", small.repeat(56, 0).repeat(56, 1))


def captions(name: str, profile: Profile) -> Callable[..., list[Result]]:
    """A function (media, **settings) → results of one method."""
    method = registry.load(name, profile)

    def caption(media: list[Media], **values: Any) -> list[Result]:
        return method.caption_batch(media, [method.spec.settings(**values)] * len(media))

    return caption
