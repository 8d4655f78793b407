"""Elastic layers of their largest size, in which what the selected sizes leave out is 0: shapes that a graph can hold.

Where widths have too many combinations for switches, a captured step runs layers in this form. The sizes are numbers
on the device. What is left out has no influence on layers that follow, since their weights for it are 0, too; whether
something else in the model looks at it, such as a mean over all channels, is checked by comparing a few passes with
the plain path.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from asng.nas import layers
from asng.nas.layers._base import ElasticLayer, has_own_forward
from asng.nas.layers._conv import ElasticConv
from asng.nas.layers._sizes import AnySize, map_sizes
from asng.nas.supernet import Supernet

TOLERANCE = 0.01  # of gradients in float32, relative; rounding makes about 1e-6
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
    if has_own_forward(type(layer)) or any(isinstance(size, AnySize) for size in layer.sizes.values()):
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
        case nn.modules.batchnorm._BatchNorm(momentum=float()) | nn.modules.instancenorm._InstanceNorm():
            return _channel_norm
        case layers.LayerNorm() | layers.RMSNorm():
            return _shape_norm
        case layers.GroupNorm() if _keep_groups(layer, "num_channels", "num_groups"):
            return lambda layer, masks, input: F.group_norm(
                input, layer.num_groups, *_scale_and_shift(layer, masks["num_channels"], input), layer.eps
            )
    return None


def _keep_groups(layer: Any, channels: str = "out_channels", groups: str = "groups") -> bool:
    """Whether all groups of channels have one size, so that the first channels are the first groups."""
    sizes, groups_size = layer.sizes[channels], layer.sizes[groups]
    return groups_size.max == 1 or len((sizes // groups_size).all()) == 1


def _linear(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    outputs, inputs = masks["out_features"], masks["in_features"]
    bias = None if layer.bias is None else layer.bias * outputs
    return F.linear(input, layer.weight * (outputs[:, None] & inputs), bias)


def _embedding(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    settings = (layer.padding_idx, layer.max_norm, layer.norm_type, layer.scale_grad_by_freq, layer.sparse)
    return F.embedding(input, layer.weight * masks["embedding_dim"], *settings)


def _convolve(layer: Any, masks: Masks, input: Tensor, output_size: list[int] | None = None) -> Tensor:
    axes = layer.weight.dim() - 2
    inputs, outputs = masks["in_channels"], masks["out_channels"]
    mask = inputs if layer.transposed else outputs
    if layer.groups == 1:  # else each group sees its own channels only
        mask = mask[:, None] & (outputs if layer.transposed else inputs)
    mask = mask.view(*mask.shape, *(1,) * (axes + 2 - mask.dim()))
    for axis, (side, window) in enumerate(zip(layer.sizes["kernel_size"], masks["kernel_size"], strict=True)):
        if side.is_elastic:
            mask = mask & window.view(*(-1 if axis == other else 1 for other in range(axes)))
    weight = layer.weight * mask
    bias = None if layer.bias is None else layer.bias * outputs
    if not layer.transposed:
        output: Tensor = layer._conv_forward(input, weight, bias)
        return output
    more = layer._output_padding(
        input, output_size, list(layer.stride), list(layer.padding), list(layer.kernel_size), axes, list(layer.dilation)
    )
    function: Any = getattr(F, layer._function)
    output = function(input, weight, bias, layer.stride, layer.padding, more, layer.groups, layer.dilation)
    return output


def _scale_and_shift(layer: Any, mask: Tensor, input: Tensor) -> tuple[Tensor, Tensor | None]:
    """The affine parameters of a norm with those left out 0, so that the results are."""
    weight, bias = layer.weight, layer.bias
    if weight is None:
        return mask.to(input.dtype), None
    return weight * mask, None if bias is None else bias * mask


def _channel_norm(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    """Batch or instance norm. Running statistics of channels that are left out stay as they are."""
    mask = masks["num_features"]
    running = [layer.running_mean, layer.running_var]
    updates = layer.training and layer.track_running_stats and layer.running_mean is not None
    from_input = layer.training or layer.running_mean is None
    statistics = running if not from_input else [None, None]
    if updates:
        statistics = [old.clone() for old in running]  # to which all channels of the batch are added
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
    function: Any = F.instance_norm if isinstance(layer, nn.modules.instancenorm._InstanceNorm) else F.batch_norm
    scale = _scale_and_shift(layer, mask, input)
    output: Tensor = function(input, *statistics, *scale, from_input, layer.momentum, layer.eps)
    if updates:
        for old, new in zip(running, statistics, strict=True):
            old.copy_(torch.where(mask, new, old))
    return output


def _shape_norm(layer: Any, masks: Masks, input: Tensor) -> Tensor:
    """Layer or RMS norm, over the first features of the last axes."""
    mask = masks["normalized_shape"][0]
    for other in masks["normalized_shape"][1:]:
        mask = mask[..., None] & other
    axes = tuple(range(-mask.dim(), 0))
    x: Tensor = (input.float() if input.dtype in (torch.bfloat16, torch.float16) else input) * mask
    count, eps = mask.sum(), layer.eps
    if isinstance(layer, nn.LayerNorm):
        x = (x - x.sum(axes, keepdim=True) / count) * mask
    elif eps is None:
        eps = torch.finfo(input.dtype).eps
    x = x * torch.rsqrt(x.square().sum(axes, keepdim=True) / count + eps)
    x = x if layer.weight is None else x * layer.weight
    bias = getattr(layer, "bias", None)
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


def some_architectures(supernet: Supernet) -> Iterator[dict[str, Any]]:
    """The first values of all decisions, the last ones, and some of each, on which masks are tried."""
    draw = random.Random(0)
    chosen: list[Callable[[Any], Any]] = [lambda values: values[0], lambda values: values[-1], draw.choice]
    for choose in chosen:
        yield {name: choose(variable.values()) for name, variable in supernet.space.items()}


def difference(found: Mapping[int, Tensor], expected: Mapping[int, Tensor]) -> float:
    """The norm of the difference of two gradients, relative to that of the second."""
    squares = [torch.stack([(found[key] - g).square().sum(), g.square().sum()]) for key, g in expected.items()]
    error, norm = torch.stack(squares).sum(0).sqrt().tolist()
    return float(error / norm if norm else error)


@contextmanager
def without_tf32() -> Iterator[None]:
    """Compute float32 in float32: small networks with batch norm turn the rounding of TF32 into several percent."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = False
        yield
    finally:
        for switch, allowed in zip(switches, before, strict=True):
            switch.allow_tf32 = allowed


class WithoutDropout(TorchFunctionMode):
    """Lets dropout pass its input on, so that passes with masks and without draw the same."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if "dropout" in name:
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention" and "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)
