"""Elastic layers of their largest size, in which what the selected sizes leave out is 0: shapes that a graph can hold.

Where widths have too many combinations for switches, a captured step runs layers in this form. The sizes are numbers
on the device. What is left out has no influence on layers that follow, since their weights for it are 0, too; whether
something else in the model looks at it, such as a mean over all channels, is checked by comparing a few passes with
the plain path, in float64, in which rounding hides nothing.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from asng.nas import layers
from asng.nas._capture.cases import StaticBatch
from asng.nas._size import AnySize, map_sizes
from asng.nas.layers._base import ElasticLayer
from asng.nas.layers.conv import ElasticConv
from asng.nas.supernet import Supernet

TOLERANCE = 1e-4  # relative; parts of a model that are in float32 all the same make about 1e-6
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


def some_architectures(supernet: Supernet) -> Iterator[dict[str, Any]]:
    """The first values of all decisions, the last ones, and some of each, on which masks are tried."""
    draw = random.Random(0)
    chosen: list[Callable[[Any], Any]] = [lambda values: values[0], lambda values: values[-1], draw.choice]
    for choose in chosen:
        yield {name: choose(variable.values()) for name, variable in supernet.space.items()}


class Results(NamedTuple):
    """Results of passes of one architecture."""

    gradients: Mapping[int, Tensor]  # by the ids of parameters
    numbers: Tensor  # losses and metrics
    buffers: Mapping[str, Tensor]


def find_difference(found: Results, expected: Results) -> str | None:
    """Return what of masked passes differs from plain ones by more than rounding."""
    if not (difference := relative_difference(found.gradients, expected.gradients)) <= TOLERANCE:
        return f"its gradient differs by {difference:.2%} from the plain one"
    numbers = torch.stack([found.numbers, expected.numbers], -1)[~_are_close(found.numbers, expected.numbers)]
    for number, plain in numbers.tolist():
        return f"its loss, its score or a metric is {number:g} instead of {plain:g}"
    for name, buffer in expected.buffers.items():
        if not _are_close(found.buffers[name], buffer).all():
            return f"its buffer {name} differs from the plain one"
    return None


def _are_close(one: Tensor, other: Tensor) -> Tensor:
    return torch.isclose(one.double(), other.double(), TOLERANCE, 1e-9, equal_nan=True)


def relative_difference(found: Mapping[int, Tensor], expected: Mapping[int, Tensor]) -> float:
    """The norm of the difference of two gradients, relative to that of the second."""
    squares = [torch.stack([(found[key] - g).square().sum(), g.square().sum()]) for key, g in expected.items()]
    error, norm = torch.stack(squares).sum(0).sqrt().tolist()
    return float(error / norm if norm else error)


@contextmanager
def compute_in_double(model: nn.Module, *batches: StaticBatch) -> Iterator[None]:
    """Let a model and its batches be in float64, which autocast leaves alone; buffers are restored on exit."""
    tensors = [*model.parameters(), *model.buffers()]
    before, given, dtype = (
        [tensor.data for tensor in tensors],
        [batch.batch for batch in batches],
        torch.get_default_dtype(),
    )
    try:
        torch.set_default_dtype(torch.double)
        for tensor in tensors:
            tensor.data = _to_double(tensor.data).clone()
        for batch in batches:
            batch.batch = pytree.tree_map_only(Tensor, _to_double, batch.batch)
        yield
    finally:
        torch.set_default_dtype(dtype)
        for tensor, old in zip(tensors, before, strict=True):
            tensor.data = old
        for batch, old_batch in zip(batches, given, strict=True):
            batch.batch = old_batch


def _to_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


class CheckMode(TorchFunctionMode):
    """Lets dropout pass its input on, as masked layers would draw other numbers, and lets nothing leave float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.dtype, _widen, (tuple(args), dict(kwargs or {})))
        name, given = getattr(func, "__name__", ""), args[0] if args else kwargs.get("input")
        if "dropout" in name:
            return given
        if name == "scaled_dot_product_attention":
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            return func(**{**dict(zip(names, args, strict=False)), **kwargs, "dropout_p": 0.0})
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            func = Tensor.double
        if func is torch.empty_like:  # as for the results of a switch, of which a dry run found the type
            kwargs.setdefault("dtype", _widen(given.dtype))
        return func(*args, **kwargs)


def _widen(dtype: torch.dtype) -> torch.dtype:
    return torch.double if dtype.is_floating_point else dtype
