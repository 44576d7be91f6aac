"""Parts `image-encoder` (for the methods and the ranker) and `judge-encoder` (another network, for the judge alone):
ImageNet's networks with a projection to the principal components of their last maps.

Captions teach the upper stages: which words people use of a picture and which objects stand in it, from single cells
and from all of them together. They are taught gently, at a tenth of the heads' rate and on a leash: what ImageNet's
classifier says of a picture stays nearly as it was. The first stages, all depthwise filters and all batch norms stay
ImageNet's. The projection is made last, from the maps as they are then; `--epochs 0` leaves the network untaught.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioners.nets.encoders import FEATURE_DIM, LITE0, LITE2, STEM_STAGES, ImageEncoder
from captioners.profiles.store import save_part
from captioners.training import Job, Recipe, corpus
from captioners.training.features import Maps, stem_maps
from captioners.training.imagenet import imagenet_classifier, load_imagenet
from captioners.training.loop import fit

PCA_PICTURES = 1500
SHORT_WORDS = 2  # letters: shorter words and those below are of no picture in particular
COMMON_WORDS = (
    "the and with are his her its has that their while from for there this being one some they who which these"
)
COMMON = frozenset(COMMON_WORDS.split())


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder's own configuration."""

    dim: int = 512
    backbone: str = LITE2
    size: int = 256  # pixels of a picture's shorter side


@dataclass(frozen=True)
class EncoderRecipe(Recipe):
    """How the upper stages are taught."""

    words: int = 1200  # the most frequent ones are learned
    objects: bool = True  # the boxed objects are learned, too
    leash: float = 0.5  # weight of staying with ImageNet's classifier, which costs a pass over all pictures
    # the network's share of the rate: taught at the full rate, the grid is left with some 22 directions, and captions
    # on it call cats and cows dogs (assets/MODEL_CARD.md has the comparison)
    network: float = 0.1
    sharpness: float = 4.0  # of the soft maximum over cells


RECIPE = EncoderRecipe(epochs=3, batch=32, lr=1e-3, weight_decay=0.02, ema=0.995)
CONFIGS = {"image-encoder": EncoderConfig(), "judge-encoder": EncoderConfig(backbone=LITE0)}


class TaughtEncoder(nn.Module):
    """The encoder with heads that are thrown away: words and objects, from each cell and from the mean."""

    def __init__(self, config: EncoderConfig, labels: int, sharpness: float):
        super().__init__()
        self.encoder, self.sharpness = ImageEncoder(**asdict(config)), sharpness
        load_imagenet(self.encoder.backbone, config.backbone)
        for frozen in (
            self.encoder.backbone.conv_stem,
            self.encoder.backbone.bn1,
            self.encoder.backbone.blocks[:STEM_STAGES],
        ):
            frozen.requires_grad_(False)
        for module in self.encoder.modules():
            norm = isinstance(module, nn.BatchNorm2d)  # its scale could as well be the convolution's
            depthwise = isinstance(module, nn.Conv2d) and module.groups > 1  # slower to teach than all the others
            if norm or depthwise:
                module.requires_grad_(False)
        self.encoder.project.requires_grad_(False)
        self.norm, self.drop = nn.LayerNorm(FEATURE_DIM), nn.Dropout(0.2)
        self.cells, self.whole = nn.Linear(FEATURE_DIM, labels), nn.Linear(FEATURE_DIM, labels)
        nn.init.constant_(self.whole.bias, -4.0)
        weight, bias = imagenet_classifier(config.backbone)
        self.register_buffer("known_weight", weight)
        self.register_buffer("known_bias", bias)
        self.train()

    def train(self, mode: bool = True) -> TaughtEncoder:
        """Batch norms keep ImageNet's statistics."""
        super().train(mode)
        self.encoder.eval()
        return self

    def known(self, maps: Tensor) -> Tensor:
        """ImageNet's classes, log-probabilities (b, 1000), from the last maps."""
        return F.linear(maps.mean((2, 3)), self.known_weight, self.known_bias).log_softmax(-1)

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """The stem's maps → logits of the labels (b, labels), and what ImageNet's classifier says now (b, 1000)."""
        last = self.encoder.upper(maps)
        grid = self.drop(self.norm(last.flatten(2).transpose(1, 2)))
        sharpest = (self.sharpness * self.cells(grid)).logsumexp(1) - torch.log(torch.tensor(float(grid.shape[1])))
        return sharpest / self.sharpness + self.whole(grid.mean(1)), self.known(last)


def train(name: str, job: Job) -> dict[str, Any]:
    recipe, config = job.configured(RECIPE, CONFIGS[name])
    pictures = {split: corpus.pictures(job.data, split) for split in ("train", "dev")}
    vocabulary = frequent_words(pictures["train"], recipe.words)
    objects = sorted({o for p in pictures["train"] for o in p.objects}) if recipe.objects else []
    labels = {split: label_matrix(of_split, vocabulary, objects) for split, of_split in pictures.items()}
    maps = stem_maps(job, config.backbone, config.size)
    model = TaughtEncoder(config, len(vocabulary) + len(objects), recipe.sharpness)
    steps = len(pictures["train"]) // recipe.batch

    def batches(epoch: int) -> Iterator[tuple[int, list[int]]]:
        rng = random.Random(job.seed * 1000 + epoch)
        drawn: list[list[int]] = [[] for _ in maps["train"]]  # each picture is seen in one view
        for picture in rng.sample(range(len(pictures["train"])), len(pictures["train"])):
            rng.choice(drawn).append(picture)
        view_batches = [
            (view, indices)
            for view, order in enumerate(drawn)
            for indices in maps["train"][view].batches(recipe.batch, order)
        ]
        rng.shuffle(view_batches)
        return iter(view_batches)

    def loss(model: TaughtEncoder, batch: tuple[int, list[int]]) -> Tensor:
        view, indices = batch
        device = model.known_bias.device
        x = maps["train"][view].read(indices).to(device)
        x = x.flip(-1) if torch.rand(()) < 0.5 else x  # nearly what the mirror image's maps would be
        logits, now = model(x.contiguous(memory_format=torch.channels_last))
        target = labels["train"][indices].to(device)
        label_loss = F.binary_cross_entropy_with_logits(logits, target.clamp(min=0), reduction="none") * (target >= 0)
        label_loss = label_loss.sum(1).mean() / 10
        if not recipe.leash:
            return label_loss
        return label_loss + recipe.leash * F.kl_div(
            now, known[view][indices].float().to(device), log_target=True, reduction="batchmean"
        )

    def evaluate(model: TaughtEncoder) -> dict[str, float]:
        logits = torch.cat([*_in_order(maps["dev"][0], job.precision, lambda x: model(x)[0])])
        words, boxed = logits[:, : len(vocabulary)], logits[:, len(vocabulary) :]
        with_objects = [i for i, p in enumerate(pictures["dev"]) if p.objects]
        figures = {"word_precision": mean_average_precision(words, labels["dev"][:, : len(vocabulary)])}
        if objects:
            truth = labels["dev"][with_objects, len(vocabulary) :]
            figures["object_precision"] = mean_average_precision(boxed[with_objects], truth)
        return figures

    fitted: dict[str, Any] = {}
    if recipe.epochs > 0:
        known = {
            view: known_classes(model, view_maps, job.precision)
            for view, view_maps in enumerate(maps["train"])
            if recipe.leash
        }
        slower = (model.encoder, recipe.network)
        model, fitted = fit(job, name, model, batches, steps, loss, evaluate, recipe, "word_precision", slower=slower)
    report = principal_components(model.encoder, maps["train"][0])
    report["word_probe"] = probe(model.encoder, maps, labels, len(vocabulary), job.precision)
    save_part(job.out, name, model.encoder, asdict(config))
    return {**fitted, **report, "parameters": sum(p.numel() for p in model.encoder.parameters())}


# ------------------------------------------------------------------------------------------------- what is learned


def frequent_words(pictures: list[corpus.Picture], count: int) -> list[str]:
    """The words that most pictures' captions have, without the commonest of the language."""
    counts = Counter(word for p in pictures for word in caption_words(p))
    return [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:count]]


def caption_words(picture: corpus.Picture) -> set[str]:
    """The words of a picture's captions."""
    words = {word.strip(".,;:!?\"'()").lower() for caption in picture.captions for word in caption.split()}
    return {word for word in words if len(word) > SHORT_WORDS and word not in COMMON}


def label_matrix(pictures: list[corpus.Picture], vocabulary: list[str], objects: list[str]) -> Tensor:
    """(n, words + objects): 1 where a word is used or an object is there, 0 where not, −1 where the picture's
    objects are not known.
    """
    column = {word: i for i, word in enumerate(vocabulary)}
    object_column = {name: len(vocabulary) + i for i, name in enumerate(objects)}
    labels = torch.zeros(len(pictures), len(vocabulary) + len(objects))
    for row, picture in enumerate(pictures):
        labels[row, [column[w] for w in caption_words(picture) if w in column]] = 1
        if picture.objects:
            labels[row, [object_column[o] for o in picture.objects if o in object_column]] = 1
        else:
            labels[row, len(vocabulary) :] = -1
    return labels


def known_classes(model: TaughtEncoder, maps: Maps, precision: str) -> Tensor:
    """(n, 1000) fp16: what ImageNet's classifier says of each picture before anything is taught."""
    return torch.cat([x.half() for x in _in_order(maps, precision, lambda x: model.known(model.encoder.upper(x)))])


@torch.no_grad()
def _in_order(maps: Maps, precision: str, ask: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
    """`ask` of every picture's maps, (1, …) each, in the order of the pictures."""
    answers_by_picture: dict[int, Tensor] = {}
    for indices in maps.batches(32):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            answers = ask(maps.read(indices).contiguous(memory_format=torch.channels_last))
        answers_by_picture |= zip(indices, answers.float(), strict=True)
    yield from (answers_by_picture[i][None] for i in range(len(maps)))


# ------------------------------------------------------------------------------------------ projection and probes


@torch.no_grad()
def principal_components(encoder: ImageEncoder, maps: Maps) -> dict[str, float]:
    """Make the projection the leading principal components of some pictures' cells; returns the share of variance kept
    and the number of directions that the cells spread over, counted as if all were used alike.
    """
    cells = []
    for indices in maps.batches(32, range(0, len(maps), max(1, len(maps) // PCA_PICTURES))):
        pooled = F.adaptive_avg_pool2d(encoder.upper(maps.read(indices)), encoder.grid_shape)
        cells.append(pooled.flatten(2).transpose(1, 2).flatten(0, 1))
    return fit_components(encoder.project, torch.cat(cells))


@torch.no_grad()
def fit_components(project: nn.Linear, cells: Tensor) -> dict[str, float]:
    """Make `project` the leading principal components of `cells` (n, c), scaled to unit variance overall."""
    mean = cells.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((cells - mean).T.double()))
    values, vectors = values.flip(0), vectors.flip(1)
    dim = project.out_features
    weight = (vectors[:, :dim].T / (values[:dim].sum() / dim).sqrt()).float()
    project.weight.copy_(weight)
    project.bias.copy_(-weight @ mean)
    kept = values[:dim].sum() / values.sum()
    directions = values.sum().square() / values.square().sum()
    return {"variance_kept": float(kept), "directions": float(directions)}


def probe(
    encoder: ImageEncoder, maps: dict[str, list[Maps]], labels: dict[str, Tensor], words: int, precision: str
) -> float:
    """How well a linear map from the mean of the grid finds the words of dev pictures: mean average precision."""

    def pooled(x: Tensor) -> Tensor:
        return encoder.features(encoder.upper(x)).pooled

    x, y = (torch.cat([*_in_order(maps[split][0], precision, pooled)]) for split in ("train", "dev"))
    centre, scale = x.mean(0), x.std(0).clamp(min=1e-6)
    x, y = (x - centre) / scale, (y - centre) / scale
    truth = labels["train"][:, :words]
    weights = torch.linalg.solve(x.T @ x + 0.1 * len(x) * torch.eye(x.shape[1]), x.T @ (truth - truth.mean(0)))
    return mean_average_precision(y @ weights, labels["dev"][:, :words])


def mean_average_precision(scores: Tensor, truth: Tensor) -> float:
    """Over the labels (columns) that occur: how far up its own pictures stand when all are sorted by score."""
    occurs = truth.sum(0) > 0
    scores, truth = scores[:, occurs], truth[:, occurs]
    hits = truth.gather(0, scores.argsort(0, descending=True))
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)[:, None]
    return ((precision * hits).sum(0) / hits.sum(0)).mean().item()
