"""The positive parts of maps, side by side, in one kernel each way."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asng.fused._dispatch import device_of, empty_channels_last, is_supported, to_channels_last

MAX_MAPS = 5
BLOCK = 2048  # elements of a program


class ConcatReLU(nn.Module):
    """`torch.relu(torch.cat(maps, 1))`; kernels take up to five maps of the same shape.

    >>> maps = [torch.ones(2, 4, 8, 8), -torch.ones(2, 4, 8, 8)]
    >>> ConcatReLU()(maps)[0, :, 0, 0]
    tensor([1., 1., 1., 1., 0., 0., 0., 0.])
    """

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        first = maps[0]
        alike = all(x.dtype == first.dtype and x.shape == first.shape for x in maps)
        if alike and len(maps) <= MAX_MAPS and all(map(is_supported, maps)):
            return _ConcatReLU.apply(*maps)  # type: ignore[no-any-return, no-untyped-call]
        return F.relu(torch.cat(list(maps), 1) if len(maps) > 1 else first)


class _ConcatReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> Tensor:
        from asng.fused import _concat_kernels as kernels

        n, channels, height, width = maps[0].shape
        y = empty_channels_last((n, len(maps) * channels, height, width), maps[0])
        with device_of(y):
            kernels.concat_relu[-(-maps[0].numel() // BLOCK), len(maps)](
                *_pad(maps), y, maps[0].numel(), channels, len(maps), BLOCK, num_warps=8
            )
        ctx.save_for_backward(y)
        ctx.shape, ctx.count = maps[0].shape, len(maps)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        from asng.fused import _concat_kernels as kernels

        (y,), dy = ctx.saved_tensors, to_channels_last(gradient)
        gradients = [empty_channels_last(ctx.shape, dy) for _ in range(ctx.count)]
        numbers = gradients[0].numel()
        with device_of(y):
            kernels.concat_relu_backward[-(-numbers // BLOCK), ctx.count](
                dy, y, *_pad(gradients), numbers, ctx.shape[1], ctx.count, BLOCK, num_warps=8
            )
        return tuple(gradients)


def _pad(maps: Sequence[Tensor]) -> list[Tensor]:
    """As many arguments as the kernels have."""
    return [*maps, *[maps[0]] * (MAX_MAPS - len(maps))]
