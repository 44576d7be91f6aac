"""BLIP (arXiv 2201.12086): a ViT, and a BERT that looks at it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from captioners.profiles.hub.blank import no_input
from captioners.profiles.hub.families import CaptionModel, family
from captioners.profiles.hub.matchers import processed
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.vocabularies import WordPieceVocabulary, with_words
from captioners.types import Media


@family("blip")
def load(path: Path, source: Source, loader: ModelLoader) -> CaptionModel:
    """A caption begins with the start token that stands behind BERT's vocabulary and ends with [SEP]."""
    from transformers import AutoTokenizer, BlipForConditionalGeneration, BlipImageProcessor

    from captioners.nets.from_transformers import blip_decoder

    model = loader.ready(BlipForConditionalGeneration.from_pretrained(path, dtype=loader.dtype))
    encoder, processor, text = model.vision_model, BlipImageProcessor.from_pretrained(path), model.config.text_config

    def grids(media: list[Media]) -> Tensor:
        cells: Tensor = encoder(processed(processor, media, loader)).last_hidden_state
        return cells

    blank = no_input("image", path, source, grids, loader)
    vocabulary = WordPieceVocabulary(
        with_words(AutoTokenizer.from_pretrained(path)), text.bos_token_id, text.sep_token_id, text.vocab_size
    )
    return CaptionModel("image", vocabulary, grids, loader.ready(blip_decoder(model, blank.null)), blank)
