"""Which substitute for p(x) is closest to a trained one: measured on the embedded captioner, which knows the truth.

A captioner that was never trained without its picture needs something in its place. Here the embedded captioner, whose
null cell was trained, is asked with each substitute instead: how far are the distributions, and how far the captions
that guidance makes of them? Substitutes are made of reference pictures, in several numbers, none of them measured.

    python -m captioners.evaluation.no_input DIR --split dev --limit 48 --references 6 14 64 256 --json out.json
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
from captioners.evaluation.dataset import Item, load_item, read_dataset
from captioners.lab import Lab
from captioners.media import load_media
from captioners.metrics.fluency import log_perplexity
from captioners.metrics.matching import clipscore, embed_captions, embed_media
from captioners.nets.captioner import Condition
from captioners.nets.mixture import MixtureDecoder
from captioners.nets.transformer import KeysValues
from captioners.resources import EXAMPLES
from captioners.types import CaptionLabError, Media

SCALES = (1.5, 2.0, 3.0)
MAX_TOKENS = 20
REFERENCES = (6, 14, 64, 256)  # pictures that a mean is taken of; our examples are 14
MIXED = (4, 16, 64)  # pictures in a mixture


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

    def __init__(self, decoder: ConditionalDecoder, condition: Condition) -> None:
        self.decoder, self.condition = decoder, condition

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
    others: list[Media]  # none of those above
    sizes: Sequence[int] = REFERENCES  # how many of the others a mean is taken of
    mixed: Sequence[int] = MIXED  # the same of a mixture

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


def looking_at(decoder: ConditionalDecoder, grid: Tensor) -> Condition:
    """What a decoder sees of pictures (n, cells, c), in their order."""
    return decoder.condition({"image": grid}, torch.arange(len(grid), device=grid.device))


def branches(setting: Setting, grid: Tensor) -> dict[str, Branch]:
    """Name → p(x) by that substitute; the first is the truth. `grid` (n, cells, c) is of the pictures themselves."""
    decoder, others = setting.models.caption_decoder(), setting.grids(setting.others)
    examples = setting.grids([load_media(file, "image") for file in sorted(EXAMPLES.glob("*.jpg"))])
    shuffled = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))[
        torch.arange(len(grid)) % len(others)
    ]
    found = {
        "trained null cell": Branch(decoder, looking_at(decoder, grid).removed()),
        "zeros": Branch(decoder, looking_at(decoder, torch.zeros_like(grid))),
        "a shuffled picture": Branch(decoder, looking_at(decoder, others[shuffled])),
    }
    ours = f"our {len(examples)} examples"
    for name, reference in {ours: examples, **{str(size): others[:size] for size in setting.sizes}}.items():
        found |= {f"{words} of {name}": branch for words, branch in means(decoder, reference, grid).items()}
    for name, reference in {ours: examples, **{str(size): others[:size] for size in setting.mixed}}.items():
        mixture = MixtureDecoder(decoder, {"image": reference})
        found[f"mixture of {name}"] = Branch(mixture, looking_at(mixture, grid).removed())
    return found


def means(decoder: ConditionalDecoder, reference: Tensor, grid: Tensor) -> dict[str, Branch]:
    """Name → p(x) by that mean of reference pictures (K, cells, c), for as many rows as `grid` has."""
    cells = {"mean token": reference.mean((0, 1))[None, None], "mean per position": reference.mean(0, keepdim=True)}
    read = looking_at(decoder, reference)
    return {
        **{name: Branch(decoder, looking_at(decoder, mean.expand_as(grid))) for name, mean in cells.items()},
        "mean per position as read": Branch(decoder, mean_as_read(read, len(grid), cells=False)),
        "mean token as read": Branch(decoder, mean_as_read(read, len(grid), cells=True)),
    }


def mean_as_read(read: Condition, rows: int, cells: bool) -> Condition:
    """The mean of keys and values over the rows of a condition, and over its cells too: behind every norm, which would
    blow a mean up to the size of a single cell again.
    """

    def mean(x: Tensor) -> Tensor:
        x = x[:, :, read.nulls :].mean(0, keepdim=True)
        return (x.mean(2, keepdim=True) if cells else x).expand(rows, -1, -1, -1)

    pairs = [(mean(keys), mean(values)) for keys, values in read.keys_values]
    return Condition(pairs, torch.ones(rows, 1, 1, pairs[0][0].shape[2], dtype=torch.bool), nulls=0)


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
    decoder = setting.models.caption_decoder()
    cond = Branch(decoder, looking_at(decoder, grid))
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


def reference_items(folder: str | Path, split: str, measured: Sequence[Item], count: int) -> list[Item]:
    """The first items of a split that are not measured themselves."""
    ids = {item.id for item in measured}
    others = [item for item in read_dataset(folder, split) if item.id not in ids]
    if len(others) < count:
        raise CaptionLabError(
            f"{count} reference pictures are asked for and split {split!r} has {len(others)} beside the measured ones: "
            "give --references and --mixed smaller numbers, or another --reference-split."
        )
    return others[:count]


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 2 on bad input, with one line that says what to do."""
    parser = make_parser("no_input", (__doc__ or "").partition("\n")[0])
    add_dataset_options(parser, "a data set of pictures with captions", split="dev", limit=64)
    parser.add_argument("--reference-split", default="train", help="where the pictures that stand for none come from")
    parser.add_argument("--references", type=int, nargs="+", default=REFERENCES, metavar="N", help="in a mean")
    parser.add_argument("--mixed", type=int, nargs="+", default=MIXED, metavar="N", help="in a mixture")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)

    def print_table() -> None:
        items = chosen_dataset(args)
        others = reference_items(args.folder, args.reference_split, items, max(*args.references, *args.mixed))
        setting = Setting(
            Lab("embedded", "cpu"),
            [load_item(i) for i in items],
            [i.references[0] for i in items],
            [load_item(i) for i in others],
            args.references,
            args.mixed,
        )
        rows = compare(setting)
        print(table(rows))
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    return exit_code(print_table)


if __name__ == "__main__":
    sys.exit(main())
