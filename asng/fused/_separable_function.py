"""Separable convolutions: seven kernels forward, eight backward. Needs Triton."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asng.fused import _depthwise_kernels, _norm_kernels, _pointwise_kernels
from asng.fused._dispatch import device_of, power_of_two, to_channels_last
from asng.fused._norm import Split

MAX_MOMENTS = 2048  # channels times chunks that every program adds up; more are merged by a kernel before
MAX_MERGES = 64  # chunks that become one in it
ALIGN = 8  # elements of a channels' row in between, so that 16 bytes are loaded at once
ELEMENTS = 16  # of a thread that multiplies matrices
MAX_TILE = 16384  # bytes of a program that does
MIN_PROGRAMS = 128
WEIGHT_PROGRAMS = 132  # that sum up gradients of 1x1 convolutions: each writes a matrix
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
        row = -(-channels // ALIGN) * ALIGN
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
    def block_channels(self) -> int:
        """Of a program that has all; matrices are multiplied from 16 on."""
        return max(power_of_two(self.channels), 16)


class Moments(NamedTuple):
    """Two numbers for each channel and chunk of rows: (chunks, 2, channels)."""

    partial: Tensor
    rows: int
    chunk: int

    @property
    def arguments(self) -> tuple[int, int, int]:
        return self.rows, self.chunk, len(self.partial)

    def merge(self, *, moments: bool) -> "Moments":
        """The same in fewer chunks, where all programs of the next kernel would have much to add up."""
        chunks, _, channels = self.partial.shape
        if chunks * channels <= MAX_MOMENTS or chunks == 1:
            return self
        merges = min(power_of_two(chunks), MAX_MERGES)
        merged = self.partial.new_empty(-(-chunks // merges), 2, channels)
        grid, sizes = (-(-channels // 8), len(merged)), (channels, 8, merges)
        warps = max(4, min(merges // 64, 16))
        if moments:
            _pointwise_kernels.merge_moments[grid](self.partial, merged, *self.arguments, *sizes, num_warps=warps)
        else:
            _pointwise_kernels.merge_sums[grid](self.partial, merged, chunks, *sizes, num_warps=warps)
        return Moments(merged, self.rows, self.chunk * merges).merge(moments=moments)


def _tile(pixels: int, channels: int, elements: int, max_tile: int) -> tuple[int, int]:
    """Pixels of a program with some channels, a power of two from 16 on, and its warps."""
    block = power_of_two(max(pixels // MIN_PROGRAMS, 16) + 1) // 2
    block = max(16, min(block, max_tile // channels))
    return block, max(1, min(block * channels // (32 * elements), 8))


def _depthwise_tile(pixels: int, channels: int) -> tuple[int, int, int]:
    """Pixels and channels of a program of a depthwise convolution, and its warps."""
    channels = min(max(power_of_two(channels), ALIGN), DEPTHWISE_CHANNELS)
    block, warps = _tile(pixels, channels, DEPTHWISE_ELEMENTS, DEPTHWISE_TILE)
    return block, channels, warps


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


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
                d, z, moments = _convolve(source, taps[index], pointwise, half, size, dtype, is_rectified)
                saved = torch.empty(2, size.channels, device=x.device)
                to_save += [source, taps[index], d, z, saved, depthwise, pointwise, *norm[:2]]
                source = torch.empty_like(z) if index == 0 else y
                _normalize(z, source, norm, saved, half, size, moments, rectifies=index == 0)
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
            sums = _gradient_sums(dy, z2, saved2, size2).merge(moments=False)
            dd2, dweight2, dbias2, partial_pw2 = _backward_pointwise(
                dy, size2.channels, z2, saved2, sums, weight2, d2, pw2, size2
            )
            norm = [saved1, weight1, bias1]
            sums = _input_gradient(dd2, z1, taps2, du, size2.row, norm, half2, size2)
            partial_dw2 = _weight_gradient(dd2, u, half2, size2, is_rectified=True)
            dd1, dweight1, dbias1, partial_pw1 = _backward_pointwise(
                *(du, size1.row, z1, saved1, sums.merge(moments=False), weight1, d1, pw1, size1)
            )
            _input_gradient(dd1, x, taps1, dx, size1.channels, None, half1, size1)
            partial_dw1 = _weight_gradient(dd1, x, half1, size1, is_rectified=ctx.is_padded)
            results = [torch.empty_like(weight) for weight in (dw1, pw1, dw2, pw2)]
            _reduce([partial_dw1, partial_pw1, partial_dw2, partial_pw2], results)
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


def _convolve(
    x: Tensor,
    taps: Tensor,
    pointwise: Tensor,
    half: Half,
    size: Sizes,
    dtype: torch.dtype,
    is_rectified: bool,
) -> tuple[Tensor, Tensor, Moments]:
    """ReLU and both convolutions: the results of each, and the moments of the second's."""
    d = torch.empty(size.pixels, size.row, dtype=dtype, device=x.device)
    z = torch.empty_like(d)
    pairs = size.images * size.out_height * -(-size.out_width // 2)
    block, channels, warps = _depthwise_tile(pairs, size.channels)
    _depthwise_kernels.depthwise_forward[-(-pairs // block), -(-size.channels // channels)](
        *(x, taps, d, size.images, *size[1:], half.kernel, half.stride, block, channels),
        RELU=not is_rectified,
        num_warps=warps,
    )
    outputs = min(size.block_channels, 64)
    block, warps = _tile(size.pixels, outputs, ELEMENTS, MAX_TILE // z.element_size())
    programs = -(-size.pixels // block)
    partial = torch.empty(programs, 2, size.channels, device=x.device)
    _pointwise_kernels.pointwise_forward[programs, -(-size.channels // outputs)](
        *(d, pointwise, z, partial, size.pixels, size.channels, size.row, block, outputs, outputs),
        PRECISION=_precision(),
        num_warps=max(warps, 4),
    )
    return d, z, Moments(partial, size.pixels, block).merge(moments=True)


def _normalize(
    z: Tensor,
    y: Tensor,
    norm: Any,
    saved: Tensor,
    half: Half,
    size: Sizes,
    moments: Moments,
    rectifies: bool,
) -> None:
    weight, bias, running_mean, running_var = norm
    row = size.row if rectifies else size.channels  # of y
    split = Split.of(size.pixels, row)
    _norm_kernels.batch_norm_forward[split.chunks, split.groups](
        *(z, None, moments.partial, weight, bias, running_mean, running_var, saved, y, *moments.arguments),
        *(half.eps, half.momentum, split.chunk, size.channels, size.row, row),
        *(*split[4:7], power_of_two(len(moments.partial))),
        AFFINE=weight is not None,
        TRACK=running_mean is not None,
        ADD=False,
        RELU=rectifies,
        num_warps=split.warps,
    )


def _gradient_sums(dy: Tensor, z: Tensor, saved: Tensor, size: Sizes) -> Moments:
    split = Split.of(size.pixels, size.channels)
    partial = torch.empty(split.chunks, 2, size.channels, device=z.device)
    _norm_kernels.batch_norm_gradient_sums[split.chunks, split.groups](
        *(dy, z, None, saved, partial, split.rows, split.chunk, size.channels, size.row, *split[4:7]),
        RELU=False,
        num_warps=split.warps,
    )
    return Moments(partial, split.rows, split.chunk)


def _backward_pointwise(
    dy: Tensor,
    dy_row: int,
    z: Tensor,
    saved: Tensor,
    sums: Moments,
    weight: Tensor | None,
    d: Tensor,
    pointwise: Tensor,
    size: Sizes,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    """The gradients of the depthwise convolution's result, of the batch norm, of the weights for each program."""
    block, warps = _tile(size.pixels, size.block_channels, ELEMENTS, MAX_TILE // z.element_size())
    inputs = min(size.block_channels, 64)
    groups = -(-size.channels // inputs)
    tiles = -(-size.pixels // (block * -(-WEIGHT_PROGRAMS // groups)))
    programs = -(-size.pixels // (block * tiles))
    partial = torch.empty(programs, size.channels**2, device=z.device)
    dd = torch.empty_like(z)
    dweight, dbias = (None, None) if weight is None else (torch.empty_like(weight), torch.empty_like(weight))
    chunks = len(sums.partial)
    _pointwise_kernels.pointwise_backward[programs, groups](
        *(dy, z, saved, sums.partial, weight, d, pointwise, dd, dweight, dbias, partial, chunks, size.pixels),
        *(size.channels, size.row, dy_row, tiles, block, size.block_channels, inputs, power_of_two(chunks)),
        AFFINE=weight is not None,
        PRECISION=_precision(),
        num_warps=max(warps, 4),
    )
    return dd, dweight, dbias, partial


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


def _reduce(partials: list[Tensor], results: list[Tensor]) -> None:
    """The sums of the rows of each, in one launch."""
    rows, columns = 64, 32
    tiles = [-(-max(len(partials[i]), len(partials[i + 2])) // rows) for i in (0, 1)]
    lengths = [partial.shape[1] for partial in partials]
    triples = [item for p, r in zip(partials, results, strict=True) for item in (p, r, len(p))]
    _pointwise_kernels.reduce_rows[-(-max(lengths) // columns), 4](
        *triples, lengths[0], lengths[1], *tiles, rows, columns
    )
