"""Whisper trained to caption sound instead of transcribing it (arXiv 2305.09690): the caption follows a line that
names its style.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torchaudio.functional as AF
from torch import Tensor

from captioners.profiles.hub.blank import no_input
from captioners.profiles.hub.families import CaptionModel, family
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.vocabularies import ByteVocabulary, with_words
from captioners.types import Media

STYLE = "clotho > caption: "  # of the published ones: Clotho's captions, in a sentence


@family("whisper")
def load(path: Path, source: Source, loader: ModelLoader) -> CaptionModel:
    """A caption begins with Whisper's own opening and the style, and ends with <|endoftext|>."""
    from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

    from captioners.nets.from_transformers import whisper_decoder

    model = loader.ready(WhisperForConditionalGeneration.from_pretrained(path, dtype=loader.dtype))
    heard, features, tokenizer = (
        model.model.encoder,
        WhisperFeatureExtractor.from_pretrained(path),
        with_words(AutoTokenizer.from_pretrained(path)),
    )

    def grids(media: list[Media]) -> Tensor:
        sounds = [AF.resample(torch.from_numpy(m.data), m.rate, features.sampling_rate).numpy() for m in media]
        inputs = features(sounds, sampling_rate=features.sampling_rate, return_tensors="pt")["input_features"]
        cells: Tensor = heard(inputs.to(loader.device, loader.dtype)).last_hidden_state
        return cells

    opening = [
        i
        for i in tokenizer.convert_tokens_to_ids(
            ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
        )
        if i
    ]
    style: list[int] = tokenizer(STYLE, add_special_tokens=False)["input_ids"]
    opening, start = [*opening, *style[:-1]], style[-1]
    blank = no_input("audio", path, source, grids, loader)
    vocabulary = ByteVocabulary(tokenizer, start, model.config.eos_token_id, model.config.vocab_size)
    return CaptionModel("audio", vocabulary, grids, loader.ready(whisper_decoder(model, blank.null, opening)), blank)
