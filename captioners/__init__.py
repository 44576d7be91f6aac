"""Caption Lab: see what guidance does to a caption. Four guided captioning methods behind one adapter.

import captioners
method = captioners.load("cfg")
result = method.caption(captioners.load_media("dog.jpg"), method.spec.settings(guidance_scale=2))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captioners.captioner import Captioner
    from captioners.lab import Lab
    from captioners.media import MediaError, load_media
    from captioners.registry import available, load, register
    from captioners.types import CaptionLabError, Control, Explanation, Media, Result, Settings, Spec, Step, TokenTrace

__version__ = "0.4.0"

# public name → module; imported when first used, so that `import captioners` costs nothing
_HOME = {
    "available": "registry", "load": "registry", "register": "registry", "Captioner": "captioner",
    "load_media": "media", "MediaError": "media", "Lab": "lab",
    "CaptionLabError": "types", "Control": "types", "Explanation": "types", "Media": "types", "Result": "types",
    "Settings": "types", "Spec": "types", "Step": "types", "TokenTrace": "types",
}  # fmt: skip
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'captioners' has no attribute {name!r}")
    return getattr(import_module(f"captioners.{_HOME[name]}"), name)
