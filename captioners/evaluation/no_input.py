"""Which substitute for p(x) is closest to a trained one: measured on the embedded captioner, which knows the truth.

A captioner that was never trained without its picture needs something in its place. Here the embedded captioner, whose null cell was
trained, is asked with each substitute instead: how far are the distributions, and how far the captions that guidance makes of them?

    python -m captioners.evaluation.no_input DIR --split dev --limit 64 --json out.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captioners.contract import FluencyJudge, Matcher
from captioners.evaluation.dataset import read_dataset
from captioners.lab import Lab
from captioners.media import load_media
from captioners.metrics.fluency import log_perplexity
from captioners.metrics.matching import clipscore, embed_captions, embed_media
from captioners.types import CaptionLabError, Media

SCALES = (1.5, 2.0, 3.0)
MAX_TOKENS = 20
MIXED = (4, 16)  # reference pictures in a mixture

LogP = Callable[[Tensor], Tensor]  # ids (n, t) → log p (n, t, vocab)


@dataclass(frozen=True)
class Setting:
    """The captioner, the pictures it is asked about, and others that stand for pictures in general."""

    lab: Lab
    media: list[Media]
    captions: list[str]  # one of each picture, by people
    others: list[Media]

    @property
    def models(self) -> Any:
        """What method 1 is handed."""
        return self.lab.profile.players_for("cfg")

    @property
    def judges(self) -> tuple[Matcher, FluencyJudge]:
        """Of CLIPScore and of perplexity."""
        there = self.lab.judges("image")
        if there.matcher is None or there.fluency is None:
            raise CaptionLabError(" ".join(there.notes))
        return there.matcher, there.fluency

    def grids(self, media: list[Media]) -> Tensor:
        """(n, cells, c)."""
        return torch.stack([features.grid for features in self.models.encode(media)])

    def seeing(self, grid: Tensor) -> LogP:
        """The captioner with these grids (n, cells, c)."""
        decoder = self.models.caption_decoder()
        condition = decoder.condition({"image": grid}, torch.arange(len(grid), device=grid.device))
        return lambda ids: decoder(ids, condition)[0].log_softmax(-1)

    def blind(self) -> LogP:
        """The captioner with its trained null cell: the truth."""
        decoder, grid = self.models.caption_decoder(), self.grids(self.media)
        condition = decoder.condition({"image": grid}, torch.arange(len(grid), device=grid.device)).removed()
        return lambda ids: decoder(ids, condition)[0].log_softmax(-1)


def substitutes(setting: Setting) -> dict[str, LogP]:
    """Name → p(x) by that substitute."""
    count, reference = len(setting.media), setting.grids(setting.others)

    def same(grid: Tensor) -> LogP:
        return setting.seeing(grid.expand(count, -1, -1))

    def mixture(size: int) -> LogP:
        """The average of the probabilities under some reference pictures."""
        parts = [same(grid[None]) for grid in reference[:size]]
        return lambda ids: torch.logsumexp(torch.stack([part(ids) for part in parts]), 0) - float(np.log(size))

    shuffled = torch.randperm(len(reference), generator=torch.Generator().manual_seed(0))[torch.arange(count) % len(reference)]
    return {
        "zeros": same(torch.zeros_like(reference[:1])),
        "mean token": same(reference.mean((0, 1)).expand_as(reference[:1])),
        "mean per position": same(reference.mean(0, keepdim=True)),
        "a shuffled picture": setting.seeing(reference[shuffled]),
        **{f"mixture of {size}": mixture(size) for size in MIXED},
    }


def compare(setting: Setting) -> list[dict[str, Any]]:
    """For each substitute: nats from the truth along people's captions, and what guidance makes of it at several scales."""
    tokenizer = setting.models.tokenizer
    start = setting.models.start_token("image")
    rows = [[start, *ids][: MAX_TOKENS + 1] for ids in tokenizer.encode_all(setting.captions)]
    ids, there = tokenizer.batch(rows), torch.tensor([[i < len(r) for i in range(max(map(len, rows)))] for r in rows])
    truth, cond = setting.blind(), setting.seeing(setting.grids(setting.media))
    p = truth(ids)
    vectors = embed_media(setting.judges[0], setting.media)
    expected = {scale: guided(cond, truth, scale, setting, start) for scale in SCALES}
    found = []
    for name, logp in {"trained null cell": truth, **substitutes(setting)}.items():
        q = logp(ids)
        nats = (p.exp() * (p - q)).sum(-1)[there].mean().item()
        row: dict[str, Any] = {"name": name, "kl": nats, "scales": {}}
        for scale in SCALES:
            captions = guided(cond, logp, scale, setting, start)
            row["scales"][scale] = measured(captions, vectors, setting) | {
                "same": float(np.mean([a == b for a, b in zip(captions, expected[scale], strict=True)]))
            }
        found.append(row)
    return found


def guided(cond: LogP, uncond: LogP, scale: float, setting: Setting, start: int) -> list[str]:
    """Greedy captions of s = γ c − (γ − 1) u."""
    tokenizer = setting.models.tokenizer
    ids = torch.full((len(setting.media), 1), start)
    for position in range(MAX_TOKENS):
        scores = scale * cond(ids)[:, -1] - (scale - 1) * uncond(ids)[:, -1]
        scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos or position == 0]] = -torch.inf
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
    return [tokenizer.decode(row) for row in ids[:, 1:].tolist()]


def measured(captions: list[str], vectors: np.ndarray, setting: Setting) -> dict[str, float]:
    """The judges' means."""
    matcher, fluency = setting.judges
    scores = clipscore(vectors, embed_captions(matcher, captions))
    return {"clipscore": float(scores.mean()), "perplexity": float(np.exp(log_perplexity(fluency, captions).mean()))}


def table(rows: list[dict[str, Any]]) -> str:
    """As REPRODUCTION.md has it."""
    head = ["p(x) by", "KL from the trained one", *(f"γ = {s:g}: same captions, CLIPScore, perplexity" for s in SCALES)]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for row in rows:
        cells = [f"{v['same']:.0%}, {v['clipscore']:.3f}, {v['perplexity']:.0f}" for v in row["scales"].values()]
        lines.append(f"| {row['name']} | {row['kl']:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


@torch.inference_mode()
def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--reference-split", default="train", help="where the pictures that stand for none come from")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    items = read_dataset(args.folder, args.split, args.limit)
    others = read_dataset(args.folder, args.reference_split, args.limit)
    setting = Setting(
        Lab("embedded", "cpu"),
        [load_media(i.path, "image") for i in items],
        [i.references[0] for i in items],
        [load_media(i.path, "image") for i in others],
    )
    rows = compare(setting)
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
