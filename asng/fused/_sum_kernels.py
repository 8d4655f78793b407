"""Triton kernels of sums over programs: of moments and sums of chunks, and of gradients of weights."""

import triton
import triton.language as tl

from asng.fused._norm_kernels import write_merged_moments, write_merged_sums
from asng.fused._store_kernels import store


@triton.jit
def merge_moments(partial, merged, rows, chunk, chunks, C: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Means and summed squared deviations of up to CHUNKS chunks as those of a single one."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    number = tl.program_id(1)
    write_merged_moments(partial, merged + number * 2 * C, number * CHUNKS, rows, chunk, chunks, c, C, CHUNKS)


@triton.jit
def merge_sums(partial, merged, chunks, C: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Two sums of up to CHUNKS chunks as those of a single one."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    number = tl.program_id(1)
    write_merged_sums(partial, merged + number * 2 * C, number * CHUNKS, chunks, c, C, CHUNKS)


@triton.jit
def _reduce(
    partial,
    result,
    rows,
    columns,
    taps,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADD: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in tl.static_range(TILES):  # so that many loads are under way
        row = tile * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        sums += tl.load(partial + row[:, None] * columns + column[None, :], mask, other=0.0)
    channels = columns // taps
    target = result + column % channels * taps + column // channels
    store(target, tl.sum(sums, 0), column < columns, ADD)


@triton.jit
def reduce_rows(
    partial1,
    result1,
    rows1,
    columns1,
    taps1,
    partial2,
    result2,
    rows2,
    columns2,
    taps2,
    partial3,
    result3,
    rows3,
    columns3,
    taps3,
    partial4,
    result4,
    rows4,
    columns4,
    taps4,
    TILES13: tl.constexpr,
    ROWS13: tl.constexpr,
    COLUMNS13: tl.constexpr,
    TILES24: tl.constexpr,
    ROWS24: tl.constexpr,
    COLUMNS24: tl.constexpr,
    ADD1: tl.constexpr,
    ADD2: tl.constexpr,
    ADD3: tl.constexpr,
    ADD4: tl.constexpr,
):
    """Sums over the rows of four matrices, each into a vector, or added to it.

    What has taps comes in tap by tap, and goes out last.
    """
    which = tl.program_id(1)
    if which == 0:
        _reduce(partial1, result1, rows1, columns1, taps1, TILES13, ROWS13, COLUMNS13, ADD1)
    elif which == 1:
        _reduce(partial2, result2, rows2, columns2, taps2, TILES24, ROWS24, COLUMNS24, ADD2)
    elif which == 2:
        _reduce(partial3, result3, rows3, columns3, taps3, TILES13, ROWS13, COLUMNS13, ADD3)
    else:
        _reduce(partial4, result4, rows4, columns4, taps4, TILES24, ROWS24, COLUMNS24, ADD4)
