"""Triton kernels of one half of a separable convolution, channels last: ReLU, depthwise, 1x1 convolution, batch norm.

A program of the forward kernel has all channels of some pixels, so that the result of the depthwise convolution is
multiplied by the 1x1 convolution's weights where it was computed. `NORM`: the input is normalized first, by the batch
norm of the half before. Gradients of weights are summed up for each program, and by `reduce_rows` over all of them.

Results in between have STRIDE elements for each pixel, a multiple of 8: channels beyond C are zeros, so that loads of
16 bytes are aligned.
"""

import triton
import triton.language as tl

from asng.fused._norm_kernels import combine_moments, combine_sums, finish_moments


@triton.jit
def merge_moments(partial, merged, rows, chunk, chunks, C: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Means and summed squared deviations of many chunks as those of a single one."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    mean, var = combine_moments(partial, rows, chunk, chunks, c, C, CHUNKS)
    tl.store(merged + c, mean, c < C)
    tl.store(merged + C + c, var * rows, c < C)


@triton.jit
def merge_sums(partial, merged, chunks, C: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Two sums of many chunks as those of a single one."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    first, second = combine_sums(partial, chunks, c, C, CHUNKS)
    tl.store(merged + c, first, c < C)
    tl.store(merged + C + c, second, c < C)


@triton.jit
def pad_channels(x, padded, total, C: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Rectified values, with zeros as further channels."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = index % STRIDE
    value = tl.load(x + index // STRIDE * C + c, (index < total) & (c < C), other=0.0)
    tl.store(padded + index, tl.where(value < 0, 0.0, value).to(padded.dtype.element_ty), index < total)


@triton.jit
def separable_forward(
    x,
    moments,
    weight,
    bias,
    running_mean,
    running_var,
    saved,
    depthwise,
    pointwise,
    d,
    z,
    partial,
    rows,
    chunk,
    chunks,
    eps,
    momentum,
    pixels,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STEP: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    NORM: tl.constexpr,
    AFFINE: tl.constexpr,
    TRACK: tl.constexpr,
    SAVE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The results of both convolutions (of the first to save it), and moments of the second's for each program."""
    c = tl.arange(0, CHANNELS)
    scale = tl.zeros([CHANNELS], tl.float32)
    shift = tl.zeros([CHANNELS], tl.float32)
    if NORM:
        mean, var = combine_moments(moments, rows, chunk, chunks, c, C, CHUNKS)
        first = tl.program_id(0) == 0
        scale, shift = finish_moments(
            mean, var, weight, bias, running_mean, running_var, saved, rows, eps, momentum, c, C, AFFINE, TRACK, first
        )
        shift -= mean * scale
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    top, left = (p // OW) % OH * STEP - K // 2, p % OW * STEP - K // 2
    source = x + (((p // (OH * OW)) * H + top) * W + left)[:, None] * STRIDE + c[None, :]
    sums = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for ky in range(K):  # not unrolled: the compiler would move the sums into the layout of the product, tap by tap
        for kx in tl.static_range(K):
            h, w = top + ky, left + kx
            inside = (p < pixels) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            mask = inside[:, None] & (c < STRIDE)[None, :]
            value = tl.load(source + (ky * W + kx) * STRIDE, mask, other=0.0).to(tl.float32)
            if NORM:
                value = tl.where(mask, value * scale[None, :] + shift[None, :], 0.0)
            value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
            factor = tl.load(depthwise + c * (K * K) + ky * K + kx, c < C, other=0.0).to(tl.float32)
            sums += value * factor[None, :]
    inner = sums.to(z.dtype.element_ty)
    if SAVE:
        tl.store(d + p[:, None] * STRIDE + c[None, :], inner, (p < pixels)[:, None] & (c < STRIDE)[None, :])
    number = tl.minimum(PIXELS, pixels - tl.program_id(0) * PIXELS)
    for block in tl.static_range(CHANNELS // OUTPUTS):
        o = block * OUTPUTS + tl.arange(0, OUTPUTS)
        factors = tl.load(pointwise + o[None, :] * C + c[:, None], (o < C)[None, :] & (c < C)[:, None], other=0.0)
        product = tl.dot(inner, factors.to(inner.dtype), input_precision=PRECISION)
        result = product.to(z.dtype.element_ty)
        tl.store(z + p[:, None] * STRIDE + o[None, :], result, (p < pixels)[:, None] & (o < STRIDE)[None, :])
        result = result.to(tl.float32)
        mean_z = tl.sum(result, 0) / number
        deviation = tl.where((p < pixels)[:, None], result - mean_z[None, :], 0.0)
        target = partial + tl.program_id(0) * 2 * C + o
        tl.store(target, mean_z, o < C)
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
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    DY_STRIDE: tl.constexpr,
    TILES: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    INPUTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    AFFINE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Through batch norm and 1x1 convolution: gradients of its inputs, and of its weights for each program."""
    o = tl.arange(0, CHANNELS)
    c = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
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
    offset = total / pixels - mean * slope
    weights_mask = (o < C)[:, None] & (c < C)[None, :]
    weights_offsets = o[:, None] * C + c[None, :]
    factors = tl.load(pointwise + weights_offsets, weights_mask, other=0.0).to(dd.dtype.element_ty)
    gradients = tl.zeros([CHANNELS, INPUTS], tl.float32)
    for tile in range(TILES):
        p = (tl.program_id(0) * TILES + tile) * PIXELS + tl.arange(0, PIXELS)
        mask = (p < pixels)[:, None] & (o < DY_STRIDE)[None, :]
        gradient = tl.load(dy + p[:, None] * DY_STRIDE + o[None, :], mask, other=0.0).to(tl.float32)
        mask = (p < pixels)[:, None] & (o < STRIDE)[None, :]
        value = tl.load(z + p[:, None] * STRIDE + o[None, :], mask, other=0.0).to(tl.float32)
        dz = scale[None, :] * (gradient - offset[None, :] - value * slope[None, :])
        dz_rounded = tl.where(mask, dz, 0.0).to(dd.dtype.element_ty)
        mask = (p < pixels)[:, None] & (c < STRIDE)[None, :]
        offsets = p[:, None] * STRIDE + c[None, :]
        inner = tl.dot(dz_rounded, factors, input_precision=PRECISION)
        tl.store(dd + offsets, inner.to(dd.dtype.element_ty), mask)
        value = tl.load(d + offsets, mask, other=0.0)
        gradients = tl.dot(tl.trans(dz_rounded), value, gradients, input_precision=PRECISION)
    tl.store(partial + tl.program_id(0) * C * C + weights_offsets, gradients, weights_mask)


@triton.jit
def depthwise_backward(
    dd,
    x,
    saved,
    weight,
    bias,
    depthwise,
    dx,
    partial,
    sums,
    positions,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    DX_STRIDE: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STEP: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    NORM: tl.constexpr,
    AFFINE: tl.constexpr,
):
    """Through depthwise convolution and ReLU: gradients of the input, and of the weights for each program.

    A position stands for STEP x STEP pixels of the input. Of those, each has taps of its own, all pixels of its
    kind the same. `NORM`: also the sums for the batch norm before.
    """
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mean = tl.zeros([CHANNELS], tl.float32)
    scale = tl.zeros([CHANNELS], tl.float32)
    shift = tl.zeros([CHANNELS], tl.float32)
    if NORM:
        mean = tl.load(saved + c, c < C, other=0.0)
        scale = tl.load(saved + C + c, c < C, other=0.0)
        if AFFINE:
            scale *= tl.load(weight + c, c < C, other=0.0).to(tl.float32)
            shift = tl.load(bias + c, c < C, other=0.0).to(tl.float32)
        shift -= mean * scale
    total = tl.zeros([CHANNELS], tl.float32)
    products = tl.zeros([CHANNELS], tl.float32)
    position = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    COLUMNS: tl.constexpr = (W + STEP - 1) // STEP
    ROWS: tl.constexpr = (H + STEP - 1) // STEP
    i, j, n = (position // COLUMNS) % ROWS, position % COLUMNS, position // (COLUMNS * ROWS)
    for py in tl.static_range(STEP):
        for px in tl.static_range(STEP):
            h, w = i * STEP + py, j * STEP + px
            here = (position < positions) & (h < H) & (w < W)
            mask = here[:, None] & (c < STRIDE)[None, :]
            pixel = ((n * H + h) * W + w)[:, None]
            value = tl.load(x + pixel * STRIDE + c[None, :], mask, other=0.0).to(tl.float32)
            before = value
            if NORM:
                before = value * scale[None, :] + shift[None, :]
            passes = mask & (before > 0)
            rectified = tl.where(passes, before, 0.0)
            gradient = tl.zeros([PIXELS, CHANNELS], tl.float32)
            # Taps ky and kx with (py + K // 2 - ky) and (px + K // 2 - kx) divisible by the stride.
            for a in range((K - (py + K // 2) % STEP + STEP - 1) // STEP):
                for b in tl.static_range((K - (px + K // 2) % STEP + STEP - 1) // STEP):
                    ky, kx = (py + K // 2) % STEP + a * STEP, (px + K // 2) % STEP + b * STEP
                    tap = ky * K + kx
                    oh, ow = i + (py + K // 2) // STEP - a, j + (px + K // 2) // STEP - b
                    inside = here & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW)
                    source = dd + ((n * OH + oh) * OW + ow)[:, None] * STRIDE + c[None, :]
                    outer = tl.load(source, inside[:, None] & (c < STRIDE)[None, :], other=0.0).to(tl.float32)
                    factor = tl.load(depthwise + c * (K * K) + tap, c < C, other=0.0).to(tl.float32)
                    gradient += outer * factor[None, :]
                    target = partial + (tl.program_id(0) * C + c) * (K * K) + tap
                    tl.store(target, tl.sum(rectified * outer, 0), c < C)
            rounded = tl.where(passes, gradient, 0.0).to(dx.dtype.element_ty)
            tl.store(dx + pixel * DX_STRIDE + c[None, :], rounded, here[:, None] & (c < DX_STRIDE)[None, :])
            if NORM:
                total += tl.sum(rounded.to(tl.float32), 0)
                products += tl.sum(rounded.to(tl.float32) * (value - mean[None, :]), 0)
    if NORM:
        target = sums + tl.program_id(0) * 2 * C + c
        tl.store(target, total, c < C)
        tl.store(target + C, products * tl.load(saved + C + c, c < C, other=0.0), c < C)


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
