"""Text models of transformers: GPT-2 as a player and as the fluency judge, DistilBERT as a classifier, RoBERTa for
BERTScore.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from captioners.contract import TokenVectors
from captioners.nets.gpt2 import Gpt2
from captioners.nets.language_model import sequence_log_likelihood
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.vocabularies import Gpt2Vocabulary, with_words
from captioners.text import clean
from captioners.types import Modality

BATCH = 64


def language_model(role: str, loader: ModelLoader) -> tuple[Gpt2, Gpt2Vocabulary]:
    """In full precision on every device: method 2 walks down its cache's gradient."""

    def load(path: Path, source: Source) -> tuple[Gpt2, Gpt2Vocabulary]:
        from transformers import GPT2LMHeadModel, GPT2TokenizerFast

        net = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32)
        return loader.ready(Gpt2(net)), Gpt2Vocabulary(with_words(GPT2TokenizerFast.from_pretrained(path)))

    return loader.get(role, load)


class Gpt2Fluency:
    """A GPT-2 behind the `FluencyJudge` protocol: the caption as a sentence of its own, with its full stop."""

    human: Mapping[Modality, float] = MappingProxyType({})  # nobody has measured people's captions under it

    def __init__(self, loader: ModelLoader):
        self.net, self.tokenizer = language_model("fluency-judge", loader)
        self.name = f"GPT-2 {loader.names['fluency-judge']}"
        self.device = loader.device

    @torch.no_grad()
    def log_likelihood(self, texts: list[str]) -> list[float]:
        """The log-likelihood of each text in nats, the end of the sentence included."""
        t, nats = self.tokenizer, []
        rows = [[t.bos, *t.encode(clean(text)), t.eos][: self.net.config.context] for text in texts]
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            ids = t.batch(batch).to(self.device)
            lengths = torch.tensor([len(r) for r in batch], device=self.device)
            is_token = torch.arange(1, ids.shape[1], device=self.device) < lengths[:, None]
            logits, _ = self.net(ids[:, :-1])  # what stands behind a row's end changes nothing before it
            nats += sequence_log_likelihood(logits, ids[:, 1:].masked_fill(~is_token, -100), -100).tolist()
        return nats


class TransformersClassifier:
    """A sequence classifier with one or two outputs; the last one is "yes"."""

    def __init__(self, role: str, loader: ModelLoader):
        self.loader = loader
        self.net, self.tokenizer = loader.get(role, self._load)
        self.name = f"DistilBERT {loader.names[role]}"

    def _load(self, path: Path, source: Source) -> tuple[Any, Any]:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        net = AutoModelForSequenceClassification.from_pretrained(path, dtype=self.loader.dtype)
        return self.loader.ready(net), with_words(AutoTokenizer.from_pretrained(path))

    @torch.no_grad()
    def probability(self, texts: list[str]) -> Tensor:
        """(n,): the probability of "yes"."""
        probabilities = []
        for start in range(0, len(texts), 2 * BATCH):
            batch = texts[start : start + 2 * BATCH]
            inputs = self.tokenizer(batch, padding=True, truncation=True, return_tensors="pt").to(self.loader.device)
            logits = self.net(**inputs).logits.float()
            probabilities.append(logits[:, 0].sigmoid() if logits.shape[1] == 1 else logits.softmax(-1)[:, -1])
        return torch.cat(probabilities)


class BertTexts:
    """A BERT or RoBERTa behind the `TextJudge` protocol: the hidden layer that agrees best with people, as its
    source says.
    """

    def __init__(self, loader: ModelLoader) -> None:
        self.loader, self.layer = loader, loader.sources["text-judge"].layer
        self.net, self.tokenizer = loader.get("text-judge", self._load)
        depth = self.net.config.num_hidden_layers
        if self.layer > depth:
            raise ProfileError(
                f"The text-judge has {depth} layers, not {self.layer}: name another layer with --models FILE."
            )
        self.layer = self.layer or depth
        self.name = f"BERTScore {loader.names['text-judge']}, layer {self.layer}"

    def _load(self, path: Path, source: Source) -> tuple[Any, Any]:
        from transformers import AutoModel, AutoTokenizer

        net = AutoModel.from_pretrained(path, dtype=self.loader.dtype)
        return self.loader.ready(net), with_words(AutoTokenizer.from_pretrained(path))

    @torch.no_grad()
    def embed_tokens(self, texts: list[str]) -> list[TokenVectors]:
        """Each sentence's tokens in their context; byte-level vocabularies begin every word with a space, the first
        one too.
        """
        from transformers import GPT2Tokenizer, RobertaTokenizer

        space = " " if isinstance(self.tokenizer, GPT2Tokenizer | RobertaTokenizer) else ""
        sentences = [space + text.strip() if text.strip() else "" for text in texts]
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # those of one length together
        by_sentence: dict[int, TokenVectors] = {}
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            rows = self.tokenizer(
                [sentences[i] for i in batch],
                padding=True,
                truncation=True,
                return_tensors="pt",
                return_special_tokens_mask=True,
            ).to(self.loader.device)
            special = rows.pop("special_tokens_mask").bool()
            hidden = self.net(**rows, output_hidden_states=True).hidden_states[self.layer].float()
            vectors = (hidden / hidden.norm(dim=-1, keepdim=True)).cpu()
            for i, length, row, marks in zip(
                batch, rows["attention_mask"].sum(1).tolist(), vectors, special.cpu(), strict=True
            ):
                by_sentence[i] = TokenVectors(row[:length], ~marks[:length])
        return [by_sentence[i] for i in range(len(texts))]
