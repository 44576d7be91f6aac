"""Which substitute for p(x) is closest to a trained one: measured on the embedded captioner, which knows the truth.

A captioner that was never trained without its picture needs something in its place. Here the embedded captioner, whose
null cell was trained, is asked with each substitute instead: how far are the distributions, and how far the captions
that guidance makes of them?

    python -m captioners.evaluation.no_input DIR --split dev --limit 64 --json out.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from captioners.contract import ConditionalDecoder, FluencyJudge, Matcher
from captioners.evaluation.check_command import (
    add_dataset_options,
    chosen_dataset,
    exit_code,
    make_parser,
    markdown_table,
)
from captioners.evaluation.dataset import load_item, read_dataset
from captioners.lab import Lab
from captioners.metrics.fluency import log_perplexity
from captioners.metrics.matching import clipscore, embed_captions, embed_media
from captioners.nets.mixture import MixtureDecoder
from captioners.nets.transformer import KeysValues
from captioners.types import CaptionLabError, Media

SCALES = (1.5, 2.0, 3.0)
MAX_TOKENS = 20
MIXED = (4, 16)  # reference pictures in a mixture


class JudgedCaptions(TypedDict):
    """The judges' means over some captions."""

    clipscore: float
    perplexity: float


class ScaleFigures(JudgedCaptions):
    """What guidance makes of a substitute at one scale; `same` is the share of captions that the truth gives too."""

    same: float


class Comparison(TypedDict):
    """One substitute: nats from the truth, and its figures by scale."""

    name: str
    kl: float
    scales: dict[float, ScaleFigures]


class Branch:
    """log p of the next token by a decoder that sees some pictures, or whatever stands for none."""

    def __init__(self, decoder: ConditionalDecoder, grid: Tensor, removed: bool = False) -> None:
        """`grid` (n, cells, c) are the pictures; `removed` takes them away."""
        condition = decoder.condition({"image": grid}, torch.arange(len(grid), device=grid.device))
        self.decoder, self.condition = decoder, condition.removed() if removed else condition

    def whole(self, ids: Tensor) -> Tensor:
        """Log-probabilities of whole captions: ids (n, t) → (n, t, vocab)."""
        return self.decoder(ids, self.condition)[0].log_softmax(-1)

    def steps(self) -> Callable[[Tensor], Tensor]:
        """A function that takes the last tokens (n, 1) and gives (n, vocab), and remembers what it was given before."""
        past: list[KeysValues] | None = None

        def step(tokens: Tensor) -> Tensor:
            nonlocal past
            logits, past = self.decoder(tokens, self.condition, past)
            return logits[:, -1].log_softmax(-1)

        return step


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
        return self.lab.profile.models_for("cfg")

    @property
    def judges(self) -> tuple[Matcher, FluencyJudge]:
        """The judges of CLIPScore and of perplexity."""
        available = self.lab.judges("image")
        if available.matcher is None or available.fluency is None:
            raise CaptionLabError(" ".join(available.notes))
        return available.matcher, available.fluency

    def grids(self, media: list[Media]) -> Tensor:
        """The encoder's grids (n, cells, c) of some media."""
        return torch.stack([features.grid for features in self.models.encode(media)])


def branches(setting: Setting, grid: Tensor) -> dict[str, Branch]:
    """Name → p(x) by that substitute; the first is the truth. `grid` (n, cells, c) is of the pictures themselves."""
    decoder, reference = setting.models.caption_decoder(), setting.grids(setting.others)

    def instead(cells: Tensor) -> Branch:
        return Branch(decoder, cells.expand_as(grid))

    shuffled = torch.randperm(len(reference), generator=torch.Generator().manual_seed(0))[
        torch.arange(len(grid)) % len(reference)
    ]
    mixtures = {size: MixtureDecoder(decoder, {"image": reference[:size]}) for size in MIXED}
    return {
        "trained null cell": Branch(decoder, grid, removed=True),
        "zeros": instead(torch.zeros_like(reference[:1])),
        "mean token": instead(reference.mean((0, 1))[None, None]),
        "mean per position": instead(reference.mean(0, keepdim=True)),
        "a shuffled picture": instead(reference[shuffled]),
        **{f"mixture of {size}": Branch(mixture, grid, removed=True) for size, mixture in mixtures.items()},
    }


def compare(setting: Setting, scales: Sequence[float] = SCALES) -> list[Comparison]:
    """For each substitute: nats from the truth along people's captions, and what guidance makes of it at several
    scales.
    """
    tokenizer, start = setting.models.tokenizer, setting.models.start_token("image")
    rows = [[start, *ids][: MAX_TOKENS + 1] for ids in tokenizer.encode_all(setting.captions)]
    ids, is_token = (
        tokenizer.batch(rows),
        torch.tensor([[i < len(r) for i in range(max(map(len, rows)))] for r in rows]),
    )
    grid, vectors = setting.grids(setting.media), embed_media(setting.judges[0], setting.media)
    cond = Branch(setting.models.caption_decoder(), grid)
    by_name = branches(setting, grid)
    truth = next(iter(by_name.values()))
    p = truth.whole(ids)
    expected = {scale: guided(cond, truth, scale, setting) for scale in scales}
    comparisons: list[Comparison] = []
    for name, branch in by_name.items():
        nats = (p.exp() * (p - branch.whole(ids))).sum(-1)[is_token].mean().item()
        figures: dict[float, ScaleFigures] = {}
        for scale in scales:
            captions = expected[scale] if branch is truth else guided(cond, branch, scale, setting)
            share_same = float(np.mean([a == b for a, b in zip(captions, expected[scale], strict=True)]))
            figures[scale] = {**measured(captions, vectors, setting), "same": share_same}
        comparisons.append({"name": name, "kl": nats, "scales": figures})
    return comparisons


def guided(cond: Branch, uncond: Branch, scale: float, setting: Setting) -> list[str]:
    """Greedy captions of s = γ c − (γ − 1) u."""
    tokenizer = setting.models.tokenizer
    tokens = torch.full((len(setting.media), 1), setting.models.start_token("image"))
    c, u, columns = cond.steps(), uncond.steps(), []
    for position in range(MAX_TOKENS):
        scores = scale * c(tokens) - (scale - 1) * u(tokens)
        scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos or position == 0]] = -torch.inf
        tokens = scores.argmax(-1, keepdim=True)
        columns.append(tokens)
    return [tokenizer.decode(row) for row in torch.cat(columns, 1).tolist()]


def measured(captions: list[str], vectors: np.ndarray, setting: Setting) -> JudgedCaptions:
    """The judges' means."""
    matcher, fluency = setting.judges
    scores = clipscore(vectors, embed_captions(matcher, captions))
    return {"clipscore": float(scores.mean()), "perplexity": float(np.exp(log_perplexity(fluency, captions).mean()))}


def table(rows: list[Comparison]) -> str:
    """The comparison as the table that REPRODUCTION.md has."""
    head = [
        "p(x) by",
        "KL from the trained one",
        *(f"γ = {s:g}: same captions, CLIPScore, perplexity" for s in rows[0]["scales"]),
    ]
    lines = []
    for row in rows:
        cells = [f"{v['same']:.0%}, {v['clipscore']:.3f}, {v['perplexity']:.0f}" for v in row["scales"].values()]
        lines.append([row["name"], f"{row['kl']:.3f}", *cells])
    return markdown_table(head, lines)


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 2 on bad input, with one line that says what to do."""
    parser = make_parser("no_input", (__doc__ or "").partition("\n")[0])
    add_dataset_options(parser, "a data set of pictures with captions", split="dev", limit=64)
    parser.add_argument("--reference-split", default="train", help="where the pictures that stand for none come from")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)

    def print_table() -> None:
        items = chosen_dataset(args)
        others = read_dataset(args.folder, args.reference_split, args.limit)
        setting = Setting(
            Lab("embedded", "cpu"),
            [load_item(i) for i in items],
            [i.references[0] for i in items],
            [load_item(i) for i in others],
        )
        rows = compare(setting)
        print(table(rows))
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    return exit_code(print_table)


if __name__ == "__main__":
    sys.exit(main())
