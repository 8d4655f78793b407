"""Average and max pooling, one kernel each way."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asng.fused._dispatch import device_of, empty_channels_last, is_supported, to_channels_last

MAX_WINDOW = 15  # the number of a pixel in its window has 8 bits
THREADS = 128


class AvgPool2d(nn.AvgPool2d):
    """Means over windows: `torch.nn.AvgPool2d`, with its arguments.

    Square windows and the default of `ceil_mode`, `count_include_pad` and `divisor_override` run as one kernel,
    forward and backward.

    >>> pool = AvgPool2d(3, stride=2, padding=1)
    >>> pool(torch.ones(1, 4, 8, 8).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([1, 4, 4, 4])
    """

    def forward(self, x: Tensor) -> Tensor:
        window = _window(self.kernel_size, self.stride, self.padding)
        default = self.count_include_pad and not self.ceil_mode and self.divisor_override is None
        if default and _fits(x, window):
            return _AvgPool.apply(x, *window)  # type: ignore[no-any-return, no-untyped-call]
        if x.is_cuda and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            # Torch 2.11 computes a wrong gradient here (https://github.com/pytorch/pytorch/issues/188344).
            return super().forward(x.contiguous()).contiguous(memory_format=torch.channels_last)
        return super().forward(x)


class MaxPool2d(nn.MaxPool2d):
    """Maxima over windows: `torch.nn.MaxPool2d`, with its arguments.

    Square windows and the default of `dilation`, `ceil_mode` and `return_indices` run as one kernel, forward and
    backward. As in torch, the first of equal maxima has the gradient, and NaN is larger than all numbers.

    >>> pool = MaxPool2d(3, stride=1, padding=1)
    >>> pool(torch.ones(1, 4, 8, 8).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([1, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        window = _window(self.kernel_size, self.stride, self.padding)
        default = _window(self.dilation, 1, 0)[0] == 1 and not self.ceil_mode and not self.return_indices
        if default and _fits(x, window):
            save = torch.is_grad_enabled() and x.requires_grad
            return _MaxPool.apply(x, *window, save)  # type: ignore[no-any-return, no-untyped-call]
        return super().forward(x)  # type: ignore[no-any-return]


def _window(*sizes: Any) -> tuple[int, ...]:
    """Kernel size, stride and padding where they are square; zeros where they are not."""
    pairs = [size if isinstance(size, tuple) else (size, size) for size in sizes]
    square = all(len(set(pair)) == 1 for pair in pairs)
    return tuple(pair[0] if square else 0 for pair in pairs)


def _fits(x: Tensor, window: tuple[int, ...]) -> bool:
    size, stride, padding = window
    return (
        0 < size <= MAX_WINDOW
        and stride > 0
        and 0 <= 2 * padding <= size
        and is_supported(x)
        and min(x.shape[2:]) + 2 * padding >= size
    )


def _output_shape(x: Tensor, size: int, stride: int, padding: int) -> tuple[int, int, int, int]:
    height, width = ((length + 2 * padding - size) // stride + 1 for length in x.shape[2:])
    return x.shape[0], x.shape[1], height, width


def _launch(kernel: Any, tensors: tuple[Tensor, ...], output: Tensor, sizes: tuple[int, ...], **options: bool) -> None:
    """One program for each block of the output; every thread takes 16 bytes of it."""
    elements, total = 16 // output.element_size(), output.numel()
    block, align = THREADS * elements, math.gcd(sizes[0], elements)
    with device_of(output):
        kernel[(-(-total // block),)](*tensors, total, 0, *sizes, block, align, num_warps=THREADS // 32, **options)


class _AvgPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, stride: int, padding: int) -> Tensor:
        from asng.fused import _pool_kernels as kernels

        y = empty_channels_last(_output_shape(x, size, stride, padding), x)
        ctx.shape, ctx.sizes = x.shape, (*x.shape[1:], *y.shape[2:], size, stride, padding)
        _launch(kernels.avg_pool_forward, (x, y), y, ctx.sizes)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from asng.fused import _pool_kernels as kernels

        dx = empty_channels_last(ctx.shape, gradient)
        _launch(kernels.avg_pool_backward, (to_channels_last(gradient), dx), dx, ctx.sizes)
        return dx, None, None, None


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, stride: int, padding: int, save: bool) -> Tensor:
        from asng.fused import _pool_kernels as kernels

        y = empty_channels_last(_output_shape(x, size, stride, padding), x)
        taps = torch.empty_like(y, dtype=torch.uint8) if save else y
        ctx.shape, ctx.sizes = x.shape, (*x.shape[1:], *y.shape[2:], size, stride, padding)
        _launch(kernels.max_pool_forward, (x, y, taps), y, ctx.sizes, SAVE=save)
        if save:
            ctx.save_for_backward(taps)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from asng.fused import _pool_kernels as kernels

        (taps,) = ctx.saved_tensors
        dx = empty_channels_last(ctx.shape, gradient)
        _launch(kernels.max_pool_backward, (to_channels_last(gradient), taps, dx), dx, ctx.sizes)
        return dx, None, None, None, None
