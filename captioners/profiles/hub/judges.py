"""What only ever scores in the hub profile: other checkpoints than the players', from a library of their own."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from captioners.profiles import embedded
from captioners.profiles.hub.library import Library
from captioners.profiles.hub.matchers import ClapMatcher, ClipMatcher, matcher
from captioners.profiles.hub.texts import BertTexts, Gpt2Fluency
from captioners.types import Modality


class HubJudges:
    """CLIPScore's own encoder, another CLAP, another GPT-2; the audibility judge is the embedded one."""

    def __init__(self, library: Library):
        self.library = library
        self.matchers: dict[Modality, ClipMatcher | ClapMatcher] = {}

    def matcher(self, kind: Modality) -> ClipMatcher | ClapMatcher:
        """CLIPScore's encoder, or its twin for sound."""
        if kind not in self.matchers:
            self.matchers[kind] = matcher(kind, "judge", self.library)
        return self.matchers[kind]

    @cached_property
    def _fluency(self) -> Gpt2Fluency:
        return Gpt2Fluency(self.library)

    def fluency(self) -> Gpt2Fluency:
        """Perplexity's language model."""
        return self._fluency

    @cached_property
    def _texts(self) -> BertTexts:
        return BertTexts(self.library)

    def texts(self) -> BertTexts:
        """BERTScore's encoder."""
        return self._texts

    @cached_property
    def _embedded(self) -> Any:
        return embedded.profile(self.library.device).judges

    def audibility(self) -> Any:
        """The share of audible captions."""
        return self._embedded.audibility()
