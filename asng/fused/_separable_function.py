"""Separable convolutions: seven kernels forward, eight backward. Needs Triton."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asng.fused import _depthwise_kernels
from asng.fused import _pointwise_function as _pointwise
from asng.fused._dispatch import device_of, power_of_two, to_channels_last
from asng.fused._pointwise_function import ALIGN, Moments, Norm, align, choose_tile

DEPTHWISE_CHANNELS = 16  # of a program
DEPTHWISE_ELEMENTS = 8  # of a thread
DEPTHWISE_TILE = 1024
TAP_TILE = 512  # elements of a program that sums up gradients of depthwise weights, tile by tile
TAP_PROGRAMS = 528


class Half(NamedTuple):
    """The settings of a half."""

    kernel: int
    stride: int
    momentum: float
    eps: float


class Sizes(NamedTuple):
    """The sizes of a half's input and output; `row` is the number of elements of a pixel in memory."""

    images: int
    channels: int
    row: int
    height: int
    width: int
    out_height: int
    out_width: int

    @classmethod
    def of(cls, x: Tensor, halves: list[Half]) -> list["Sizes"]:
        """Those of each half."""
        images, channels, height, width = x.shape
        row = align(channels)
        result = []
        for half in halves:
            out_height, out_width = (-(-size // half.stride) for size in (height, width))
            result.append(cls(images, channels, row, height, width, out_height, out_width))
            height, width = out_height, out_width
        return result

    @property
    def pixels(self) -> int:
        """Of the output."""
        return self.images * self.out_height * self.out_width

    @property
    def pointwise(self) -> _pointwise.Sizes:
        """Those of the 1x1 convolution."""
        return _pointwise.Sizes(self.pixels, self.channels, self.row, self.channels, self.row)


def _depthwise_tile(pixels: int, channels: int) -> tuple[int, int, int]:
    """Pixels and channels of a program of a depthwise convolution, and its warps."""
    channels = min(max(power_of_two(channels), ALIGN), DEPTHWISE_CHANNELS)
    block, warps = choose_tile(pixels, channels, DEPTHWISE_ELEMENTS, DEPTHWISE_TILE)
    return block, channels, warps


class SeparableFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        *tensors, halves, dtype, save = arguments
        sizes = Sizes.of(x, halves)
        y = torch.empty((*x.shape[:2], *sizes[1][5:]), dtype=dtype, device=x.device, memory_format=torch.channels_last)
        with device_of(x):
            source, taps = _prepare(x, tensors[0], tensors[6], sizes[0], dtype)
            to_save: list[Any] = []
            for index, (half, size) in enumerate(zip(halves, sizes, strict=True)):
                depthwise, pointwise, *norm = tensors[6 * index : 6 * index + 6]
                is_rectified = index == 1 or source is not x
                d = _convolve(source, taps[index], half, size, dtype, is_rectified)
                z, moments = _pointwise.multiply(d, pointwise, size.pointwise, dtype)
                saved = torch.empty(2, size.channels, device=x.device)
                to_save += [source, taps[index], d, z, saved, depthwise, pointwise, *norm[:2]]
                source = torch.empty_like(z) if index == 0 else y
                after = Norm(norm[0], norm[1], norm[2], norm[3], half.momentum, half.eps)
                _pointwise.normalize(z, source, after, saved, size.pointwise, moments, rectifies=index == 0)
        running = [tensor for tensor in (*tensors[4:6], *tensors[10:12]) if tensor is not None]
        if running:
            torch.autograd.graph.increment_version(running)
        if save:
            ctx.save_for_backward(*to_save)
        ctx.halves, ctx.sizes, ctx.shape, ctx.dtype = halves, sizes, x.shape, x.dtype
        ctx.is_padded = sizes[0].row != sizes[0].channels
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, taps1, d1, z1, saved1, dw1, pw1, weight1, bias1, *second = ctx.saved_tensors
        u, taps2, d2, z2, saved2, dw2, pw2, weight2, _ = second
        half1, half2 = ctx.halves
        size1, size2 = ctx.sizes
        dy = to_channels_last(gradient)
        dx = torch.empty(ctx.shape, dtype=ctx.dtype, device=x.device, memory_format=torch.channels_last)
        du = torch.empty_like(z1)
        with device_of(x):
            dd1, dd2 = torch.empty_like(d1), torch.empty_like(d2)
            sums = _pointwise.sum_gradients(dy, z2, saved2, size2.pointwise).merge(moments=False)
            dweight2, dbias2, partial_pw2 = _pointwise.multiply_backward(
                dy, size2.channels, z2, saved2, sums, weight2, d2, pw2, dd2, size2.pointwise
            )
            norm = [saved1, weight1, bias1]
            sums = _input_gradient(dd2, z1, taps2, du, size2.row, norm, half2, size2).merge(moments=False)
            partial_dw2 = _weight_gradient(dd2, u, half2, size2, is_rectified=True)
            dweight1, dbias1, partial_pw1 = _pointwise.multiply_backward(
                du, size1.row, z1, saved1, sums, weight1, d1, pw1, dd1, size1.pointwise
            )
            _input_gradient(dd1, x, taps1, dx, size1.channels, None, half1, size1)
            partial_dw1 = _weight_gradient(dd1, x, half1, size1, is_rectified=ctx.is_padded)
            results = [torch.empty_like(weight) for weight in (dw1, pw1, dw2, pw2)]
            _pointwise.reduce([partial_dw1, partial_pw1, partial_dw2, partial_pw2], results)
        first = (results[0], results[1], dweight1, dbias1, None, None)
        return dx, *first, results[2], results[3], dweight2, dbias2, None, None, None, None, None


def _prepare(
    x: Tensor, depthwise1: Tensor, depthwise2: Tensor, size: Sizes, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """The input, rectified and with aligned rows of channels if they were not, and the weights of each tap in a row."""
    taps = [torch.empty(weight[0].numel(), size.row, device=x.device) for weight in (depthwise1, depthwise2)]
    source, total, channels, block = x, 0, 16, 1024
    if size.row != size.channels:
        source = torch.empty(size.images, size.height, size.width, size.row, dtype=dtype, device=x.device)
        total = source.numel()
    _depthwise_kernels.prepare[(2 * -(-size.row // channels) + -(-total // block),)](
        *(x, source, total, depthwise1, depthwise2, *taps, size.channels, size.row),
        *(depthwise1.shape[-1], depthwise2.shape[-1], channels, block),
        PAD=total > 0,
    )
    return source, taps


def _convolve(x: Tensor, taps: Tensor, half: Half, size: Sizes, dtype: torch.dtype, is_rectified: bool) -> Tensor:
    """ReLU and the depthwise convolution."""
    d = torch.empty(size.pixels, size.row, dtype=dtype, device=x.device)
    pairs = size.images * size.out_height * -(-size.out_width // 2)
    block, channels, warps = _depthwise_tile(pairs, size.channels)
    _depthwise_kernels.depthwise_forward[-(-pairs // block), -(-size.channels // channels)](
        *(x, taps, d, size.images, *size[1:], half.kernel, half.stride, block, channels),
        RELU=not is_rectified,
        num_warps=warps,
    )
    return d


def _input_gradient(
    dd: Tensor,
    x: Tensor,
    taps: Tensor,
    dx: Tensor,
    dx_row: int,
    norm: list[Any] | None,
    half: Half,
    size: Sizes,
) -> Moments:
    """Writes the gradient of a depthwise convolution's input; returns sums for the batch norm before."""
    saved, weight, bias = norm or (None, None, None)
    blocks = size.images * -(-size.height // half.stride) * -(-size.width // 2)  # of pixels
    block, channels, warps = _depthwise_tile(blocks, size.channels)
    programs = -(-blocks // block)
    sums = torch.empty(programs, 2, size.channels, device=x.device)
    _depthwise_kernels.depthwise_input_gradient[programs, -(-size.channels // channels)](
        *(dd, x, saved, weight, bias, taps, dx, sums, size.images, size.channels, size.row, dx_row),
        *(*size[3:], half.kernel, half.stride, block, channels),
        NORM=norm is not None,
        AFFINE=weight is not None,
        num_warps=warps,
    )
    return Moments(sums, size.images * size.height * size.width, 0)


def _weight_gradient(dd: Tensor, x: Tensor, half: Half, size: Sizes, *, is_rectified: bool) -> Tensor:
    """The gradients of a depthwise convolution's weights for each program."""
    pairs = size.images * size.out_height * -(-size.out_width // 2)
    channels = min(max(power_of_two(size.channels), ALIGN), DEPTHWISE_CHANNELS)
    groups, block = -(-size.channels // channels), TAP_TILE // channels
    tiles = -(-pairs // (block * -(-TAP_PROGRAMS // (groups * half.kernel))))
    programs = -(-pairs // (block * tiles))
    partial = torch.empty(programs, size.channels * half.kernel**2, device=x.device)
    _depthwise_kernels.depthwise_weight_gradient[programs, groups, half.kernel](
        *(dd, x, partial, size.images, size.channels, size.row, *size[3:], half.kernel, half.stride),
        *(tiles, block, channels),
        RELU=not is_rectified,
        num_warps=max(1, TAP_TILE // (32 * DEPTHWISE_ELEMENTS)),
    )
    return partial
