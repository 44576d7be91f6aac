"""Part `tokenizer`: one BPE over all caption text."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from captioners.profiles.store import WEIGHTS
from captioners.text import CaptionTokenizer
from captioners.training import Job, corpus

VOCAB_SIZE = 4096


def train(name: str, job: Job) -> dict[str, Any]:
    tokenizer = CaptionTokenizer.train(corpus.everything(job.data), VOCAB_SIZE)
    job.out.mkdir(parents=True, exist_ok=True)
    tokenizer.tokenizer.save(str(job.out / "tokenizer.json"), pretty=False)
    dev = [c for p in corpus.pictures(job.data, "dev") for c in p.captions]
    ids = tokenizer.encode_all(dev)
    unknown = sum(i == tokenizer.unk for row in ids for i in row)
    words = sum(len(c.split()) for c in dev)
    tokens = sum(map(len, ids))
    return {"vocabulary": len(tokenizer), "dev_tokens_per_word": tokens / words, "dev_unknown": unknown}


def load_tokenizer(job: Job) -> CaptionTokenizer:
    """The tokenizer of the output folder, or the shipped one."""
    path = next(p for p in (job.out / "tokenizer.json", WEIGHTS / "tokenizer.json") if p.exists())
    return CaptionTokenizer(Tokenizer.from_file(str(path)))
