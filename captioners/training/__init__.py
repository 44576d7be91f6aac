"""One trained part, one command: `python -m captioners train PART --data DIR --out DIR`; `train all` makes them all, in
order.

A module here trains the parts that `PARTS` gives it. A `Job` says where data, output and caches are; a part's `Recipe`
and its network's configuration hold every constant of its training, and `--set NAME=VALUE` changes them.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from captioners.allocator import keep_freed_memory
from captioners.profiles.store import find_part, part_hash
from captioners.resources import WEIGHTS
from captioners.types import CaptionLabError


@dataclass(frozen=True)
class Recipe:
    """How a part is optimised. The recipe of a part adds what only it has."""

    epochs: float  # below 1: that share of the batches of one epoch
    batch: int
    lr: float
    weight_decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.98
    ema: float = 0.998  # of the weights that are kept


@dataclass(frozen=True)
class Job:
    """What a training command was asked to do."""

    data: Path
    out: Path
    cache: Path
    seed: int = 0
    epochs: float | None = None  # overrides the part's own number
    device: str = "auto"
    final: bool = False  # audio parts: train on the held-out clips too, for shipping
    start: Path | None = None  # a folder with this part's weights to go on from, instead of new ones
    quiet: bool = False
    precision: str = "fp32"  # of matrix products: "bf16" is several times as fast on a processor that computes in it
    profile: str = "embedded"
    models: str | None = None  # hub profile: the file that names its models
    settings: tuple[
        tuple[str, str], ...
    ] = ()  # (name, value): fields of the part's recipe or configuration that are not its own
    reads: tuple[tuple[str, str], ...] = ()  # (part, hash): the parts that this training reads, as they are

    def find(self, name: str) -> Path:
        """Another part's weights: the output folder's first, then the shipped ones."""
        return find_part(name, self.out, WEIGHTS)

    def reading(self, name: str) -> Job:
        """This job with the hashes of all that the part reads."""
        found = ((need, self.find(need)) for need in PARTS[name].needs)
        return replace(self, reads=tuple((need, part_hash(need, path.parent)) for need, path in found))

    def configured(self, *configs: Any) -> tuple[Any, ...]:
        """A part's dataclasses (recipe, configurations) with what was asked to be different."""
        defaults = {f.name: getattr(c, f.name) for c in configs for f in fields(c)}
        changed: dict[str, Any] = {}
        for name, value in self.settings:
            if name not in defaults:
                raise CaptionLabError(f"This part has no setting called {name!r}: choose from {', '.join(defaults)}.")
            try:
                changed[name] = _read(value, defaults[name])
            except ValueError:
                raise CaptionLabError(
                    f"{name}={value} is not possible: give a value like {defaults[name]!r}."
                ) from None
        if self.epochs is not None and "epochs" in defaults:
            changed["epochs"] = self.epochs
        own = [{f.name for f in fields(c)} for c in configs]
        return tuple(
            replace(c, **{k: v for k, v in changed.items() if k in names})
            for c, names in zip(configs, own, strict=True)
        )

    def command(self, name: str) -> str:
        """The command line that makes this part, with folders left to the reader."""
        options = [f"--seed {self.seed}"] * bool(self.seed) + [f"--epochs {self.epochs}"] * (self.epochs is not None)
        options += ["--from DIR"] * (self.start is not None)
        options += [f"--precision {self.precision}"] * (self.precision != "fp32")
        options += ["--final"] * self.final + [f"--profile {self.profile}"] * (self.profile != "embedded")
        options += [f"--set {k}={v}" for k, v in self.settings]
        return " ".join(["python -m captioners train", name, "--data DATA --out DIR", *options])


def _read(text: str, like: Any) -> Any:
    """The value that a text stands for, of the kind of the value that it replaces."""
    if isinstance(like, bool):
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else int("?")
    return type(like)(text)


@dataclass(frozen=True)
class PartInfo:
    """Where a part is trained, its minutes on one fast core with `--precision bf16`, and which parts it reads."""

    module: str
    minutes: float
    needs: tuple[str, ...] = ()


# every part of the embedded profile, in the order in which they depend on each other
PARTS: dict[str, PartInfo] = {
    "tokenizer": PartInfo("tokenizer", 1),
    "fluency-judge": PartInfo("language_model", 6, ("tokenizer",)),
    "caption-lm": PartInfo("language_model", 12, ("tokenizer",)),
    "image-encoder": PartInfo("image_encoder", 25),
    "judge-encoder": PartInfo("image_encoder", 25),
    "audio-encoder": PartInfo("audio_encoder", 14),
    "image-ranker": PartInfo("matcher", 10, ("tokenizer", "image-encoder")),
    "image-judge": PartInfo("matcher", 14, ("tokenizer", "judge-encoder")),
    "audio-ranker": PartInfo("matcher", 3, ("tokenizer", "audio-encoder", "image-ranker")),
    "audio-judge": PartInfo("matcher", 3, ("tokenizer", "audio-encoder", "image-judge")),
    "cfg": PartInfo("captioner", 45, ("tokenizer", "image-encoder", "audio-encoder", "caption-lm")),
    "image-vq": PartInfo("vq", 5, ("image-encoder",)),
    "audio-vq": PartInfo("vq", 1, ("audio-encoder",)),
    "image-painter": PartInfo("painter", 10, ("image-encoder", "image-vq")),
    "mc-diffusion": PartInfo(
        "mask_denoiser", 24, ("tokenizer", "image-encoder", "audio-encoder", "cfg", "image-vq", "audio-vq")
    ),
    "prefix-diffusion": PartInfo("prefix_denoiser", 42, ("tokenizer", "cfg", "image-encoder", "audio-encoder")),
    "audibility": PartInfo("classifier", 1, ("tokenizer",)),
    "visibility": PartInfo("classifier", 1, ("tokenizer",)),
    "audibility-judge": PartInfo("classifier", 1, ("tokenizer",)),
}


# what the hub profile can be taught, over any folder with captions.jsonl (the classifiers: the audibility sentences)
HUB_PARTS: dict[str, str] = {
    "cfg": "hub.captioner",
    "audibility": "hub.classifier",
    "visibility": "hub.classifier",
    "mc-diffusion": "hub.mask_denoiser",
    "prefix-diffusion": "hub.prefix_denoiser",
}


def train(name: str, job: Job) -> dict[str, Any]:
    """Train one part, write its weights and the record of the training into `job.out`, and return the record."""
    import torch

    keep_freed_memory()
    torch.manual_seed(job.seed)  # a part's first weights, too, follow from its seed
    module = PARTS[name].module if job.profile == "embedded" else HUB_PARTS[name]
    commit, began = code_version(), time.perf_counter()
    if job.profile == "embedded":
        job = job.reading(name)
    metrics = import_module(f"captioners.training.{module}").train(name, job)
    if not metrics:  # only the first of several processes has some
        return metrics
    record = {
        "command": job.command(name),
        "seed": job.seed,
        "commit": commit,
        "minutes": (time.perf_counter() - began) / 60,
    }
    if job.profile == "embedded":
        from captioners.training import corpus

        record |= {"hash": part_hash(name, job.out), "reads": dict(job.reads), "data": corpus.counts(job.data)}
    metrics = record | metrics  # a loop counts its minutes over all the times it was resumed
    (job.out / f"{name}.metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    return metrics


def train_all(job: Job, say: Callable[[str], None] = print) -> dict[str, dict[str, Any]]:
    """Every part that `job.out` does not hold yet, or that read other parts than lie there now, in order.

    A killed run goes on where it was.
    """
    done: set[str] = set()
    for name, part in PARTS.items():
        if done.issuperset(part.needs) and _is_current(name, job):
            done.add(name)
    say("part              minutes  needs")
    for name, part in PARTS.items():
        say(f"{name:17} {'done' if name in done else f'{part.minutes:g}':>7}  {', '.join(part.needs)}")
    say(f"{'all':17} {sum(p.minutes for n, p in PARTS.items() if n not in done):7g}  (one core in bf16)")
    reports = {}
    for name in PARTS:
        if name not in done:
            say(f"-- {name}")
            reports[name] = train(name, job)
    say("part              minutes  measured")
    for name in PARTS:
        record = json.loads((job.out / f"{name}.metrics.json").read_text())
        hidden = ("seed", "minutes", "epochs", "best_epoch", "parameters")
        figures = [f"{k} {v:.3g}" for k, v in record.items() if isinstance(v, float | int) and k not in hidden]
        say(f"{name:17} {record['minutes']:7.1f}  {', '.join(figures[:5])}")
    return reports


def _is_current(name: str, job: Job) -> bool:
    """Whether the output folder holds the part, made from the parts that it would read now."""
    path = job.out / f"{name}.metrics.json"
    if not path.exists():
        return False
    reads = json.loads(path.read_text()).get("reads")  # records of before have none
    return reads is None or reads == dict(job.reading(name).reads)


def code_version() -> str:
    """The commit of the code, with a mark where files differ from it; empty where there is no repository."""
    folder = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "*.py", "*.toml"], cwd=folder, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + "+changes" * bool(changed.strip())
