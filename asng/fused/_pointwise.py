"""1x1 convolutions with a batch norm: the layer, and which ones the kernels take."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng.fused._dispatch import DTYPES, compute_dtype, is_supported
from asng.fused._norm import BatchNorm2d, uses_batch_statistics

NORMS = {nn.BatchNorm2d, BatchNorm2d}
MAX_CHANNELS = 256


class PointwiseConv2d(nn.Sequential):
    """A 1x1 convolution and a batch norm: a `torch.nn.Sequential` of these layers.

    In training mode three kernels run forward and three backward (with many pixels: up to four each). The layers hold
    the parameters and the state, as ever.

    Args:
        layers: `nn.Conv2d` of size 1 and `nn.BatchNorm2d`. Kernels are used without groups, strides and bias, and up
            to 256 channels of the output; other layers, and layers with hooks, run one after another, as in a
            `torch.nn.Sequential`.

    >>> layer = PointwiseConv2d(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))
    >>> layer(torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([2, 4, 5, 5])
    """

    def forward(self, x: Tensor) -> Tensor:
        layers: Any = list(self)
        if not is_pointwise(layers) or layers[0]._forward_hooks or layers[0]._forward_pre_hooks:
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        return conv_norm(x, layers[0].weight, layers[1])


def conv_norm(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """A 1x1 convolution and a batch norm, by the kernels if these can."""
    dtype = compute_dtype(x)
    if not _fits(x, weight, norm, dtype):
        return norm(F.conv2d(x, weight))  # type: ignore[no-any-return]
    from asng.fused._pointwise_function import PointwiseFunction

    if norm.num_batches_tracked is not None and norm.track_running_stats:
        norm.num_batches_tracked.add_(1)
    tensors = (weight, norm.weight, norm.bias, norm.running_mean, norm.running_var)
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *tensors))
    return PointwiseFunction.apply(  # type: ignore[no-any-return, no-untyped-call]
        x, *tensors, norm.momentum, norm.eps, dtype, save
    )


def is_pointwise(layers: Any) -> bool:
    """Whether layers are a 1x1 convolution and its batch norm, with settings that the kernels have."""
    if len(layers) != 2 or type(layers[0]) is not nn.Conv2d or type(layers[1]) not in NORMS:
        return False
    conv, norm = layers
    return (
        (conv.kernel_size, conv.stride, conv.padding, conv.groups) == ((1, 1), (1, 1), (0, 0), 1)
        and conv.bias is None
        and norm.num_features == conv.out_channels <= MAX_CHANNELS
    )


def _fits(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d, dtype: torch.dtype) -> bool:
    return (
        is_supported(x)
        and x.shape[1] == weight.shape[1]
        and weight.shape[0] <= MAX_CHANNELS
        and uses_batch_statistics(norm)
        and not (norm._forward_hooks or norm._forward_pre_hooks)
        and dtype in DTYPES
        and (torch.is_autocast_enabled(x.device.type) or weight.dtype == dtype)
        and (weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last))
        and x.numel() > x.shape[1]
    )
