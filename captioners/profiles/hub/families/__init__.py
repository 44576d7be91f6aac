"""Captioners of other libraries, one family a file: each says which configurations it reads and makes a `CaptionModel`
of a folder.

A family is added as a method is: one file here, one decorator.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captioners.contract import ConditionalDecoder
from captioners.nets.mixture import MixtureDecoder
from captioners.nets.replayed import ReplayedDecoder
from captioners.profiles.hub.blank import NoInput
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.vocabularies import Vocabulary
from captioners.types import Media, Modality


@dataclass(frozen=True)
class CaptionModel:
    """A captioner as method 1 sees it."""

    kind: Modality  # what it describes
    vocabulary: Vocabulary
    grids: Callable[[list[Media]], Tensor]  # (n, cells, width), on the device
    decoder: Any  # a `ConditionalDecoder`; a training asks more of it
    no_input: NoInput  # what stands for none in p(x)
    net: Any = None  # the library's own model, for a training that goes on with it


Loader = Callable[[Path, Source, ModelLoader], CaptionModel]
_FAMILIES: dict[str, Loader] = {}


def family(model_type: str) -> Callable[[Loader], Loader]:
    """Decorator of a function that loads captioners whose configuration names this type."""

    def add(load: Loader) -> Loader:
        _FAMILIES[model_type] = load
        return load

    return add


def families() -> dict[str, Loader]:
    """All families of this package's files, by the type that configurations name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(_FAMILIES)


def load_captioner(path: Path, source: Source, loader: ModelLoader) -> CaptionModel:
    """The captioner in a folder, by whichever family reads it."""
    by_type, kind = families(), model_type(path, source)
    if kind not in by_type:
        raise ValueError(
            f"it is a {kind or 'model without a configuration'}, and captioners are one of {', '.join(by_type)}."
        )
    model = by_type[kind](path, source, loader)
    return model if loader.trains else replace(model, decoder=_decoder(model, loader))


@torch.no_grad()
def _decoder(model: CaptionModel, loader: ModelLoader) -> ConditionalDecoder:
    """The captioner's decoder with recorded steps on a GPU, and with a mixture as p(x) where references stand for no
    input.
    """
    steps: ConditionalDecoder = ReplayedDecoder(model.decoder) if loader.replays else model.decoder
    references = model.no_input.references
    if references is None:
        return steps
    return MixtureDecoder(model.decoder, {model.kind: references.to(loader.device)}, seeing=steps)


def model_type(path: Path, source: Source) -> str:
    """What a folder's configuration says that it holds."""
    config = path / "config.json"
    if (path / "open_clip_config.json").is_file() or source.family == "open_clip" or not config.is_file():
        return "open_clip"
    return str(json.loads(config.read_text(encoding="utf-8")).get("model_type", ""))
