"""Triton kernels of 1x1 convolutions and batch norms after them.

Rows of the inputs have STRIDE elements for each pixel, as in `_depthwise_kernels`. Gradients of weights are summed up
for each program, and by `reduce_rows` over all of them.
"""

import triton
import triton.language as tl

from asng.fused._norm_kernels import combine_sums, is_last, merged_row, write_merged_moments
from asng.fused._store_kernels import store


@triton.jit
def _chosen_map(number, x0, x1, x2, x3, x4, COUNT: tl.constexpr):
    """One of the inputs; Triton has no lists of pointers."""
    result = x0
    if COUNT > 1:
        if number == 1:
            result = x1
        elif number == 2:
            result = x2
        elif number == 3:
            result = x3
        elif number == 4:
            result = x4
    return result


@triton.jit
def _pixel(p, number, OUT_WIDTH: tl.constexpr, DIAGONAL: tl.constexpr):
    """The pixel of an input that belongs to pixel p of the result.

    DIAGONAL: of 2x2 pixels of the input, the upper left one for the first map, the lower right one for the second.
    """
    if DIAGONAL:
        return (2 * (p // OUT_WIDTH) + number) * (2 * OUT_WIDTH) + 2 * (p % OUT_WIDTH) + number
    else:
        return p


@triton.jit
def _weights(
    o,
    c,
    number,
    C: tl.constexpr,
    IN: tl.constexpr,
    COUNT: tl.constexpr,
    WEIGHTS: tl.constexpr,
    DIAGONAL: tl.constexpr,
):
    """Where the weights from channels c of a map to channels o are, and which of them there are."""
    if DIAGONAL:
        return o[:, None] * WEIGHTS + c[None, :], ((o < C) & (o // (C // COUNT) == number))[:, None] & (c < IN)[None, :]
    else:
        return o[:, None] * WEIGHTS + (number * IN + c)[None, :], (o < C)[:, None] & (c < IN)[None, :]


@triton.jit
def pointwise_forward(
    x0,
    x1,
    x2,
    x3,
    x4,
    pointwise,
    z,
    partial,
    counters,
    cleared,
    pixels,
    COUNT: tl.constexpr,
    IN: tl.constexpr,
    IN_STRIDE: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    PIXELS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    RELU: tl.constexpr,
    DIAGONAL: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
    COUNTERS: tl.constexpr,
):
    """1x1 convolution of COUNT maps of IN channels to C, and moments of its results for each program.

    RELU: of the maps rectified. DIAGONAL: in groups, one for each map, of the pixels that `_pixel` says. Moments of
    GROUP programs are merged; counters in `cleared` are for the backward pass.
    """
    if cleared is not None:  # noqa: SIM102 (Triton has no `and` of constants and tensors)
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(cleared + tl.arange(0, COUNTERS), tl.zeros([COUNTERS], tl.int32))
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    product = tl.zeros([PIXELS, OUTPUTS], tl.float32)
    dtype = z.dtype.element_ty
    WEIGHTS: tl.constexpr = IN if DIAGONAL else COUNT * IN  # of a row
    for number in range(COUNT):  # the number of maps and blocks is too large to write all out
        source = _chosen_map(number, x0, x1, x2, x3, x4, COUNT)
        source += _pixel(p, number, OUT_WIDTH, DIAGONAL)[:, None] * IN_STRIDE
        for start in tl.static_range(0, IN, INPUTS):
            c = start + tl.arange(0, INPUTS)
            inner = tl.load(source + c[None, :], (p < pixels)[:, None] & (c < IN_STRIDE)[None, :], other=0.0).to(dtype)
            if IN_STRIDE > IN:
                inner = tl.where((c < IN)[None, :], inner, 0.0).to(dtype)
            if RELU:
                inner = tl.where(inner < 0, 0.0, inner).to(dtype)  # NaN stays
            offsets, mask = _weights(o, c, number, C, IN, COUNT, WEIGHTS, DIAGONAL)
            factors = tl.trans(tl.load(pointwise + offsets, mask, other=0.0).to(dtype))
            product = tl.dot(inner, factors, product, input_precision=PRECISION)
    result = product.to(dtype)
    tl.store(z + p[:, None] * STRIDE + o[None, :], result, (p < pixels)[:, None] & (o < STRIDE)[None, :])
    result = result.to(tl.float32)
    number_of_pixels = tl.minimum(PIXELS, pixels - tl.program_id(0) * PIXELS)
    mean = tl.sum(result, 0) / number_of_pixels
    deviation = tl.where((p < pixels)[:, None], result - mean[None, :], 0.0)
    target = partial + tl.program_id(0) * 2 * C + o
    tl.store(target, mean, o < C)
    tl.store(target + C, tl.sum(deviation * deviation, 0), o < C)
    if GROUP > 1:  # noqa: SIM102 (Triton has no `and` of constants and tensors)
        if is_last(counters, GROUP):
            first = tl.program_id(0) // GROUP * GROUP
            row = merged_row(partial, C, GROUP)
            write_merged_moments(partial, row, first, pixels, PIXELS, tl.num_programs(0), o, C, GROUP)


@triton.jit
def _coefficients(
    saved, sums, weight, dweight, dbias, o, chunks, pixels, C: tl.constexpr, CHUNKS: tl.constexpr, AFFINE: tl.constexpr
):
    """The numbers of channels o in the gradient of a batch norm: scale * (gradient - offset - value * slope).

    The first program also writes the gradients of the batch norm's weights, if there are pointers for them.
    """
    total, product = combine_sums(sums, chunks, o, C, CHUNKS)
    mean = tl.load(saved + o, o < C, other=0.0)
    rstd = tl.load(saved + C + o, o < C, other=0.0)
    scale = rstd
    if AFFINE:
        scale = rstd * tl.load(weight + o, o < C, other=0.0).to(tl.float32)
        if dweight is not None:  # noqa: SIM102 (Triton has no `and` of constants and tensors)
            if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
                tl.store(dweight + o, product, o < C)
                tl.store(dbias + o, total, o < C)
    slope = rstd * product / pixels
    return scale, total / pixels - mean * slope, slope


@triton.jit
def _norm_gradient(
    dy,
    z,
    scale,
    offset,
    slope,
    p,
    o,
    pixels,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    DY_STRIDE: tl.constexpr,
):
    """The gradient of what a batch norm normalizes, of pixels p and channels o, in the type of z."""
    mask = (p < pixels)[:, None] & (o < DY_STRIDE)[None, :]
    gradient = tl.load(dy + p[:, None] * DY_STRIDE + o[None, :], mask, other=0.0).to(tl.float32)
    mask = (p < pixels)[:, None] & (o < STRIDE)[None, :]
    value = tl.load(z + p[:, None] * STRIDE + o[None, :], mask, other=0.0).to(tl.float32)
    dz = scale[None, :] * (gradient - offset[None, :] - value * slope[None, :])
    return tl.where((p < pixels)[:, None] & (o < C)[None, :], dz, 0.0).to(z.dtype.element_ty)


@triton.jit
def pointwise_input_gradient(
    dy,
    z,
    saved,
    sums,
    weight,
    pointwise,
    dweight,
    dbias,
    x0,
    x1,
    x2,
    x3,
    x4,
    dx0,
    dx1,
    dx2,
    dx3,
    dx4,
    chunks,
    pixels,
    COUNT: tl.constexpr,
    IN: tl.constexpr,
    IN_STRIDE: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    DY_STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNKS: tl.constexpr,
    AFFINE: tl.constexpr,
    RELU: tl.constexpr,
    DIAGONAL: tl.constexpr,
    PRECISION: tl.constexpr,
    ADD: tl.constexpr,
):
    """Through batch norm and 1x1 convolution; a program computes GROUPS blocks of channels, of one map or several.

    ADD: the gradients are added to what is there.
    """
    BLOCKS: tl.constexpr = (IN + INPUTS - 1) // INPUTS  # of a map
    WEIGHTS: tl.constexpr = IN if DIAGONAL else COUNT * IN  # of a row
    IS_SINGLE: tl.constexpr = C <= OUTPUTS  # block of channels of the result, whose gradient is computed once
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    o = tl.arange(0, OUTPUTS)
    dtype = z.dtype.element_ty
    if IS_SINGLE:
        scale, offset, slope = _coefficients(saved, sums, weight, dweight, dbias, o, chunks, pixels, C, CHUNKS, AFFINE)
        dz = _norm_gradient(dy, z, scale, offset, slope, p, o, pixels, C, STRIDE, DY_STRIDE)
    for group in range(GROUPS):
        index = tl.program_id(1) * GROUPS + group
        number = index // BLOCKS
        c = index % BLOCKS * INPUTS + tl.arange(0, INPUTS)
        inner = tl.zeros([PIXELS, INPUTS], tl.float32)
        mask = (p < pixels)[:, None] & (c < IN_STRIDE)[None, :]
        pixel = _pixel(p, number, OUT_WIDTH, DIAGONAL)[:, None] * IN_STRIDE + c[None, :]
        value = inner
        if RELU:  # read before the product, which takes its time
            value = tl.load(_chosen_map(number, x0, x1, x2, x3, x4, COUNT) + pixel, mask, other=0.0).to(tl.float32)
        for start in tl.static_range(0, C, OUTPUTS):
            o = start + tl.arange(0, OUTPUTS)
            if not IS_SINGLE:
                scale, offset, slope = _coefficients(
                    saved, sums, weight, dweight, dbias, o, chunks, pixels, C, CHUNKS, AFFINE
                )
                dz = _norm_gradient(dy, z, scale, offset, slope, p, o, pixels, C, STRIDE, DY_STRIDE)
            offsets, is_weight = _weights(o, c, number, C, IN, COUNT, WEIGHTS, DIAGONAL)
            factors = tl.load(pointwise + offsets, is_weight, other=0.0).to(dtype)
            inner = tl.dot(dz, factors, inner, input_precision=PRECISION)
        if RELU:
            inner = tl.where(value <= 0, 0.0, inner)
        store(_chosen_map(number, dx0, dx1, dx2, dx3, dx4, COUNT) + pixel, inner, mask, ADD)


@triton.jit
def pointwise_weight_gradient(
    dy,
    z,
    saved,
    sums,
    weight,
    pointwise,
    dweight,
    dbias,
    partial,
    x0,
    x1,
    x2,
    x3,
    x4,
    dx0,
    dx1,
    dx2,
    dx3,
    dx4,
    chunks,
    pixels,
    tiles,
    COUNT: tl.constexpr,
    IN: tl.constexpr,
    IN_STRIDE: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    DY_STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    AFFINE: tl.constexpr,
    RELU: tl.constexpr,
    DIAGONAL: tl.constexpr,
    PRECISION: tl.constexpr,
    ADD: tl.constexpr,
    WITH_INPUTS: tl.constexpr,
):
    """Of the weights of a 1x1 convolution, for each program.

    WITH_INPUTS: also through batch norm and convolution, where a program has all channels of the result; with ADD these
    gradients are added to what is there. The second index of a program is that of a block of channels of one of the
    maps, the third that of a block of channels of the result.
    """
    BLOCKS: tl.constexpr = (IN + INPUTS - 1) // INPUTS
    WEIGHTS: tl.constexpr = IN if DIAGONAL else COUNT * IN  # of a row
    number = tl.program_id(1) // BLOCKS
    x = _chosen_map(number, x0, x1, x2, x3, x4, COUNT)
    dx = _chosen_map(number, dx0, dx1, dx2, dx3, dx4, COUNT)
    c = tl.program_id(1) % BLOCKS * INPUTS + tl.arange(0, INPUTS)
    o = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    dtype = z.dtype.element_ty
    scale, offset, slope = _coefficients(saved, sums, weight, dweight, dbias, o, chunks, pixels, C, CHUNKS, AFFINE)
    weights, is_weight = _weights(o, c, number, C, IN, COUNT, WEIGHTS, DIAGONAL)
    if WITH_INPUTS:
        factors = tl.load(pointwise + weights, is_weight, other=0.0).to(dtype)
    gradients = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for tile in range(tiles):
        p = (tl.program_id(0) * tiles + tile) * PIXELS + tl.arange(0, PIXELS)
        dz = _norm_gradient(dy, z, scale, offset, slope, p, o, pixels, C, STRIDE, DY_STRIDE)
        mask = (p < pixels)[:, None] & (c < IN_STRIDE)[None, :]
        offsets = _pixel(p, number, OUT_WIDTH, DIAGONAL)[:, None] * IN_STRIDE + c[None, :]
        value = tl.load(x + offsets, mask, other=0.0).to(dtype)
        if WITH_INPUTS:
            inner = tl.dot(dz, factors, input_precision=PRECISION)
            if RELU:
                inner = tl.where(value <= 0, 0.0, inner)
            store(dx + offsets, inner, mask, ADD)
        if RELU:
            value = tl.where(value < 0, 0.0, value).to(dtype)
        gradients = tl.dot(tl.trans(dz), value, gradients, input_precision=PRECISION)
    tl.store(partial + tl.program_id(0) * C * WEIGHTS + weights, gradients, is_weight)
