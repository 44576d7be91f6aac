"""One trained part, one command: `python -m captioners train PART --data DIR --out DIR`.

A module here registers its part with `@part`; a `Job` says where data, output and caches are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from captioners.allocator import keep_freed_memory
from captioners.profiles.store import WEIGHTS, find_part
from captioners.types import CaptionLabError

Config = TypeVar("Config")


@dataclass(frozen=True)
class Job:
    """What a training command was asked to do."""

    data: Path
    out: Path
    cache: Path
    seed: int = 0
    epochs: float | None = None  # overrides the part's own number
    device: str = "auto"
    final: bool = False  # audio parts: train on the development fold too, for shipping
    start: Path | None = None  # a folder with this part's weights to go on from, instead of new ones
    quiet: bool = False
    profile: str = "embedded"
    models: str | None = None  # hub profile: the file that names its models
    sizes: tuple[tuple[str, str], ...] = ()  # (name, value): fields of the part's configuration that are not its own

    def find(self, name: str) -> Path:
        """Another part's weights: the output folder's first, then the shipped ones."""
        return find_part(name, self.out, WEIGHTS)

    def sized(self, config: Config) -> Config:
        """A part's configuration with what was asked to be different."""
        kinds = {f.name: type(getattr(config, f.name)) for f in fields(config)}
        for name, value in self.sizes:
            if name not in kinds:
                raise CaptionLabError(f"This part has no size called {name!r}: choose from {', '.join(kinds)}.")
            try:
                config = replace(config, **{name: kinds[name](value)})
            except ValueError:
                raise CaptionLabError(f"{name}={value} is not possible: give a value like {getattr(config, name)!r}.") from None
        return config


Part = Callable[[Job], dict[str, Any]]

# part → the module that trains it; in the order in which they depend on each other
PARTS: dict[str, str] = {
    "tokenizer": "tokenizer",
    "image-encoder": "image_encoder",
    "audio-encoder": "audio_encoder",
    "image-ranker": "matcher",
    "image-judge": "matcher",
    "audio-ranker": "matcher",
    "audio-judge": "matcher",
    "fluency-judge": "language_model",
    "caption-lm": "language_model",
    "cfg": "captioner",
    "image-vq": "vq",
    "audio-vq": "vq",
    "mc-diffusion": "mask_denoiser",
    "prefix-diffusion": "prefix_denoiser",
    "audibility": "classifier",
    "visibility": "classifier",
    "audibility-judge": "classifier",
}


# what the hub profile can be taught, over any folder with captions.jsonl (the classifiers: the audibility sentences)
HUB_PARTS: dict[str, str] = {
    "cfg": "hub.captioner",
    "audibility": "hub.classifier",
    "visibility": "hub.classifier",
    "mc-diffusion": "hub.mask_denoiser",
    "prefix-diffusion": "hub.prefix_denoiser",
}

# parts whose network is given
FIXED = {"embedded": ("tokenizer", "image-encoder", "audio-encoder"), "hub": ("cfg", "audibility", "visibility")}


def train(name: str, job: Job) -> dict[str, Any]:
    """Train one part, write its weights and metrics into `job.out`, and return the metrics."""
    import torch

    if job.sizes and name in FIXED["embedded" if job.profile == "embedded" else "hub"]:
        raise CaptionLabError(f"The size of {name} is given: leave --set out.")
    keep_freed_memory()
    torch.manual_seed(job.seed)  # a part's first weights, too, follow from its seed
    module = (PARTS if job.profile == "embedded" else HUB_PARTS)[name]
    metrics = import_module(f"captioners.training.{module}").train(name, job)
    if metrics:  # only the first of several processes has some
        (job.out / f"{name}.metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    return metrics
