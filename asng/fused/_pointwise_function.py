"""1x1 convolutions of one or more maps, with the batch norm after them. Needs Triton.

Two kernels forward, and where sums are merged by a kernel one more; three or four backward.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asng.fused import _norm_kernels, _pointwise_kernels, _sum_kernels
from asng.fused._dispatch import (
    SideStream,
    align,
    device_of,
    empty_rows,
    pipeline_stages,
    power_of_two,
    row_of,
    to_rows,
    widen,
)
from asng.fused._norm import PROGRAM_CHANNELS, Split
from asng.fused._placement import PlacingFunction, find_added_gradients, place_like, place_rows
from asng.fused._pointwise import MAX_MAPS

MAX_MOMENTS = 4096  # channels times chunks that every program adds up; more are merged by a kernel before
MAX_SUMS = 2048  # likewise, of gradients, of which every program adds up all channels
MAX_MERGES = 256  # chunks that become one in it
GROUP = 32  # neighboring programs whose sums become one at the end of the kernel that sums up
COUNTERS = 1024  # of such groups in a kernel
MAX_BLOCK = 64  # channels that are multiplied at once
MAX_PIXELS = 128  # of a tile
MIN_PROGRAMS = 120
WEIGHT_PROGRAMS = 264  # that sum up gradients of weights: each writes a matrix
ONE_PASS_CHANNELS = 64  # up to which the same programs compute those of inputs
# Of gradients of inputs: pixels of a tile, warps, stages, by the channels that a program computes once for all inputs.
INPUT_TILES = {64: (128, 8, 2), 128: (64, 4, 1)}
BLOCK_TILE = (64, 4, 3)  # likewise, where there are more channels: block by block, for each block of inputs
REDUCE_ROWS, REDUCE_TILE = 256, 2048  # rows at most, and elements, of what a program adds up at once
WARPS = 4


class ConvSizes(NamedTuple):
    """The sizes of a 1x1 convolution; rows are the numbers of elements of a pixel in memory."""

    pixels: int  # of the result
    maps: int
    inputs: int  # channels of each map
    input_row: int
    channels: int
    row: int
    width: int  # of the result, where pixels are taken diagonally

    @property
    def block_channels(self) -> int:
        """Of a program that has all; matrices are multiplied from 16 on."""
        return max(power_of_two(self.channels), 16)

    @property
    def block_inputs(self) -> int:
        return min(max(power_of_two(self.inputs), 16), MAX_BLOCK)

    @classmethod
    def of_rows(cls, pixels: int, channels: int, row: int) -> "ConvSizes":
        """Of a convolution that keeps the number of channels, of one map."""
        return cls(pixels, 1, channels, row, channels, row, 1)


class Reading(NamedTuple):
    """How the maps are read."""

    relu: bool = False  # rectified
    diagonal: bool = False  # of 2x2 pixels the first and the last one, each by its group of the convolution


READ = Reading()


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
        if _are_few(chunks, channels, moments=moments) or chunks == 1:
            return self
        merges = min(power_of_two(chunks), MAX_MERGES)
        merged = self.partial.new_empty(-(-chunks // merges), 2, channels)
        grid, sizes = (-(-channels // 8), len(merged)), (channels, 8, merges)
        warps = max(4, min(merges // 64, 16))
        if moments:
            _sum_kernels.merge_moments[grid](self.partial, merged, *self.arguments, *sizes, num_warps=warps)
        else:
            _sum_kernels.merge_sums[grid](self.partial, merged, chunks, *sizes, num_warps=warps)
        return Moments(merged, self.rows, self.chunk * merges).merge(moments=moments)


def _are_few(chunks: int, channels: int, *, moments: bool) -> bool:
    return chunks * min(channels, PROGRAM_CHANNELS) <= MAX_MOMENTS if moments else chunks * channels <= MAX_SUMS


class Partials(NamedTuple):
    """Memory for two numbers of each channel and program of a kernel, which merges those of `group` neighbors."""

    memory: Tensor
    counters: Tensor | None
    programs: int
    group: int

    @classmethod
    def allocate(
        cls, grid: tuple[int, int], channels: int, counters: Tensor | None, device: torch.device, *, moments: bool
    ) -> "Partials":
        """For a grid of chunks of rows and groups of channels; without counters nothing is merged.

        Nor is it where other kernels run beside: programs that wait for what they have written keep these waiting, too.
        """
        programs, groups, group = *grid, 1
        if counters is not None and not SideStream.is_allowed and not _are_few(programs, channels, moments=moments):
            group = GROUP if -(-programs // GROUP) * groups <= COUNTERS else 1
        merged = -(-programs // group) if group > 1 else 0
        return cls(torch.empty(programs + merged, 2, channels, device=device), counters, programs, group)

    def read(self, rows: int, chunk: int) -> Moments:
        """What the kernel wrote, of all rows in chunks."""
        return Moments(self.memory[self.programs if self.group > 1 else 0 :], rows, chunk * self.group)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


class PointwiseFunction(PlacingFunction):
    @staticmethod
    def forward(ctx: Any, pointwise: Tensor, *arguments: Any) -> Tensor:
        *values, dtype, save, reading, first = arguments[: len(Norm._fields) + 4]
        maps, norm = (first, *arguments[len(Norm._fields) + 4 :]), Norm(*values)
        channels, (images, inputs, height, width) = len(pointwise), first.shape
        number = len(maps)
        if reading.diagonal:
            number, height, width = 2, height // 2, width // 2
        row = row_of(first)
        maps = tuple(to_rows(x, row) for x in maps)
        size = ConvSizes(images * height * width, number, inputs, row, channels, align(channels), width)
        y, adds = place_rows((images, channels, height, width), first.new_empty(0, dtype=dtype))
        counters = torch.empty(COUNTERS, dtype=torch.int32, device=first.device) if save else None
        with device_of(first):
            z, moments = multiply(maps, pointwise, size, dtype, reading, cleared=counters)
            saved = torch.empty(2, channels, device=first.device)
            apply_norm(z, y, norm, saved, size, moments, adds=adds)
        if save:
            ctx.save_for_backward(z, saved, pointwise, norm.weight, *maps)
        ctx.size, ctx.reading, ctx.counters = size, reading, counters
        ctx.added = find_added_gradients(maps)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, saved, pointwise, weight, *maps = ctx.saved_tensors
        size, dy = ctx.size, to_rows(gradient)
        gradients = ctx.added or [empty_rows(x.shape, x, size.input_row) for x in maps]
        if ctx.reading.diagonal and not ctx.added:  # most pixels have none
            widen(gradients[0]).zero_()
        side, (dpointwise, adds) = SideStream(dy, are_kept=ctx.needs_input_grad[0]), place_like(pointwise)
        with device_of(dy):
            sums = sum_gradients(dy, row_of(dy), z, saved, size, ctx.counters).merge(moments=False)
            adds_inputs = ctx.added is not None
            through = Backward(dy, row_of(dy), z, saved, sums, weight, pointwise, maps, size, ctx.reading, adds_inputs)
            partial, dweight, dbias = through.run(gradients, side)
            with side.fork() if through.takes_one_pass(side) else side.resume():
                reduce([partial], [dpointwise], [adds])
        side.leave([dpointwise], through, partial)
        return dpointwise, dweight, dbias, *[None] * 7, *([None] * len(maps) if ctx.added else gradients)


def _list_maps(maps: Sequence[Tensor]) -> list[Tensor]:
    """As many arguments as the kernels have."""
    return [*maps, *[maps[0]] * (MAX_MAPS - len(maps))]


def multiply(
    maps: Sequence[Tensor],
    pointwise: Tensor,
    size: ConvSizes,
    dtype: torch.dtype,
    reading: Reading = READ,
    *,
    counters: Tensor | None = None,
    cleared: Tensor | None = None,
) -> tuple[Tensor, Moments]:
    """A 1x1 convolution of maps side by side: its results, one pixel a row, and their moments; counters are cleared."""
    device = pointwise.device
    z = torch.empty(size.pixels, size.row, dtype=dtype, device=device)
    outputs = min(size.block_channels, MAX_BLOCK)
    groups = -(-size.channels // outputs)
    block = min(max(power_of_two(size.pixels * groups // MIN_PROGRAMS + 1) // 2, 16), MAX_PIXELS)
    programs = -(-size.pixels // block)
    partials = Partials.allocate((programs, groups), size.channels, counters, device, moments=True)
    _pointwise_kernels.pointwise_forward[programs, groups](
        *(*_list_maps(maps), pointwise, z, *partials[:2], cleared),
        *(*size, block, size.block_inputs, outputs, *reading),
        PRECISION=_precision(),
        GROUP=partials.group,
        COUNTERS=COUNTERS,
        num_warps=WARPS,
        num_stages=min(pipeline_stages(device), 2),
    )
    return z, partials.read(size.pixels, block).merge(moments=True)


def apply_norm(
    z: Tensor, y: Tensor, norm: Norm, saved: Tensor, size: ConvSizes, moments: Moments, *, adds: bool
) -> None:
    """Write the normalized results, or add them, and write the moments that the backward pass needs."""
    split = Split.of(size.pixels, size.row)
    _norm_kernels.batch_norm_forward[split.chunks, split.groups](
        *(z, y if adds else None, moments.partial, *norm[:4], saved, y, *moments.arguments),
        *(norm.eps, norm.momentum, split.chunk, size.channels, size.row, size.row),
        *(*split[4:7], power_of_two(len(moments.partial))),
        AFFINE=norm.weight is not None,
        TRACK=norm.running_mean is not None,
        ADD=adds,
        RELU=False,
        num_warps=split.warps,
    )


def sum_gradients(
    dy: Tensor, dy_row: int, z: Tensor, saved: Tensor, size: ConvSizes, counters: Tensor | None
) -> Moments:
    """The sums that the gradient of a batch norm needs."""
    split = Split.of(size.pixels, size.channels)
    grid = split.chunks, split.groups
    partials = Partials.allocate(grid, size.channels, counters, z.device, moments=False)
    _norm_kernels.batch_norm_gradient_sums[grid](
        *(dy, z, None, saved, *partials[:2], split.rows, split.chunk, size.channels, size.row, dy_row, *split[4:7]),
        RELU=False,
        GROUP=partials.group,
        num_warps=split.warps,
    )
    return partials.read(split.rows, split.chunk)


class Backward(NamedTuple):
    """Through a batch norm and a 1x1 convolution: the tensors and sizes of both kernels of it."""

    dy: Tensor
    dy_row: int
    z: Tensor
    saved: Tensor  # moments of the batch norm
    sums: Moments
    weight: Tensor | None  # of the batch norm
    pointwise: Tensor
    maps: Sequence[Tensor]
    size: ConvSizes
    reading: Reading = READ
    adds_inputs: bool = False  # gradients of the maps are added to what is there

    @property
    def _gradient(self) -> tuple[Tensor | None, ...]:
        return self.dy, self.z, self.saved, self.sums.partial, self.weight

    @property
    def _flags(self) -> dict[str, Any]:
        return {
            "AFFINE": self.weight is not None,
            "RELU": self.reading.relu,
            "DIAGONAL": self.reading.diagonal,
            "PRECISION": _precision(),
            "ADD": self.adds_inputs,
        }

    def input_gradients(self, gradients: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Write the gradients of the maps; return those of the batch norm."""
        size, chunks, (dweight, dbias) = self.size, len(self.sums.partial), self._empty_like_norm()
        groups, outputs = size.maps * -(-size.inputs // size.block_inputs), min(size.block_channels, MAX_BLOCK)
        limit, (most, warps, stages) = next(
            ((n, tile) for n, tile in INPUT_TILES.items() if size.channels <= n), (0, BLOCK_TILE)
        )
        outputs, inside = (size.block_channels, groups) if limit else (outputs, 1)  # groups of a program
        block = min(max(power_of_two(size.pixels * (groups // inside) // MIN_PROGRAMS + 1) // 2, 16), most)
        _pointwise_kernels.pointwise_input_gradient[-(-size.pixels // block), groups // inside](
            *(*self._gradient, self.pointwise, dweight, dbias, *_list_maps(self.maps), *_list_maps(gradients)),
            *(chunks, size.pixels, *size[1:], self.dy_row, block, outputs, size.block_inputs, inside),
            power_of_two(chunks),
            **self._flags,
            num_warps=warps,
            num_stages=min(pipeline_stages(self.z.device), stages),
        )
        return dweight, dbias

    def weight_gradient(self, gradients: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The gradient of the weights for each program; with memory for those of the maps, all that `run` gives."""
        size, chunks, with_inputs = self.size, len(self.sums.partial), len(gradients) > 0
        dweight, dbias = self._empty_like_norm() if with_inputs else (None, None)
        outputs, inputs = min(size.block_channels, MAX_BLOCK), size.block_inputs
        groups, rows = size.maps * -(-size.inputs // inputs), -(-size.channels // outputs)
        block = 64 if self.z.element_size() == 2 else 32  # for shared memory
        tiles = -(-size.pixels // (block * -(-WEIGHT_PROGRAMS // (groups * rows))))
        programs = -(-size.pixels // (block * tiles))
        partial = torch.empty(programs, self.pointwise.numel(), device=self.z.device)
        _pointwise_kernels.pointwise_weight_gradient[programs, groups, rows](
            *(*self._gradient, self.pointwise, dweight, dbias, partial),
            *(*_list_maps(self.maps), *_list_maps(gradients or self.maps), chunks, size.pixels, tiles),
            *(*size[1:], self.dy_row, block, outputs, inputs, power_of_two(chunks)),
            **self._flags,
            WITH_INPUTS=with_inputs,
            num_warps=WARPS,
            num_stages=1 if with_inputs else pipeline_stages(self.z.device),
        )
        return partial, dweight, dbias

    def takes_one_pass(self, side: SideStream) -> bool:
        """Whether one kernel computes all gradients: of few channels, beside other kernels only if it reads much."""
        return self.size.channels <= ONE_PASS_CHANNELS and (self.size.maps > 1 or not side.is_open)

    def run(self, gradients: Sequence[Tensor], side: SideStream) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Write the gradients of the maps; return that of the weights for each program, and those of the batch norm."""
        if self.takes_one_pass(side):
            return self.weight_gradient(gradients)
        with side.fork():
            partial, _, _ = self.weight_gradient()
        return partial, *self.input_gradients(gradients)

    def _empty_like_norm(self) -> tuple[Tensor | None, Tensor | None]:
        """Memory for the gradients of the batch norm."""
        weight = self.weight
        return (None, None) if weight is None else (torch.empty_like(weight), torch.empty_like(weight))


def reduce(partials: list[Tensor], results: list[Tensor], adds: list[bool]) -> None:
    """Into the gradients of weights the sums of the rows of one matrix or of four, in one launch, or added to them.

    Of four, the first is like the third, and the second like the fourth: of about as many rows. Columns are those of
    the weights, with the taps of a kernel before the channels.
    """
    number = len(partials)
    partials, results, adds = (4 // number) * partials, (4 // number) * results, (4 // number) * adds
    matrices = zip(partials, results, strict=True)
    arguments = [item for p, r in matrices for item in (p, r, *p.shape, r.shape[2:].numel())]
    tiles = [_reduce_tile(max(len(partials[index]), len(partials[index + 2]))) for index in (0, 1)]
    programs = max(-(-partial.shape[1] // tiles[index % 2][2]) for index, partial in enumerate(partials))
    _sum_kernels.reduce_rows[programs, number](*arguments, *tiles[0], *tiles[1], *adds, num_warps=WARPS)


def _reduce_tile(rows: int) -> tuple[int, int, int]:
    """Tiles one below another, and the rows and columns of each."""
    height = min(power_of_two(rows), REDUCE_ROWS)
    return -(-rows // height), height, REDUCE_TILE // height
