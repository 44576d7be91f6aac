"""open_clip's CoCa: pictures through a ViT and a pooler, captions by two decoders."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from captioners.nets.coca import CocaDecoder, normalised
from captioners.nets.refit import for_few_rows
from captioners.profiles.hub.blank import no_input
from captioners.profiles.hub.families import CaptionModel, family
from captioners.profiles.hub.matchers import load_open_clip, pixels
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.vocabularies import ClipVocabulary
from captioners.types import Media


@family("open_clip")
def load(path: Path, source: Source, loader: ModelLoader) -> CaptionModel:
    """The decoder shares its weights with the model, which a training saves again."""
    from open_clip.tokenizer import SimpleTokenizer

    coca, transform = load_open_clip(path, source, loader)
    if not hasattr(coca, "text_decoder"):
        raise ValueError("it is no CoCa.")
    if loader.device == "cpu":
        for_few_rows(coca, coca.visual)

    def grids(media: list[Media]) -> Tensor:
        cells: Tensor = coca.visual(pixels(transform, media, loader))[1]
        return cells

    # every layer has a norm of its own before its keys and values; a training learns a cell that goes through it
    blank = no_input("image", path, source, grids, loader, None if loader.trains else normalised)
    decoder = loader.ready(CocaDecoder(coca, blank.null, blank.normalised))
    return CaptionModel("image", ClipVocabulary(SimpleTokenizer()), grids, decoder, blank, coca)
