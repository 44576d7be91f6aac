"""Do a picture's prefix and its caption lie near each other? Method 4's first check, as cosines.

    python -m captioners.evaluation.prefix_alignment DATA/coco --split dev

The mean of a picture's prefix embeddings meets the mean of a caption's word embeddings, as the network's first layer
sees both, each centred over all pictures: the caption of the same picture, and that of another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners.contract import PrefixDenoiserModels
from captioners.evaluation.check_command import (
    add_dataset_options,
    chosen_dataset,
    exit_code,
    make_parser,
    markdown_table,
)
from captioners.evaluation.dataset import Dataset, load_item
from captioners.lab import Lab
from captioners.nets.regions import pooled_regions

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)  # of the distribution that are told


def cosines(one: Tensor, other: Tensor) -> Tensor:
    """(n, d) twice → (n,), both centred over their rows."""
    return F.cosine_similarity(one - one.mean(0), other - other.mean(0), dim=-1)


@torch.no_grad()
def check(lab: Lab, dataset: Dataset) -> dict[str, Tensor]:
    """{whose caption: its distribution at SHARES, and the mean last}."""
    models = cast(PrefixDenoiserModels, lab.method("prefix-diffusion").models)
    net, items = models.prefix_denoiser(), [item for item in dataset if item.references]
    grids = torch.stack([features.grid for features in models.encode([load_item(item) for item in items])])
    prefix = net.prefix_means(dataset.kind, pooled_regions(grids, dataset.kind, net.config.regions))
    words = net.caption_means([models.tokenizer.encode(item.references[0]) for item in items])
    pairs = {"own": cosines(prefix, words), "another's": cosines(prefix, words.roll(1, 0))}
    return {
        name: torch.cat([values.quantile(torch.tensor(SHARES)), values.mean()[None]]) for name, values in pairs.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 2 on bad input, with one line that says what to do."""
    parser = make_parser("prefix_alignment", __doc__)
    add_dataset_options(parser, "a data set with captions")
    args = parser.parse_args(arguments)

    def print_table() -> None:
        distributions = check(Lab("embedded"), chosen_dataset(args))
        headings = ["caption", *(f"{100 * share:g} %" for share in SHARES), "mean"]
        rows = [[name, *(f"{value:.3f}" for value in values)] for name, values in distributions.items()]
        print(markdown_table(headings, rows))

    return exit_code(print_table)


if __name__ == "__main__":
    sys.exit(main())
