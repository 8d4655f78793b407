"""Triton kernels of 1x1 convolutions and batch norms after them, and of sums over programs.

Rows of the inputs have STRIDE elements for each pixel, as in `_depthwise_kernels`. Gradients of weights are summed up
for each program, and by `reduce_rows` over all of them.
"""

import triton
import triton.language as tl

from asng.fused._norm_kernels import combine_moments, combine_sums


@triton.jit
def merge_moments(partial, merged, rows, chunk, chunks, C: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Means and summed squared deviations of up to CHUNKS chunks as those of a single one."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(1) * CHUNKS
    rows = tl.minimum(rows - first * chunk, CHUNKS * chunk)
    mean, var = combine_moments(partial + first * 2 * C, rows, chunk, chunks - first, c, C, CHUNKS)
    target = merged + tl.program_id(1) * 2 * C + c
    tl.store(target, mean, c < C)
    tl.store(target + C, var * rows, c < C)


@triton.jit
def merge_sums(partial, merged, chunks, C: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Two sums of up to CHUNKS chunks as those of a single one."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(1) * CHUNKS
    total, product = combine_sums(partial + first * 2 * C, chunks - first, c, C, CHUNKS)
    target = merged + tl.program_id(1) * 2 * C + c
    tl.store(target, total, c < C)
    tl.store(target + C, product, c < C)


@triton.jit
def pointwise_forward(
    d,
    pointwise,
    z,
    partial,
    pixels,
    IN: tl.constexpr,
    IN_STRIDE: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """1x1 convolution of IN channels to C, and moments of its results for each program."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    product = tl.zeros([PIXELS, OUTPUTS], tl.float32)
    dtype = z.dtype.element_ty
    for start in tl.static_range(0, IN, INPUTS):
        c = start + tl.arange(0, INPUTS)
        mask = (p < pixels)[:, None] & (c < IN_STRIDE)[None, :]
        inner = tl.load(d + p[:, None] * IN_STRIDE + c[None, :], mask, other=0.0).to(dtype)
        factors = tl.load(pointwise + o[None, :] * IN + c[:, None], (o < C)[None, :] & (c < IN)[:, None], other=0.0)
        product = tl.dot(inner, factors.to(dtype), product, input_precision=PRECISION)
    result = product.to(dtype)
    tl.store(z + p[:, None] * STRIDE + o[None, :], result, (p < pixels)[:, None] & (o < STRIDE)[None, :])
    result = result.to(tl.float32)
    number = tl.minimum(PIXELS, pixels - tl.program_id(0) * PIXELS)
    mean = tl.sum(result, 0) / number
    deviation = tl.where((p < pixels)[:, None], result - mean[None, :], 0.0)
    target = partial + tl.program_id(0) * 2 * C + o
    tl.store(target, mean, o < C)
    tl.store(target + C, tl.sum(deviation * deviation, 0), o < C)


@triton.jit
def pointwise_backward(
    dy,
    z,
    saved,
    sums,
    weight,
    d,
    pointwise,
    dd,
    dweight,
    dbias,
    partial,
    chunks,
    pixels,
    tiles,
    IN: tl.constexpr,
    IN_STRIDE: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    DY_STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    INPUTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    AFFINE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Through batch norm and 1x1 convolution: gradients of its inputs, and of its weights for each program.

    Channels of the output come in blocks of CHANNELS, inputs in blocks of INPUTS, one for each program.
    """
    c = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    scales, slopes, offsets, gradients = (), (), (), ()
    for first in tl.static_range(0, C, CHANNELS):
        o = first + tl.arange(0, CHANNELS)
        total, product = combine_sums(sums, chunks, o, C, CHUNKS)
        mean = tl.load(saved + o, o < C, other=0.0)
        rstd = tl.load(saved + C + o, o < C, other=0.0)
        scale = rstd
        if AFFINE:
            scale = rstd * tl.load(weight + o, o < C, other=0.0).to(tl.float32)
            if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
                tl.store(dweight + o, product, o < C)
                tl.store(dbias + o, total, o < C)
        slope = rstd * product / pixels
        scales += (scale,)
        slopes += (slope,)
        offsets += (total / pixels - mean * slope,)
        gradients += (tl.zeros([CHANNELS, INPUTS], tl.float32),)
    dtype = z.dtype.element_ty
    for tile in range(tiles):
        p = (tl.program_id(0) * tiles + tile) * PIXELS + tl.arange(0, PIXELS)
        input_mask = (p < pixels)[:, None] & (c < IN_STRIDE)[None, :]
        input_offsets = p[:, None] * IN_STRIDE + c[None, :]
        inputs = tl.load(d + input_offsets, input_mask, other=0.0).to(dtype)
        inner = tl.zeros([PIXELS, INPUTS], tl.float32)
        for first in tl.static_range(0, C, CHANNELS):
            o = first + tl.arange(0, CHANNELS)
            mask = (p < pixels)[:, None] & (o < DY_STRIDE)[None, :]
            gradient = tl.load(dy + p[:, None] * DY_STRIDE + o[None, :], mask, other=0.0).to(tl.float32)
            mask = (p < pixels)[:, None] & (o < STRIDE)[None, :]
            value = tl.load(z + p[:, None] * STRIDE + o[None, :], mask, other=0.0).to(tl.float32)
            dz = gradient - offsets[first // CHANNELS][None, :] - value * slopes[first // CHANNELS][None, :]
            dz = tl.where(mask, scales[first // CHANNELS][None, :] * dz, 0.0).to(dtype)
            mask = (o < C)[:, None] & (c < IN)[None, :]
            factors = tl.load(pointwise + o[:, None] * IN + c[None, :], mask, other=0.0).to(dtype)
            inner = tl.dot(dz, factors, inner, input_precision=PRECISION)
            gradients = _add_product(gradients, first // CHANNELS, dz, inputs, PRECISION)
        tl.store(dd + input_offsets, inner.to(dd.dtype.element_ty), input_mask)
    for first in tl.static_range(0, C, CHANNELS):
        o = first + tl.arange(0, CHANNELS)
        target = partial + tl.program_id(0) * C * IN + o[:, None] * IN + c[None, :]
        tl.store(target, gradients[first // CHANNELS], (o < C)[:, None] & (c < IN)[None, :])


@triton.jit
def _add_product(sums, index: tl.constexpr, left, right, PRECISION: tl.constexpr):
    """The sums, with the product of a transposed matrix and another added to one of them."""
    added = tl.dot(tl.trans(left), right, sums[index], input_precision=PRECISION)
    return sums[:index] + (added,) + sums[index + 1 :]  # noqa: RUF005 (Triton has no stars)


@triton.jit
def _reduce(partial, result, rows, columns, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(TILES):
        row = tile * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        sums += tl.load(partial + row[:, None] * columns + column[None, :], mask, other=0.0)
    tl.store(result + column, tl.sum(sums, 0).to(result.dtype.element_ty), column < columns)


@triton.jit
def reduce_rows(
    partial1,
    result1,
    rows1,
    partial2,
    result2,
    rows2,
    partial3,
    result3,
    rows3,
    partial4,
    result4,
    rows4,
    columns13,
    columns24,
    TILES13: tl.constexpr,
    TILES24: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums over the rows of four matrices, each into a vector; the first has as many columns as the third."""
    which = tl.program_id(1)
    if which == 0:
        _reduce(partial1, result1, rows1, columns13, TILES13, ROWS, COLUMNS)
    elif which == 1:
        _reduce(partial2, result2, rows2, columns24, TILES24, ROWS, COLUMNS)
    elif which == 2:
        _reduce(partial3, result3, rows3, columns13, TILES13, ROWS, COLUMNS)
    else:
        _reduce(partial4, result4, rows4, columns24, TILES24, ROWS, COLUMNS)
