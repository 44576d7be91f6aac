"""GIT (arXiv 2205.14100): a picture's cells stand before the text of one decoder.

p(x) is the text without them, unless another choice is made.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from captioners.profiles.hub.blank import NoInput, no_input
from captioners.profiles.hub.families import CaptionModel, family
from captioners.profiles.hub.matchers import processed
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.vocabularies import WordPieceVocabulary, with_words
from captioners.types import Media


@family("git")
def load(path: Path, source: Source, loader: ModelLoader) -> CaptionModel:
    """A caption begins with [CLS] and ends with [SEP]."""
    from transformers import AutoTokenizer, CLIPImageProcessor, GitForCausalLM

    from captioners.nets.from_transformers import git_decoder

    model = loader.ready(GitForCausalLM.from_pretrained(path, dtype=loader.dtype))
    encoder, project, processor = (
        model.git.image_encoder,
        model.git.visual_projection,
        CLIPImageProcessor.from_pretrained(path),
    )

    def grids(media: list[Media]) -> Tensor:
        cells: Tensor = project(encoder(processed(processor, media, loader)).last_hidden_state)
        return cells

    tokenizer = with_words(AutoTokenizer.from_pretrained(path))
    vocabulary = WordPieceVocabulary(tokenizer, tokenizer.cls_token_id, tokenizer.sep_token_id, model.config.vocab_size)
    blank = NoInput("the text alone, without any picture,")
    if source.blank.form:
        blank = no_input("image", path, source, grids, loader).as_prefix(model.config.hidden_size)
    return CaptionModel("image", vocabulary, grids, loader.ready(git_decoder(model)), blank)
