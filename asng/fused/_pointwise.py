"""1x1 convolutions with a batch norm: the layer, and which ones the kernels take."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng.fused._dispatch import DTYPES, align, compute_dtype, have_hooks, is_countable, is_supported
from asng.fused._norm import BatchNorm2d, count_batch, has_kernels_for

NORMS = {nn.BatchNorm2d, BatchNorm2d}
MAX_OUTPUTS = 256
MAX_MAPS = 5  # that the kernels read side by side


class PointwiseConv2d(nn.Sequential):
    """A 1x1 convolution and a batch norm, optionally after a ReLU: a `torch.nn.Sequential` of these layers.

    In training mode two kernels run forward and three backward, or four with more than 64 output channels (one more
    each way for many pixels), with or without ReLU. The layers hold the parameters and the state.

    Args:
        layers: Optionally `nn.ReLU`, then `nn.Conv2d` of size 1 and `nn.BatchNorm2d`. Kernels are used without groups,
            strides and bias, for up to 256 output channels, and with a ReLU that is not in place. Other layers, and
            layers with hooks, run one after another, as in a `torch.nn.Sequential`.

    >>> layer = PointwiseConv2d(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))
    >>> layer(torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([2, 4, 5, 5])
    """

    def forward(self, x: Tensor) -> Tensor:
        layers: Any = list(self)
        if not is_relu_pointwise(layers) or have_hooks(*layers[:-1]):
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        return conv_norm(x, layers[-2].weight, layers[-1], relu=len(layers) == 3)


def conv_norm(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d, *, relu: bool = False) -> Tensor:
    """A 1x1 convolution and a batch norm, by the kernels if these can."""
    dtype = compute_dtype(x)
    if not _fits([x], weight, norm, dtype) or x.shape[1] != weight.shape[1]:
        return norm(F.conv2d(F.relu(x) if relu else x, weight))  # type: ignore[no-any-return]
    return _run(norm, weight, dtype, [x], relu=relu)


def join_maps(maps: Sequence[Tensor], weight: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """`norm(conv2d(relu(cat(maps, 1)), weight))`; the kernels take up to five maps of the same shape."""
    dtype, inputs = compute_dtype(maps[0]), sum(x.shape[1] for x in maps)
    alike = all(x.dtype == maps[0].dtype and x.shape == maps[0].shape for x in maps)
    if not (alike and len(maps) <= MAX_MAPS and inputs == weight.shape[1] and _fits(maps, weight, norm, dtype)):
        return norm(F.conv2d(F.relu(torch.cat(list(maps), 1)), weight))  # type: ignore[no-any-return]
    return _run(norm, weight, dtype, maps, relu=True)


def reduce_diagonally(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, *, relu: bool = False) -> Tensor:
    """Of each 2x2 pixels the first and the last, the channels of both as groups of a 1x1 convolution, normalized."""
    dtype, weight = compute_dtype(x), conv.weight
    is_even = x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and x.shape[2] > 2
    if not (is_even and x.shape[1] == weight.shape[1] and not have_hooks(conv) and _fits([x], weight, norm, dtype)):
        x = F.relu(x) if relu else x
        return norm(conv(torch.cat([x[:, :, ::2, ::2], x[:, :, 1::2, 1::2]], 1)))  # type: ignore[no-any-return]
    return _run(norm, weight, dtype, [x], relu=relu, diagonal=True)


def _run(
    norm: nn.BatchNorm2d,
    weight: Tensor,
    dtype: torch.dtype,
    maps: Sequence[Tensor],
    *,
    relu: bool = False,
    diagonal: bool = False,
) -> Tensor:
    from asng.fused._pointwise_function import PointwiseFunction, Reading

    tensors = (weight, norm.weight, norm.bias, *count_batch(norm))
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*maps, *tensors))
    return PointwiseFunction.apply(  # type: ignore[no-any-return, no-untyped-call]
        *tensors, norm.momentum, norm.eps, dtype, save, Reading(relu, diagonal), *maps
    )


def is_relu_pointwise(layers: Any) -> bool:
    """Whether layers are a 1x1 convolution and its batch norm, after a ReLU that is not in place or none."""
    first = layers[:-2]
    has_relu = len(first) == 1 and type(first[0]) is nn.ReLU and not first[0].inplace  # others may read its input
    return is_pointwise(layers[-2:]) and (has_relu or not first)


def is_pointwise(layers: Any) -> bool:
    """Whether layers are a 1x1 convolution and its batch norm, with settings that the kernels have."""
    if len(layers) != 2 or type(layers[0]) is not nn.Conv2d or type(layers[1]) not in NORMS:
        return False
    conv, norm = layers
    return (
        (conv.kernel_size, conv.stride, conv.padding, conv.groups) == ((1, 1), (1, 1), (0, 0), 1)
        and conv.bias is None
        and norm.num_features == conv.out_channels <= MAX_OUTPUTS
    )


def _fits(maps: Sequence[Tensor], weight: Tensor, norm: nn.BatchNorm2d, dtype: torch.dtype) -> bool:
    x = maps[0]
    return (
        all(map(is_supported, maps))
        and is_countable(x, align(weight.shape[0]))
        and weight.shape[0] <= MAX_OUTPUTS
        and has_kernels_for(norm)
        and not have_hooks(norm)
        and dtype in DTYPES
        and (torch.is_autocast_enabled(x.device.type) or weight.dtype == dtype)
        and (weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last))
        and x.numel() > x.shape[1]
    )
