"""What only ever scores in the hub profile: other checkpoints than the methods', from a loader of their own."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from captioners.profiles import embedded
from captioners.profiles.hub.matchers import ClapMatcher, ClipMatcher, matcher
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.texts import BertTexts, Gpt2Fluency
from captioners.types import Modality


class HubJudges:
    """CLIPScore's own encoder, another CLAP, another GPT-2; the audibility judge is the embedded one."""

    def __init__(self, loader: ModelLoader):
        self.loader = loader
        self.matchers: dict[Modality, ClipMatcher | ClapMatcher] = {}

    def matcher(self, kind: Modality) -> ClipMatcher | ClapMatcher:
        """CLIPScore's encoder, or its twin for sound."""
        if kind not in self.matchers:
            self.matchers[kind] = matcher(kind, "judge", self.loader)
        return self.matchers[kind]

    @cached_property
    def _fluency(self) -> Gpt2Fluency:
        return Gpt2Fluency(self.loader)

    def fluency(self) -> Gpt2Fluency:
        """Perplexity's language model."""
        return self._fluency

    @cached_property
    def _texts(self) -> BertTexts:
        return BertTexts(self.loader)

    def texts(self) -> BertTexts:
        """BERTScore's encoder."""
        return self._texts

    @cached_property
    def _embedded(self) -> Any:
        return embedded.profile(self.loader.device).judges

    def audibility(self) -> Any:
        """The share of audible captions."""
        return self._embedded.audibility()
