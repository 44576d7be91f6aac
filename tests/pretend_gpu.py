"""A GPU that is not there: tensors say that they are on `cuda`, are computed on the CPU, and refuse to meet tensors
that are not on it.

What PyTorch refuses on a real one is refused here: an operation on tensors of two devices, numpy on a GPU's tensor,
double precision (on a Mac). As there, a tensor without dimensions may come from the CPU, so may an index in brackets,
and what is copied may come from anywhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

GPU = torch.device("cuda", 0)
ANSWERS = {Tensor.device.__get__: GPU, Tensor.is_cuda.__get__: True, Tensor.is_cpu.__get__: False}
FETCHED = (
    Tensor.cpu,
    Tensor.tolist,
    Tensor.item,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.__repr__,
)
REFUSED = (Tensor.numpy, Tensor.__array__)
COPIES = (Tensor.copy_, Tensor.to, Tensor.data.__set__)


class OnGpu(Tensor):
    """A tensor of the pretended GPU."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if func in ANSWERS:
            return ANSWERS[func]
        if func in REFUSED:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if func in FETCHED or (func is Tensor.to and _device(args, kwargs) == "cpu"):
            return func(*_fetched(args), **_fetched(kwargs))
        if func not in COPIES:
            _meet(func, args, kwargs)
        return _of_a_mac(super().__torch_function__(func, types, args, kwargs))

    def __deepcopy__(self, memo: dict) -> "OnGpu":
        copy = self.detach().clone()
        memo[id(self)] = nn.Parameter(copy, self.requires_grad) if isinstance(self, nn.Parameter) else copy
        return memo[id(self)]


class Factories(TorchFunctionMode):
    """What is made on the GPU or moved to it is pretended to be there."""

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if _device(args, kwargs) != "cuda":
            return func(*args, **kwargs)
        here = func(*_without_device(args), **{k: v for k, v in kwargs.items() if k != "device"})
        return _of_a_mac(here.as_subclass(OnGpu)) if isinstance(here, Tensor) else here


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """Inside, `--device cuda` is a device."""
    move = nn.Module.to

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if _device((None, *args), kwargs) != "cuda":
            return move(module, *args, **kwargs)
        for part in module.modules():
            for name, weight in part._parameters.items():
                if weight is not None:
                    part._parameters[name] = nn.Parameter(
                        _of_a_mac(weight.data.as_subclass(OnGpu)), weight.requires_grad
                    )
            there = {
                name: _of_a_mac(buffer.as_subclass(OnGpu))
                for name, buffer in part._buffers.items()
                if buffer is not None
            }
            part._buffers.update(there)
        return module

    with pytest.MonkeyPatch.context() as patch, Factories():
        patch.setattr(nn.Module, "to", to)
        patch.setattr(nn.RNNBase, "flatten_parameters", lambda module: None)  # for cuDNN, which is not there either
        patch.setattr("captioners.profiles.base.pick_device", lambda name: name)
        yield


def _of_a_mac(result: Any) -> Any:
    """What the GPU of a Mac refuses is refused too."""
    if isinstance(result, OnGpu) and result.dtype == torch.float64:
        raise TypeError("the MPS framework doesn't support float64")
    return result


def _device(args: tuple, kwargs: dict) -> str:
    """The kind of device that a call names, or nothing."""
    named = [kwargs.get("device"), *args[1:]] if args else [kwargs.get("device")]
    for value in named:
        if isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda")):
            return torch.device(value).type
    return ""


def _without_device(args: tuple) -> tuple:
    return tuple(
        a for a in args if not isinstance(a, torch.device) and not (isinstance(a, str) and a.startswith("cuda"))
    )


def _fetched(tree: Any) -> Any:
    return tree_map_only(OnGpu, lambda t: t.as_subclass(Tensor), tree)


def _meet(func: Any, args: tuple, kwargs: dict) -> None:
    """Raises where tensors of two devices meet."""
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        indices = [t for t in tree_leaves(args[1]) if isinstance(t, Tensor)]
        if not isinstance(args[0], OnGpu) and any(isinstance(t, OnGpu) for t in indices):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        args = (args[0], *(args[2:] if indices else ()))
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    elsewhere = [t for t in tensors if not isinstance(t, OnGpu) and t.dim() > 0]
    if elsewhere and len(elsewhere) < len(tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {getattr(func, '__name__', func)} got cuda:0 and cpu"
        )
