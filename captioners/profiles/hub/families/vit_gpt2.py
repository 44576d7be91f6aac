"""ViT-GPT2: transformers' `VisionEncoderDecoderModel` of a ViT and a GPT-2, whose vocabulary the language model
shares.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from captioners.profiles.hub.blank import no_input
from captioners.profiles.hub.families import CaptionModel, family
from captioners.profiles.hub.matchers import processed
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.vocabularies import ByteVocabulary, with_words
from captioners.types import Media


@family("vision-encoder-decoder")
def load(path: Path, source: Source, loader: ModelLoader) -> CaptionModel:
    """A caption begins and ends with <|endoftext|>."""
    from transformers import AutoTokenizer, VisionEncoderDecoderModel, ViTImageProcessor

    from captioners.nets.from_transformers import vit_gpt2_decoder

    model = loader.ready(VisionEncoderDecoderModel.from_pretrained(path, dtype=loader.dtype))
    if model.config.decoder.model_type != "gpt2":
        raise ValueError(f"its decoder is a {model.config.decoder.model_type}, and only a GPT-2 can be read.")
    encoder, processor = model.encoder, ViTImageProcessor.from_pretrained(path)
    project = getattr(model, "enc_to_dec_proj", None)

    def grids(media: list[Media]) -> Tensor:
        cells = encoder(processed(processor, media, loader)).last_hidden_state
        projected: Tensor = cells if project is None else project(cells)
        return projected

    blank = no_input("image", path, source, grids, loader)
    tokenizer, config = with_words(AutoTokenizer.from_pretrained(path)), model.config
    start, end = (
        config.decoder_start_token_id or config.decoder.bos_token_id,
        config.eos_token_id or config.decoder.eos_token_id,
    )
    vocabulary = ByteVocabulary(tokenizer, start, end, config.decoder.vocab_size)
    return CaptionModel("image", vocabulary, grids, loader.ready(vit_gpt2_decoder(model, blank.null)), blank)
