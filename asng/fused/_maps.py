"""Maps side by side, rectified, and sums of maps, each image with a factor: one kernel each way."""

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
        from asng.fused import _maps_kernels as kernels

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
        from asng.fused import _maps_kernels as kernels

        (y,), dy = ctx.saved_tensors, to_channels_last(gradient)
        gradients = [empty_channels_last(ctx.shape, dy) for _ in range(ctx.count)]
        numbers = gradients[0].numel()
        with device_of(y):
            kernels.concat_relu_backward[-(-numbers // BLOCK), ctx.count](
                dy, y, *_pad(gradients), numbers, ctx.shape[1], ctx.count, BLOCK, num_warps=8
            )
        return tuple(gradients)


def _pad(maps: Sequence[Tensor]) -> list[Tensor]:
    """Pad a list to the number of arguments that the kernels have."""
    return [*maps, *[maps[0]] * (MAX_MAPS - len(maps))]


class ScaledSum(nn.Module):
    """`a * scale_a + b * scale_b`, as in drop path: scales are (n, 1, 1, 1), or None for 1.

    >>> a, b = torch.ones(2, 4, 8, 8), torch.ones(2, 4, 8, 8)
    >>> ScaledSum()(a, b, torch.tensor([0.0, 2.0]).view(2, 1, 1, 1))[:, 0, 0, 0]
    tensor([1., 3.])
    """

    def forward(self, a: Tensor, b: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
        alike = a.dtype == b.dtype and a.shape == b.shape
        if alike and is_supported(a) and is_supported(b):
            return _ScaledSum.apply(a, b, scale_a, scale_b)  # type: ignore[no-any-return, no-untyped-call]
        return (a if scale_a is None else a * scale_a) + (b if scale_b is None else b * scale_b)


class _ScaledSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None) -> Tensor:
        from asng.fused import _maps_kernels as kernels

        y = torch.empty_like(a)
        numbers = a[0].numel()
        with device_of(a):
            kernels.scaled_sum[-(-numbers // BLOCK), len(a)](
                *(a, b, scale_a, scale_b, y, numbers, BLOCK), HAS_A=scale_a is not None, HAS_B=scale_b is not None
            )
        ctx.save_for_backward(scale_a, scale_b)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from asng.fused import _maps_kernels as kernels

        dy = to_channels_last(gradient)
        scale_a, scale_b = ctx.saved_tensors
        da, db = (dy if scale is None else torch.empty_like(dy) for scale in (scale_a, scale_b))
        if scale_a is not None or scale_b is not None:
            numbers = dy[0].numel()
            with device_of(dy):
                kernels.scaled_sum_backward[-(-numbers // BLOCK), len(dy)](
                    *(dy, scale_a, scale_b, da, db, numbers, BLOCK),
                    HAS_A=scale_a is not None,
                    HAS_B=scale_b is not None,
                )
        return da, db, None, None
