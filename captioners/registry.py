"""The register of methods: a method is one file in `captioners/methods` and one decorator."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TypeVar

from captioners.captioner import Captioner
from captioners.profiles.base import Profile, load_profile
from captioners.resources import PACKAGE
from captioners.types import CaptionLabError, Spec

Method = TypeVar("Method", bound=type[Captioner])

_METHODS: dict[str, type[Captioner]] = {}


def register(method: Method) -> Method:
    """Class decorator: makes a method known under its spec's id."""
    _METHODS[method.spec.id] = method
    return method


def available() -> list[Spec]:
    """The specs of all methods, in a stable order."""
    return [m.spec for m in _methods().values()]


def find(name: str) -> type[Captioner]:
    """The method of that id."""
    methods = _methods()
    if name not in methods:
        raise CaptionLabError(f"There is no method called {name!r}: choose from {', '.join(methods)}.")
    return methods[name]


def load(name: str, profile: str | Profile = "embedded", device: str = "auto") -> Captioner:
    """A method with its weights. Give a loaded Profile to share models between methods."""
    method = find(name)
    return method((load_profile(profile, device) if isinstance(profile, str) else profile).models_for(name))


def _methods() -> dict[str, type[Captioner]]:
    """All methods, every file of the folder having been imported."""
    for module in pkgutil.iter_modules([str(PACKAGE / "methods")]):
        import_module(f"captioners.methods.{module.name}")
    return _METHODS
