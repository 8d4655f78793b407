"""Separable convolutions: six kernels forward, six to ten backward. Needs Triton."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asng.fused import _depthwise_kernels
from asng.fused import _pointwise_function as _pointwise
from asng.fused._dispatch import ALIGN, SideStream, align, device_of, power_of_two, row_of, to_rows
from asng.fused._placement import PlacingFunction, place_like, place_rows
from asng.fused._pointwise_function import Moments, Norm, Partials

DEPTHWISE_CHANNELS = 16  # of a program


class Tiling(NamedTuple):
    """How a depthwise convolution is split: blocks of pixels and channels of a thread, warps, and programs at most."""

    rows: int
    columns: int
    elements: int
    warps: int
    programs: int = 0  # more tiles are taken in turn; 0: no limit


# By the size of the kernel.
FORWARD = {3: Tiling(4, 2, 4, 4), 5: Tiling(4, 2, 2, 4)}
BACKWARD = {3: Tiling(4, 2, 2, 1, 2112), 5: Tiling(4, 2, 2, 1, 1056)}


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


class Before(NamedTuple):
    """The batch norm between both halves: where its moments come from, and where they are kept."""

    norm: Norm
    moments: Moments
    saved: Tensor


class Saved(NamedTuple):
    """The tensors of a half that its backward pass reads."""

    x: Tensor  # its input; of the second half before the batch norm and the ReLU
    taps: Tensor
    d: Tensor  # what the depthwise convolution gives
    z: Tensor  # what the 1x1 convolution gives
    moments: Tensor  # of the batch norm: means and reciprocal deviations
    depthwise: Tensor
    pointwise: Tensor
    weight: Tensor | None  # of the batch norm
    bias: Tensor | None


class Split(NamedTuple):
    """Programs of a depthwise convolution: each takes `tiles` tiles of blocks of pixels, of one group of channels."""

    programs: int
    groups: int
    tiles: int
    blocks: int
    channels: int

    @classmethod
    def of(cls, tiling: Tiling, half: Half, height: int, width: int) -> "Split":
        channels = min(max(power_of_two(half.channels), ALIGN), DEPTHWISE_CHANNELS)
        blocks, groups = 32 * tiling.warps * tiling.elements // channels, -(-half.channels // channels)
        number = -(-half.images * -(-height // tiling.rows) * -(-width // tiling.columns) // blocks)
        tiles = -(-number * groups // tiling.programs) if tiling.programs else 1
        return cls(-(-number // tiles), groups, tiles, blocks, channels)


class SeparableFunction(PlacingFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        *tensors, settings, dtype, save = arguments
        halves = Half.pair_of(x, settings)
        shape = (*x.shape[:2], halves[1].out_height, halves[1].out_width)
        y, adds = place_rows(shape, x.new_empty(0, dtype=dtype))
        with device_of(x):
            counters = torch.empty(4, _pointwise.COUNTERS, dtype=torch.int32, device=x.device)
            source, taps = _prepare(x, tensors[0], tensors[6], counters, halves[0], dtype)
            to_save: list[Any] = []
            before: Before | None = None
            for index, half in enumerate(halves):
                depthwise, pointwise, *affine_and_running = tensors[6 * index : 6 * index + 6]
                norm = Norm._make([*affine_and_running, *half.settings[2:]])
                d = _convolve(source, taps[index], before, half, dtype)
                z, moments = _pointwise.multiply([d], pointwise, half.product, dtype, counters=counters[index])
                saved = torch.empty(2, half.channels, device=x.device)
                to_save += Saved(source, taps[index], d, z, saved, depthwise, pointwise, *norm[:2])
                source, before = z, Before(norm, moments, saved)
            _pointwise.apply_norm(z, y, norm, saved, half.product, moments, adds=adds)
        if save:
            ctx.save_for_backward(*to_save)
        ctx.halves, ctx.shape, ctx.dtype, ctx.row, ctx.counters = halves, x.shape, x.dtype, row_of(x), counters[2:]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, n = ctx.saved_tensors, len(Saved._fields)
        (half1, half2), first, second = ctx.halves, Saved(*tensors[:n]), Saved(*tensors[n:])
        dy = to_rows(gradient)
        dx, adds_dx = place_rows(ctx.shape, dy.new_empty(0, dtype=ctx.dtype), ctx.row)
        du = torch.empty_like(first.z)
        weights = (first.depthwise, first.pointwise, second.depthwise, second.pointwise)
        results, adds = map(list, zip(*map(place_like, weights), strict=True))
        # Of what only the gradients of weights wait for, which are arguments 1 and 2, 7 and 8.
        side = SideStream(dy, are_kept=all(ctx.needs_input_grad[index] for index in (1, 2, 7, 8)))
        with device_of(dy):
            sums = _pointwise.sum_gradients(dy, row_of(dy), second.z, second.moments, half2.product, ctx.counters[0])
            through2 = _pointwise_backward(dy, row_of(dy), second, sums, half2)
            dd2 = torch.empty_like(second.d)
            partial_pw2, *norm2 = through2.run([dd2], side)
            partial_dw2, sums = _depthwise_backward(dd2, second, first, half2, du, half2.row, ctx.counters[1])
            through1 = _pointwise_backward(du, half1.row, first, sums, half1)
            dd1 = torch.empty_like(first.d)
            partial_pw1, *norm1 = through1.run([dd1], side)
            partial_dw1, _ = _depthwise_backward(dd1, first, None, half1, dx, ctx.row, None, adds=adds_dx)
            with side.fork():
                _pointwise.reduce([partial_dw1, partial_pw1, partial_dw2, partial_pw2], results, adds)
        side.leave(results, through1, through2, partial_dw1, partial_dw2)
        return dx, *results[:2], *norm1, None, None, *results[2:], *norm2, None, None, None, None, None


def _prepare(
    x: Tensor, depthwise1: Tensor, depthwise2: Tensor, counters: Tensor, half: Half, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """The input, rectified and with aligned rows of channels if they were not, and the weights of each tap in a row.

    Counters become zero.
    """
    taps = [torch.empty(weight[0].numel(), half.row, device=x.device) for weight in (depthwise1, depthwise2)]
    source, total, channels, block = x, 0, 16, 1024
    if half.row != row_of(x):
        source = torch.empty(half.images, half.height, half.width, half.row, dtype=dtype, device=x.device)
        total = source.numel()
    _depthwise_kernels.prepare[(2 * -(-half.row // channels) + 1 + -(-total // block),)](
        *(x, source, total, depthwise1, depthwise2, *taps, counters, half.channels, half.row),
        *(depthwise1.shape[-1], depthwise2.shape[-1], channels, block, counters.numel()),
        PAD=total > 0,
    )
    return source, taps


def _convolve(x: Tensor, taps: Tensor, before: Before | None, half: Half, dtype: torch.dtype) -> Tensor:
    """ReLU and the depthwise convolution; the kernel also applies the batch norm before them."""
    d = torch.empty(half.pixels, half.row, dtype=dtype, device=x.device)
    tiling = FORWARD[half.settings.kernel]
    split = Split.of(tiling, half, half.out_height, half.out_width)
    norm: tuple[Any, ...] = (*[None] * 6, *[0] * 5)
    if before is not None:
        (*tensors, momentum, eps), moments, saved = before
        norm = (moments.partial, *tensors, saved, *moments.arguments, eps, momentum)
    _depthwise_kernels.depthwise_forward[split.programs, split.groups](
        *(x, taps, d, *norm, *half[1:], *half.settings[:2], *tiling[:2], split.blocks, split.channels),
        CHUNKS=1 if before is None else power_of_two(len(before.moments.partial)),
        NORM=before is not None,
        AFFINE=norm[1] is not None,
        TRACK=norm[3] is not None,
        num_warps=tiling.warps,
    )
    return d


def _pointwise_backward(dy: Tensor, dy_row: int, saved: Saved, sums: Moments, half: Half) -> _pointwise.Backward:
    norm = (saved.z, saved.moments, sums.merge(moments=False), saved.weight)
    return _pointwise.Backward(dy, dy_row, *norm, saved.pointwise, [saved.d], half.product)


def _depthwise_backward(
    dd: Tensor,
    saved: Saved,
    before: Saved | None,
    half: Half,
    dx: Tensor,
    dx_row: int,
    counters: Tensor | None,
    *,
    adds: bool = False,
) -> tuple[Tensor, Moments]:
    """Write the gradient of the input, or add it; return that of the weights for each program, and sums for a norm.

    The norm is that of the half `before`.
    """
    norm = (None, None, None) if before is None else (before.moments, before.weight, before.bias)
    tiling = BACKWARD[half.settings.kernel]
    split = Split.of(tiling, half, half.height, half.width)
    grid = split.programs, split.groups
    sums = Partials.allocate(grid, half.channels, counters, dd.device, moments=False)
    partial = torch.empty(split.programs, saved.depthwise.numel(), device=dd.device)
    _depthwise_kernels.depthwise_backward[grid](
        *(dd, saved.x, *norm, saved.taps, dx, *sums[:2], partial, half.images, split.tiles, half.channels, half.row),
        *(dx_row, *half[4:], *half.settings[:2], *tiling[:2], split.blocks, split.channels),
        NORM=before is not None,
        AFFINE=norm[1] is not None,
        ADD=adds,
        GROUP=sums.group,
        num_warps=tiling.warps,
    )
    return partial, sums.read(half.images * half.height * half.width, 0)
