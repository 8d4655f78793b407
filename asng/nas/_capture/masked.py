"""Elastic layers of their largest size, in which what the selected sizes leave out is 0: shapes that a graph can hold.

Where widths have too many combinations for switches, a captured step runs layers in this form. The sizes are numbers
on the device. What is left out has no influence on layers that follow, since their weights for it are 0, too; whether
something else in the model looks at it, such as a mean over all channels, is what `mask_check` checks.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas import layers
from asng.nas._size import AnySize, map_sizes
from asng.nas.layers._base import ElasticLayer
from asng.nas.layers.conv import ElasticConv
from asng.nas.supernet import Supernet

Masks = Mapping[str, Any]  # of each elastic argument a bool tensor (largest size,), or a tuple of them
MaskFn = Callable[..., Tensor]  # the mask of a size, of the first entries or, `centered`, of those in the middle


def forward_of(layer: ElasticLayer, mask_of: MaskFn) -> Callable[..., Tensor]:
    """Return what runs in the place of a layer's forward()."""
    function: Callable[..., Tensor] = _function_of(layer)

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        masks = {
            name: map_sizes(partial(mask_of, centered=name == "kernel_size"), size)
            for name, size in layer.sizes.items()
        }
        return function(layer, masks, *args, **kwargs)

    return forward


def _function_of(layer: ElasticLayer) -> Any:
    """The masked form of a layer; None if it has none."""
    if _has_own_methods(layer) or any(isinstance(size, AnySize) for size in layer.sizes.values()):
        return None
    match layer:
        case layers.Linear():
            return _linear
        case layers.Embedding(max_norm=None):
            return _embedding
        case layers.PReLU():
            return lambda layer, masks, input: F.prelu(input, layer.weight)
        case ElasticConv() if _keep_groups(layer, "in_channels", "groups") and _keep_groups(layer):
            return _convolve
        case nn.modules.batchnorm._BatchNorm(momentum=float() | int()) | nn.modules.instancenorm._InstanceNorm():
            return _channel_norm
        case layers.LayerNorm() | layers.RMSNorm():
            return _shape_norm
        case layers.GroupNorm() if _keep_groups(layer, "num_channels", "num_groups"):
            return _group_norm
    return None


def _has_own_methods(layer: ElasticLayer) -> bool:
    """Whether a subclass, or the layer alone, computes something else than the class of asng."""
    kind = type(layer)
    base = next(base for base in kind.__mro__ if base.__module__.startswith("asng."))
    names = ("forward", "active_tensors")
    return "forward" in layer.__dict__ or any(getattr(kind, name) is not getattr(base, name) for name in names)


def _keep_groups(layer: Any, channels: str = "out_channels", groups: str = "groups") -> bool:
    """Whether all groups of channels have one size, so that the first channels are the first groups."""
    sizes, groups_size = layer.sizes[channels], layer.sizes[groups]
    return groups_size.max == 1 or len((sizes // groups_size).values()) == 1


def _linear(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    outputs, inputs = masks["out_features"], masks["in_features"]
    return F.linear(input, layer.weight * (outputs[:, None] & inputs), _mask_bias(layer, outputs))


def _mask_bias(layer: Any, mask: Tensor) -> Tensor | None:
    bias = layer.bias
    return None if bias is None else bias * mask


def _embedding(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    settings = (layer.padding_idx, layer.max_norm, layer.norm_type, layer.scale_grad_by_freq, layer.sparse)
    return F.embedding(input, layer.weight * masks["embedding_dim"], *settings)


def _convolve(layer: Any, masks: Masks, input: Tensor, output_size: list[int] | None = None) -> Tensor:
    weight = layer.weight  # read once: a parametrization computes it
    axes = weight.dim() - 2
    inputs, outputs = masks["in_channels"], masks["out_channels"]
    mask = inputs if layer.transposed else outputs
    if layer.groups == 1:  # else each group sees its own channels only
        mask = mask[:, None] & (outputs if layer.transposed else inputs)
    mask = mask.view(*mask.shape, *(1,) * (axes + 2 - mask.dim()))
    for axis, (side, window) in enumerate(zip(layer.sizes["kernel_size"], masks["kernel_size"], strict=True)):
        if side.is_elastic:
            mask = mask & window.view(*(-1 if axis == other else 1 for other in range(axes)))
    weight, bias = weight * mask, _mask_bias(layer, outputs)
    if not layer.transposed:
        output: Tensor = layer._conv_forward(input, weight, bias)
        return output
    more = layer._output_padding(
        input, output_size, list(layer.stride), list(layer.padding), list(layer.kernel_size), axes, list(layer.dilation)
    )
    function: Any = getattr(F, layer._function)
    output = function(input, weight, bias, layer.stride, layer.padding, more, layer.groups, layer.dilation)
    return output


def _scale_and_shift(layer: Any, mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The affine parameters of a norm, or factors of a type, with those left out 0, so that the results are."""
    weight = layer.weight
    return mask.to(dtype) if weight is None else weight * mask, _mask_bias(layer, mask)


def _channel_norm(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    """Batch or instance norm. Running statistics of channels that are left out stay as they are."""
    mask = masks["num_features"]
    running = [layer.running_mean, layer.running_var]
    updates = layer.training and layer.track_running_stats and layer.running_mean is not None
    from_input = layer.training or layer.running_mean is None
    statistics = running if not from_input else [None, None]
    if updates:
        statistics = [old.clone() for old in running]  # to which all channels of the batch are added
    scale = _scale_and_shift(layer, mask, input.dtype if layer.running_mean is None else layer.running_mean.dtype)
    settings: Any = (*statistics, *scale, from_input, layer.momentum or 0.0, layer.eps)
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        axes: Any = layer._axes
        batch = input if input.dim() > 1 + axes else input[None]
        output = F.instance_norm(batch, *settings).view_as(input)
    else:
        output = F.batch_norm(input, *settings)
        if updates and layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
    if updates:
        for old, new in zip(running, statistics, strict=True):
            old.copy_(torch.where(mask, new, old))
    return output


def _group_norm(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    mask = masks["num_channels"]
    if layer.num_groups > 1:
        return F.group_norm(input, layer.num_groups, *_scale_and_shift(layer, mask, input.dtype), layer.eps)
    mask = mask.view(-1, *(1,) * (input.dim() - 2))
    weight, bias = (None if p is None else p.view(mask.shape) for p in (layer.weight, layer.bias))
    return _normalize(input, mask.expand(input.shape[1:]), weight, bias, layer.eps)


def _shape_norm(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    """Layer or RMS norm, over the first features of the last axes."""
    mask = masks["normalized_shape"][0]
    for other in masks["normalized_shape"][1:]:
        mask = mask[..., None] & other
    is_centered = isinstance(layer, nn.LayerNorm)
    return _normalize(
        input, mask, layer.weight, layer.bias if is_centered else None, layer.eps, is_centered=is_centered
    )


def _normalize(
    input: Tensor, mask: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float | None, is_centered: bool = True
) -> Tensor:
    """Divide by the deviation of the selected entries of the last axes, less their mean if centered."""
    axes = tuple(range(-mask.dim(), 0))
    x: Tensor = (input.float() if input.dtype in (torch.bfloat16, torch.float16) else input) * mask
    count = mask.sum()
    if is_centered:
        x = (x - x.sum(axes, keepdim=True) / count) * mask
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    x = x * torch.rsqrt(x.square().sum(axes, keepdim=True) / count + eps)
    x = x if weight is None else x * weight
    x = x if bias is None else x + bias * mask
    return x if torch.is_autocast_enabled(input.device.type) else x.to(input.dtype)


def find_layers(supernet: Supernet) -> list[ElasticLayer]:
    """The layers whose sizes follow decisions and that have a masked form; none if a decision has no list of values."""
    if any(variable.values() is None for variable in supernet.space.values()):
        return []
    layers = [layer for layer in supernet.paths if isinstance(layer, ElasticLayer)]
    return [layer for layer in layers if _is_elastic(layer) and _function_of(layer) is not None]


def _is_elastic(layer: ElasticLayer) -> bool:
    sizes = [part for size in layer.sizes.values() for part in (size if isinstance(size, tuple) else (size,))]
    return any(size.decisions for size in sizes)
