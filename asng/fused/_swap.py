"""Fused layers in the place of torch's, and back."""

from typing import Any, TypeVar

from torch import nn

from asng.fused._norm import BatchNorm2d
from asng.fused._pointwise import PointwiseConv2d, is_relu_pointwise
from asng.fused._pool import AvgPool2d, MaxPool2d
from asng.fused._separable import SeparableConv2d, is_separable

Model = TypeVar("Model", bound=nn.Module)

FUSED: dict[Any, Any] = {
    nn.AvgPool2d: AvgPool2d,
    nn.MaxPool2d: MaxPool2d,
    nn.BatchNorm2d: BatchNorm2d,
}
SEQUENCES: dict[Any, Any] = {SeparableConv2d: is_separable, PointwiseConv2d: is_relu_pointwise}
PLAIN = {ours: torchs for torchs, ours in FUSED.items()} | dict.fromkeys(SEQUENCES, nn.Sequential)


def fuse(model: Model) -> Model:
    """Replace torch's layers in a model by fused ones, in place: pools, batch norms, separable and 1x1 convolutions.

    Parameters, buffers, hooks and the state dict do not change; only classes do. Convolutions are fused only in a
    `torch.nn.Sequential` without further layers, as described in `SeparableConv2d` and `PointwiseConv2d`. Subclasses of
    torch's layers are not fused.

    Args:
        model: Any module; if it is itself such a layer, it is fused, too.

    Returns:
        The model.

    Raises:
        ValueError: `model` is not a module.

    >>> model = fuse(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2)))
    >>> type(model[1]) is BatchNorm2d, type(model[2]) is MaxPool2d
    (True, True)
    """
    _check_model(model)
    for module in model.modules():
        if type(module) is nn.Sequential:
            layers = list(module)
            module.__class__ = next((ours for ours, takes in SEQUENCES.items() if takes(layers)), nn.Sequential)
        module.__class__ = FUSED.get(type(module), type(module))
    return model


def unfuse(model: Model) -> Model:
    """Replace fused layers in a model by torch's layers, in place.

    Subclasses of fused layers, such as those with parametrizations, are not replaced.

    Args:
        model: Any module.

    Returns:
        The model.

    Raises:
        ValueError: `model` is not a module.

    >>> type(unfuse(BatchNorm2d(4))) is nn.BatchNorm2d
    True
    """
    _check_model(model)
    for module in model.modules():
        module.__class__ = PLAIN.get(type(module), type(module))
    return model


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model must be an instance of torch.nn.Module, got {repr(model)[:80]}")
