"""Separable convolutions: seven kernels forward, seven or eight backward. Needs Triton."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asng.fused import _depthwise_kernels
from asng.fused import _pointwise_function as _pointwise
from asng.fused._dispatch import ALIGN, SideStream, align, device_of, power_of_two, row_of, to_rows
from asng.fused._placement import place_like, place_rows
from asng.fused._pointwise_function import Moments, Norm

DEPTHWISE_CHANNELS = 16  # of a program
ROWS, COLUMNS = 4, 2  # of a block of pixels, which a thread computes
ELEMENTS = {3: 4, 5: 2}  # channels of a thread, by the size of the kernel
WEIGHT_ELEMENTS = 2
TAP_PROGRAMS = {3: 2112, 5: 1056}  # that sum up gradients of depthwise weights, tile by tile


class HalfSettings(NamedTuple):
    """The settings of a half."""

    kernel: int
    stride: int
    momentum: float
    eps: float


class Half(NamedTuple):
    """The settings of a half, and the sizes of its input and output; `row`: the elements of a pixel in memory."""

    settings: HalfSettings
    images: int
    channels: int
    row: int
    height: int
    width: int
    out_height: int
    out_width: int

    @classmethod
    def pair_of(cls, x: Tensor, settings: list[HalfSettings]) -> list["Half"]:
        images, channels, height, width = x.shape
        row = align(channels)
        result = []
        for each in settings:
            out_height, out_width = (-(-size // each.stride) for size in (height, width))
            result.append(cls(each, images, channels, row, height, width, out_height, out_width))
            height, width = out_height, out_width
        return result

    @property
    def pixels(self) -> int:
        """Of the output."""
        return self.images * self.out_height * self.out_width

    @property
    def product(self) -> _pointwise.ConvSizes:
        """The sizes of the 1x1 convolution."""
        return _pointwise.ConvSizes.of_rows(self.pixels, self.channels, self.row)


class Saved(NamedTuple):
    """The tensors of a half that its backward pass reads."""

    x: Tensor
    taps: Tensor
    d: Tensor  # what the depthwise convolution gives
    z: Tensor  # what the 1x1 convolution gives
    moments: Tensor  # of the batch norm: means and reciprocal deviations
    depthwise: Tensor
    pointwise: Tensor
    weight: Tensor | None  # of the batch norm
    bias: Tensor | None


class Tile(NamedTuple):
    """The share of one program of a depthwise convolution: some channels of blocks of rows and columns."""

    rows: int
    columns: int
    blocks: int
    channels: int

    @classmethod
    def of(cls, channels: int, elements: int, warps: int = 1) -> "Tile":
        channels = min(max(power_of_two(channels), ALIGN), DEPTHWISE_CHANNELS)
        return cls(ROWS, COLUMNS, 32 * warps * elements // channels, channels)

    def tiles(self, images: int, height: int, width: int) -> int:
        """The number of tiles that cover maps."""
        return -(-images * -(-height // self.rows) * -(-width // self.columns) // self.blocks)


class SeparableFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        *tensors, settings, dtype, save = arguments
        halves = Half.pair_of(x, settings)
        shape = (*x.shape[:2], halves[1].out_height, halves[1].out_width)
        y, _ = place_rows(shape, x.new_empty(0, dtype=dtype))
        with device_of(x):
            source, taps = _prepare(x, tensors[0], tensors[6], halves[0], dtype)
            to_save: list[Any] = []
            for index, half in enumerate(halves):
                depthwise, pointwise, *norm = tensors[6 * index : 6 * index + 6]
                is_rectified = index == 1 or source is not x
                d = _convolve(source, taps[index], half, dtype, is_rectified)
                z, moments = _pointwise.multiply([d], pointwise, half.product, dtype)
                saved = torch.empty(2, half.channels, device=x.device)
                to_save += Saved(source, taps[index], d, z, saved, depthwise, pointwise, *norm[:2])
                source = torch.empty_like(z) if index == 0 else y
                after = Norm(norm[0], norm[1], norm[2], norm[3], *half.settings[2:])
                _pointwise.apply_norm(z, source, after, saved, half.product, moments, rectifies=index == 0)
        running = [tensor for tensor in (*tensors[4:6], *tensors[10:12]) if tensor is not None]
        if running:
            torch.autograd.graph.increment_version(running)
        if save:
            ctx.save_for_backward(*to_save)
        ctx.halves, ctx.shape, ctx.dtype, ctx.row = halves, x.shape, x.dtype, row_of(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, n = ctx.saved_tensors, len(Saved._fields)
        (half1, half2), first, second = ctx.halves, Saved(*tensors[:n]), Saved(*tensors[n:])
        dy = to_rows(gradient)
        dx, adds_dx = place_rows(ctx.shape, dy.new_empty(0, dtype=ctx.dtype), ctx.row)
        du = torch.empty_like(first.z)
        is_padded = half1.row != ctx.row
        weights = (first.depthwise, first.pointwise, second.depthwise, second.pointwise)
        results, adds = map(list, zip(*map(place_like, weights), strict=True))
        side = SideStream(dy)  # of what only the gradients of weights wait for
        with device_of(dy):
            sums = _pointwise.sum_gradients(dy, row_of(dy), second.z, second.moments, half2.product)
            through2 = _pointwise_backward(dy, row_of(dy), second, sums, half2)
            dd2 = torch.empty_like(second.d)
            partial_pw2, *norm2 = through2.run([dd2], side)
            with side.fork():
                partial_dw2 = _weight_gradient(dd2, second.x, half2, is_rectified=True)
            sums = _input_gradient(dd2, first.z, second.taps, du, half2.row, first, half2)
            through1 = _pointwise_backward(du, half1.row, first, sums, half1)
            dd1 = torch.empty_like(first.d)
            partial_pw1, *norm1 = through1.run([dd1], side)
            with side.fork():
                partial_dw1 = _weight_gradient(dd1, first.x, half1, is_rectified=is_padded)
                _pointwise.reduce([partial_dw1, partial_pw1, partial_dw2, partial_pw2], results, adds)
            _input_gradient(dd1, first.x, first.taps, dx, ctx.row, None, half1, adds=adds_dx)
        side.leave(results, through1, through2, dd1, dd2, first, second)
        return dx, *results[:2], *norm1, None, None, *results[2:], *norm2, None, None, None, None, None


def _prepare(
    x: Tensor, depthwise1: Tensor, depthwise2: Tensor, half: Half, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """The input, rectified and with aligned rows of channels if they were not, and the weights of each tap in a row."""
    taps = [torch.empty(weight[0].numel(), half.row, device=x.device) for weight in (depthwise1, depthwise2)]
    source, total, channels, block = x, 0, 16, 1024
    if half.row != row_of(x):
        source = torch.empty(half.images, half.height, half.width, half.row, dtype=dtype, device=x.device)
        total = source.numel()
    _depthwise_kernels.prepare[(2 * -(-half.row // channels) + -(-total // block),)](
        *(x, source, total, depthwise1, depthwise2, *taps, half.channels, half.row),
        *(depthwise1.shape[-1], depthwise2.shape[-1], channels, block),
        PAD=total > 0,
    )
    return source, taps


def _convolve(x: Tensor, taps: Tensor, half: Half, dtype: torch.dtype, is_rectified: bool) -> Tensor:
    """ReLU and the depthwise convolution."""
    d = torch.empty(half.pixels, half.row, dtype=dtype, device=x.device)
    tile = Tile.of(half.channels, ELEMENTS[half.settings.kernel], warps=4)
    programs = tile.tiles(half.images, half.out_height, half.out_width)
    _depthwise_kernels.depthwise_forward[programs, -(-half.channels // tile.channels)](
        *(x, taps, d, *half[1:], *half.settings[:2], *tile), RELU=not is_rectified, num_warps=4
    )
    return d


def _pointwise_backward(dy: Tensor, dy_row: int, saved: Saved, sums: Moments, half: Half) -> _pointwise.Backward:
    norm = (saved.z, saved.moments, sums.merge(moments=False), saved.weight)
    return _pointwise.Backward(dy, dy_row, *norm, saved.pointwise, [saved.d], half.product)


def _input_gradient(
    dd: Tensor,
    x: Tensor,
    taps: Tensor,
    dx: Tensor,
    dx_row: int,
    before: Saved | None,
    half: Half,
    *,
    adds: bool = False,
) -> Moments:
    """Writes the gradient of a depthwise convolution's input, or adds it; returns sums for the batch norm before."""
    norm = (None, None, None) if before is None else (before.moments, before.weight, before.bias)
    tile = Tile.of(half.channels, ELEMENTS[half.settings.kernel])
    programs = tile.tiles(half.images, half.height, half.width)
    sums = torch.empty(programs, 2, half.channels, device=x.device)
    _depthwise_kernels.depthwise_input_gradient[programs, -(-half.channels // tile.channels)](
        *(dd, x, *norm, taps, dx, sums, half.images, half.channels, half.row, dx_row),
        *(*half[4:], *half.settings[:2], *tile),
        NORM=before is not None,
        AFFINE=norm[1] is not None,
        ADD=adds,
        num_warps=1,
    )
    return Moments(sums, half.images * half.height * half.width, 0)


def _weight_gradient(dd: Tensor, x: Tensor, half: Half, *, is_rectified: bool) -> Tensor:
    """The gradients of a depthwise convolution's weights for each program."""
    tile, kernel = Tile.of(half.channels, WEIGHT_ELEMENTS), half.settings.kernel
    groups, number = -(-half.channels // tile.channels), tile.tiles(half.images, half.out_height, half.out_width)
    tiles = -(-number * groups // TAP_PROGRAMS[kernel])
    programs = -(-number // tiles)
    partial = torch.empty(programs, half.channels * kernel**2, device=x.device)
    _depthwise_kernels.depthwise_weight_gradient[programs, groups](
        *(dd, x, partial, half.images, tiles, *half[2:], *half.settings[:2], *tile),
        RELU=not is_rectified,
        num_warps=1,
    )
    return partial
