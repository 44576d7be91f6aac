"""Part `tokenizer`: one BPE over all caption text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from captioners.text import CaptionTokenizer
from captioners.training import Job, corpus


@dataclass(frozen=True)
class Vocabulary:
    """How many tokens.

    6,144 would make a caption 3 % shorter and 8,192 4 %, with output layers half as large again, and twice.
    """

    size: int = 4096


def train(name: str, job: Job) -> dict[str, Any]:
    (vocabulary,) = job.configured(Vocabulary())
    tokenizer = CaptionTokenizer.train(corpus.everything(job.data), vocabulary.size, [*corpus.texts(job.data)])
    job.out.mkdir(parents=True, exist_ok=True)
    tokenizer.tokenizer.save(str(job.out / "tokenizer.json"), pretty=False)
    dev = {
        source: [c for p in corpus.pictures(job.data, "dev", source) for c in p.captions]
        for source in corpus.picture_sets(job.data)
    }
    dev["sounds"] = corpus.captions_about(job.data, "audio", "dev")
    ids = {kind: tokenizer.encode_all(texts) for kind, texts in dev.items()}
    per_word = {
        f"tokens_per_word_{k}": sum(map(len, ids[k])) / max(1, sum(len(c.split()) for c in dev[k])) for k in dev
    }
    unknown = sum(i == tokenizer.unk for rows in ids.values() for row in rows for i in row)
    return {"vocabulary": len(tokenizer), **per_word, "unknown": unknown}


def load_tokenizer(job: Job) -> CaptionTokenizer:
    """The tokenizer of the output folder, or the shipped one."""
    return CaptionTokenizer(Tokenizer.from_file(str(job.find("tokenizer"))))
