"""Average and max pooling, one kernel each way."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asng.fused._dispatch import device_of, is_supported, power_of_two, to_rows, widen
from asng.fused._placement import PlacingFunction, place

MAX_BLOCK = 512  # elements of a row that a program has
MIN_PROGRAMS = 1024  # before a program has several rows


class AvgPool2d(nn.AvgPool2d):
    """`torch.nn.AvgPool2d`, with its arguments.

    Windows of 3x3 with a padding of 1, a stride of 1 or 2, and defaults for all other arguments run as one kernel,
    forward and backward.

    Args:
        kernel_size: Height and width of a window, or one number for both.
        stride: Stride of the windows, one or two numbers; by default the kernel size.
        padding: Padding of the input, one or two numbers.
        ceil_mode: Whether windows may begin inside the input and end outside.
        count_include_pad: Whether means include the padding.
        divisor_override: Divisor of the sums, instead of the size of a window.

    >>> pool = AvgPool2d(3, stride=2, padding=1)
    >>> pool(torch.ones(1, 4, 8, 8).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([1, 4, 4, 4])
    """

    def forward(self, x: Tensor) -> Tensor:
        default = self.count_include_pad and not self.ceil_mode and self.divisor_override is None
        if default and _has_kernels(self) and is_supported(x):
            return _AvgPool.apply(x, _step(self))  # type: ignore[no-any-return, no-untyped-call]
        if x.is_cuda and x.dim() == 4 and x.stride(1) == 1:
            # Torch 2.11 computes a wrong gradient of channels last, with gaps between pixels or without
            # (https://github.com/pytorch/pytorch/issues/188344).
            return super().forward(x.contiguous()).contiguous(memory_format=torch.channels_last)
        return super().forward(x)


class MaxPool2d(nn.MaxPool2d):
    """`torch.nn.MaxPool2d`, with its arguments.

    Windows of 3x3 with a padding of 1, a stride of 1 or 2, and defaults for all other arguments run as one kernel,
    forward and backward. As in torch, the first of equal maxima has the gradient, and NaN is larger than all numbers.

    Args:
        kernel_size: Height and width of a window, or one number for both.
        stride: Stride of the windows, one or two numbers; by default the kernel size.
        padding: Padding of the input, one or two numbers.
        dilation: Stride within a window, one or two numbers.
        return_indices: Whether to return the positions of the maxima, too.
        ceil_mode: Whether windows may begin inside the input and end outside.

    >>> pool = MaxPool2d(3, stride=1, padding=1)
    >>> pool(torch.ones(1, 4, 8, 8).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([1, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        default = self.dilation in (1, (1, 1)) and not self.ceil_mode and not self.return_indices
        if default and _has_kernels(self) and is_supported(x):
            save = torch.is_grad_enabled() and x.requires_grad
            return _MaxPool.apply(x, _step(self), save)  # type: ignore[no-any-return, no-untyped-call]
        return super().forward(x)  # type: ignore[no-any-return]


def _has_kernels(pool: nn.AvgPool2d | nn.MaxPool2d) -> bool:
    square = [
        size if isinstance(size, tuple) else (size, size) for size in (pool.kernel_size, pool.stride, pool.padding)
    ]
    return square in ([(3, 3), (step, step), (1, 1)] for step in (1, 2))


def _step(pool: nn.AvgPool2d | nn.MaxPool2d) -> int:
    return pool.stride[0] if isinstance(pool.stride, tuple) else pool.stride


class Grid:
    """The split of rows of (width, channels) elements into programs: blocks of elements, of one or more rows."""

    def __init__(self, x: Tensor, width: int, rows: int) -> None:
        """`rows` and `width` are those of one image of x, (n, c, h, w)."""
        images, channels = x.shape[:2]
        elements = 16 // x.element_size()
        self.align = math.gcd(channels, elements)
        self.block = max(32, min(power_of_two(width * channels), MAX_BLOCK))
        self.warps = max(1, self.block // (32 * max(4, self.align)))
        blocks = -(-width * channels // self.block)
        self.rows = next(n for n in (4, 2, 1) if n == 1 or images * blocks * rows >= n * MIN_PROGRAMS)
        self.programs = images * -(-rows // self.rows), blocks
        self.programs_of_rows = images * rows, blocks


def _output_shape(x: Tensor, step: int) -> tuple[int, int, int, int]:
    height, width = (-(-length // step) for length in x.shape[2:])
    return x.shape[0], x.shape[1], height, width


def _empty(shape: tuple[int, ...], like: Tensor, channels: int) -> tuple[Tensor, bool]:
    """Memory for a result of which the first channels count, whole rows of it, and whether to add to what is there."""
    rows = torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
    result, adds = place(rows[:, :channels])
    return widen(result), adds


class _AvgPool(PlacingFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: int) -> Tensor:
        from asng.fused import _pool_kernels as kernels

        ctx.shape, ctx.step, x = x.shape, step, widen(x)
        y, adds = _empty(_output_shape(x, step), x, ctx.shape[1])
        grid = Grid(x, y.shape[3], y.shape[2])
        with device_of(x):
            kernels.avg_pool[grid.programs](
                *(x, y, 0, *x.shape[1:], *y.shape[2:], step, grid.rows, grid.block, grid.align, adds),
                num_warps=grid.warps,
            )
        return y[:, : ctx.shape[1]].data  # no view: it may be written in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from asng.fused import _pool_kernels as kernels

        dy = widen(to_rows(gradient))
        dx, adds = _empty((len(dy), dy.shape[1], *ctx.shape[2:]), dy, ctx.shape[1])
        grid, sizes = Grid(dy, dy.shape[3], dy.shape[2]), (*dx.shape[1:], *dy.shape[2:])
        with device_of(dy):
            if ctx.step == 1:
                kernels.avg_pool[grid.programs](
                    *(dy, dx, 0, *sizes, 1, grid.rows, grid.block, grid.align, adds), num_warps=grid.warps
                )
            else:
                kernels.avg_pool_backward[grid.programs_of_rows](
                    *(dy, dx, 0, *sizes, grid.block, grid.align, adds), num_warps=grid.warps
                )
        return dx[:, : ctx.shape[1]], None


class _MaxPool(PlacingFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: int, save: bool) -> Tensor:
        from asng.fused import _pool_kernels as kernels

        ctx.shape, ctx.step, x = x.shape, step, widen(x)
        y, adds = _empty(_output_shape(x, step), x, ctx.shape[1])
        taps = torch.empty_like(y, dtype=torch.uint8) if save else None
        grid = Grid(x, y.shape[3], y.shape[2])
        with device_of(x):
            kernels.max_pool[grid.programs](
                *(x, y, taps, 0, *x.shape[1:], *y.shape[2:], step, grid.rows, grid.block, grid.align),
                SAVE=save,
                ADD=adds,
                num_warps=grid.warps,
            )
        ctx.save_for_backward(taps)
        return y[:, : ctx.shape[1]].data  # no view: it may be written in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from asng.fused import _pool_kernels as kernels

        (taps,) = ctx.saved_tensors
        dy = widen(to_rows(gradient, taps.shape[1]))
        dx, adds = _empty((len(dy), dy.shape[1], *ctx.shape[2:]), dy, ctx.shape[1])
        grid = Grid(dy, dy.shape[3], dy.shape[2])
        with device_of(dy):
            if ctx.step == 1:
                kernels.max_pool_backward[grid.programs](
                    *(dy, taps, dx, 0, *dx.shape[1:], grid.rows, grid.block, grid.align, adds), num_warps=grid.warps
                )
            else:
                kernels.max_pool_backward_step2[grid.programs_of_rows](
                    *(dy, taps, dx, 0, *dx.shape[1:], *dy.shape[2:], grid.block, grid.align, adds),
                    num_warps=grid.warps,
                )
        return dx[:, : ctx.shape[1]], None, None
