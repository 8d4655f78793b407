"""Separable convolutions: the layer, and which ones the kernels take."""

from typing import Any

import torch
from torch import Tensor, nn

from asng.fused._dispatch import DTYPES, align, compute_dtype, have_hooks, is_countable, is_supported
from asng.fused._norm import count_batch, has_kernels_for
from asng.fused._pointwise import MAX_OUTPUTS, is_pointwise


class SeparableConv2d(nn.Sequential):
    """Two blocks of ReLU, depthwise convolution, 1x1 convolution and batch norm: a `torch.nn.Sequential`.

    In training mode six kernels run forward and six backward, or eight with more than 64 channels (up to two more each
    way for many pixels). The layers hold the parameters and the state.

    Args:
        layers: Two times `nn.ReLU`, `nn.Conv2d` with groups, `nn.Conv2d` of size 1 and `nn.BatchNorm2d`. Kernels are
            used for kernel sizes of 3 and 5, strides of 1 and 2, the padding that keeps the size, no bias, up to 256
            channels, and a first ReLU that is not in place. Other layers, and layers with hooks, run one after another,
            as in a `torch.nn.Sequential`.

    >>> half = [nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.Conv2d(4, 4, 1, bias=False)]
    >>> again = [nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.Conv2d(4, 4, 1, bias=False)]
    >>> layer = SeparableConv2d(*half, nn.BatchNorm2d(4), *again, nn.BatchNorm2d(4))
    >>> layer(torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([2, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        layers: Any = list(self)
        dtype = compute_dtype(x)
        if not (is_separable(layers) and _fits(x, layers, dtype)):
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        from asng.fused._separable_function import HalfSettings, SeparableFunction

        settings, tensors = [], []
        for _, depthwise, pointwise, norm in (layers[:4], layers[4:]):
            tensors += [depthwise.weight, pointwise.weight, norm.weight, norm.bias, *count_batch(norm)]
            settings.append(HalfSettings(depthwise.kernel_size[0], depthwise.stride[0], norm.momentum, norm.eps))
        save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *tensors))
        return SeparableFunction.apply(x, *tensors, settings, dtype, save)  # type: ignore[no-any-return, no-untyped-call]


def is_separable(layers: Any) -> bool:
    """Whether layers are those of a separable convolution, with settings that the kernels have."""
    kinds = [type(layer) for layer in layers]
    if len(kinds) != 8 or kinds[:2] + kinds[4:6] != 2 * [nn.ReLU, nn.Conv2d]:
        return False
    if layers[0].inplace:  # it writes into its input, which others may read
        return False
    channels = layers[1].in_channels
    return channels <= MAX_OUTPUTS and all(
        _is_depthwise(depthwise, channels)
        and is_pointwise((pointwise, norm))
        and pointwise.in_channels == pointwise.out_channels == channels
        for _, depthwise, pointwise, norm in (layers[:4], layers[4:])
    )


def _is_depthwise(layer: nn.Conv2d, channels: int) -> bool:
    size, stride = layer.kernel_size[0], layer.stride[0]
    return (
        layer.in_channels == layer.out_channels == layer.groups == channels
        and layer.kernel_size == (size, size)
        and size in (3, 5)
        and layer.stride == (stride, stride)
        and stride in (1, 2)
        and layer.padding == (size // 2, size // 2)
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and layer.bias is None
    )


def _fits(x: Tensor, layers: Any, dtype: torch.dtype) -> bool:
    weights = [layers[index].weight for index in (1, 2, 5, 6)]
    channels, stride = layers[1].in_channels, layers[1].stride[0] * layers[5].stride[0]
    return (
        is_supported(x)
        and x.shape[1] == channels
        and is_countable(x, align(channels))
        and all(has_kernels_for(layers[index]) for index in (3, 7))
        and not have_hooks(*layers)
        and dtype in DTYPES
        and (torch.is_autocast_enabled(x.device.type) or all(weight.dtype == dtype for weight in weights))
        and all(weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
        and x.shape[0] * (x.shape[2] // stride) * (x.shape[3] // stride) > 1
    )
