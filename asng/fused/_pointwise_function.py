"""1x1 convolutions with the batch norm after them: three kernels forward, three backward. Needs Triton."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asng.fused import _norm_kernels, _pointwise_kernels
from asng.fused._dispatch import device_of, power_of_two, to_channels_last
from asng.fused._norm import MAX_CHANNELS, Split

MAX_MOMENTS = 4096  # channels times chunks that every program adds up; more are merged by a kernel before
MAX_SUMS = 2048  # likewise, of gradients, of which every program adds up all channels
MAX_MERGES = 64  # chunks that become one in it
ALIGN = 8  # elements of a channels' row in between, so that 16 bytes are loaded at once
MAX_BLOCK = 64  # channels that are multiplied at once
MAX_PIXELS = 128  # of a tile
MIN_PROGRAMS = 120
GRADIENT_PIXELS = 64
WEIGHT_PROGRAMS = 264  # that sum up gradients of weights: each writes a matrix
WARPS = 4


class Sizes(NamedTuple):
    """The sizes of a 1x1 convolution; rows are the numbers of elements of a pixel in memory."""

    pixels: int
    inputs: int
    input_row: int
    channels: int
    row: int

    @property
    def blocks(self) -> tuple[int, int]:
        """Channels and inputs that are multiplied at once; matrices from 16 on."""
        channels, inputs = (min(max(power_of_two(number), 16), MAX_BLOCK) for number in (self.channels, self.inputs))
        return channels, inputs


class Norm(NamedTuple):
    """A batch norm in training mode: its tensors and settings."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    momentum: float
    eps: float


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
        is_few = chunks * min(channels, MAX_CHANNELS) <= MAX_MOMENTS if moments else chunks * channels <= MAX_SUMS
        if is_few or chunks == 1:
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


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def align(channels: int) -> int:
    """The elements of a pixel in memory."""
    return -(-channels // ALIGN) * ALIGN


class PointwiseFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pointwise: Tensor, *arguments: Any) -> Tensor:
        *values, dtype, save = arguments
        norm, channels, inputs = Norm(*values), len(pointwise), x.shape[1]
        size = Sizes(x.numel() // inputs, inputs, inputs, channels, align(channels))
        like: Any = {"dtype": dtype, "device": x.device}
        y = torch.empty((len(x), channels, *x.shape[2:]), memory_format=torch.channels_last, **like)
        with device_of(x):
            z, moments = multiply(x, pointwise, size, dtype)
            saved = torch.empty(2, channels, device=x.device)
            normalize(z, y, norm, saved, size, moments, rectifies=False)
        if norm.running_mean is not None and norm.running_var is not None:
            torch.autograd.graph.increment_version([norm.running_mean, norm.running_var])
        if save:
            ctx.save_for_backward(x, z, saved, pointwise, norm.weight)
        ctx.size = size
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, z, saved, pointwise, weight = ctx.saved_tensors
        size, dy = ctx.size, to_channels_last(gradient)
        dx = torch.empty_like(x)
        with device_of(x):
            sums = sum_gradients(dy, z, saved, size).merge(moments=False)
            dweight, dbias, partial = multiply_backward(
                dy, size.channels, z, saved, sums, weight, x, pointwise, dx, size
            )
            dpointwise = torch.empty_like(pointwise)
            reduce([partial], [dpointwise])
        return dx, dpointwise, dweight, dbias, *[None] * 6


def multiply(d: Tensor, pointwise: Tensor, size: Sizes, dtype: torch.dtype) -> tuple[Tensor, Moments]:
    """A 1x1 convolution: its results, one pixel a row, and their moments."""
    z = torch.empty(size.pixels, size.row, dtype=dtype, device=d.device)
    outputs, inputs = size.blocks
    groups = -(-size.channels // outputs)
    block = min(max(power_of_two(size.pixels * groups // MIN_PROGRAMS + 1) // 2, 16), MAX_PIXELS)
    programs = -(-size.pixels // block)
    partial = torch.empty(programs, 2, size.channels, device=d.device)
    _pointwise_kernels.pointwise_forward[programs, groups](
        *(d, pointwise, z, partial, *size, block, inputs, outputs), PRECISION=_precision(), num_warps=WARPS
    )
    return z, Moments(partial, size.pixels, block).merge(moments=True)


def normalize(
    z: Tensor, y: Tensor, norm: Norm, saved: Tensor, size: Sizes, moments: Moments, *, rectifies: bool
) -> None:
    """Write the normalized results, and the moments that the backward pass needs."""
    row = size.row if rectifies else size.channels  # of y
    split = Split.of(size.pixels, row)
    _norm_kernels.batch_norm_forward[split.chunks, split.groups](
        *(z, None, moments.partial, *norm[:4], saved, y, *moments.arguments),
        *(norm.eps, norm.momentum, split.chunk, size.channels, size.row, row),
        *(*split[4:7], power_of_two(len(moments.partial))),
        AFFINE=norm.weight is not None,
        TRACK=norm.running_mean is not None,
        ADD=False,
        RELU=rectifies,
        num_warps=split.warps,
    )


def sum_gradients(dy: Tensor, z: Tensor, saved: Tensor, size: Sizes) -> Moments:
    """The sums that the gradient of a batch norm needs."""
    split = Split.of(size.pixels, size.channels)
    partial = torch.empty(split.chunks, 2, size.channels, device=z.device)
    _norm_kernels.batch_norm_gradient_sums[split.chunks, split.groups](
        *(dy, z, None, saved, partial, split.rows, split.chunk, size.channels, size.row, *split[4:7]),
        RELU=False,
        num_warps=split.warps,
    )
    return Moments(partial, split.rows, split.chunk)


def multiply_backward(
    dy: Tensor,
    dy_row: int,
    z: Tensor,
    saved: Tensor,
    sums: Moments,
    weight: Tensor | None,
    d: Tensor,
    pointwise: Tensor,
    dd: Tensor,
    size: Sizes,
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Write the gradient of the input; those of the batch norm, and of the weights for each program."""
    channels, inputs = size.blocks
    groups = -(-size.inputs // inputs)
    tiles = -(-size.pixels // (GRADIENT_PIXELS * -(-WEIGHT_PROGRAMS // groups)))
    programs = -(-size.pixels // (GRADIENT_PIXELS * tiles))
    partial = torch.empty(programs, size.channels * size.inputs, device=z.device)
    dweight, dbias = (None, None) if weight is None else (torch.empty_like(weight), torch.empty_like(weight))
    chunks = len(sums.partial)
    _pointwise_kernels.pointwise_backward[programs, groups](
        *(dy, z, saved, sums.partial, weight, d, pointwise, dd, dweight, dbias, partial, chunks, size.pixels, tiles),
        *(*size[1:], dy_row, GRADIENT_PIXELS, channels, inputs, power_of_two(chunks)),
        AFFINE=weight is not None,
        PRECISION=_precision(),
        num_warps=WARPS,
    )
    return dweight, dbias, partial


def reduce(partials: list[Tensor], results: list[Tensor]) -> None:
    """The sums of the rows of one matrix or of four, in one launch."""
    rows, columns, number = 64, 32, len(partials)
    partials, results = (4 // number) * partials, (4 // number) * results
    tiles = [-(-max(len(partials[i]), len(partials[i + 2])) // rows) for i in (0, 1)]
    lengths = [partial.shape[1] for partial in partials]
    triples = [item for p, r in zip(partials, results, strict=True) for item in (p, r, len(p))]
    _pointwise_kernels.reduce_rows[-(-max(lengths) // columns), number](
        *triples, lengths[0], lengths[1], *tiles, rows, columns
    )
