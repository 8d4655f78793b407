"""Triton kernels of depthwise convolutions after a ReLU, channels last, of 3x3 or 5x5 taps.

A thread computes blocks of ROWS x COLUMNS pixels, which share what they load. Inputs and results have STRIDE elements
for each pixel, a multiple of 8: channels beyond C are zeros, so that loads are aligned. Weights come tap by tap, as
rows of STRIDE elements.
"""
# mypy: disable-error-code="assignment, var-annotated"

import triton
import triton.language as tl

from asng.fused._norm_kernels import combine_moments, finish_moments, store_sums
from asng.fused._store_kernels import store


@triton.jit
def prepare(
    x,
    padded,
    total,
    depthwise1,
    depthwise2,
    taps1,
    taps2,
    counters,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNTERS: tl.constexpr,
    PAD: tl.constexpr,
):
    """Weights of depthwise convolutions tap by tap (K * K, STRIDE), and if PAD the rectified input; zeros beyond C.

    It also clears the counters of the kernels to come.
    """
    program = tl.program_id(0)
    GROUPS: tl.constexpr = (STRIDE + CHANNELS - 1) // CHANNELS
    if program < GROUPS:
        _transpose(depthwise1, taps1, program * CHANNELS, C, STRIDE, K1 * K1, CHANNELS)
    elif program < 2 * GROUPS:
        _transpose(depthwise2, taps2, (program - GROUPS) * CHANNELS, C, STRIDE, K2 * K2, CHANNELS)
    elif program == 2 * GROUPS:
        tl.store(counters + tl.arange(0, COUNTERS), tl.zeros([COUNTERS], tl.int32))
    elif PAD:
        index = (program - 2 * GROUPS - 1) * BLOCK + tl.arange(0, BLOCK)
        c = index % STRIDE
        value = tl.load(x + index // STRIDE * C + c, (index < total) & (c < C), other=0.0)
        tl.store(padded + index, tl.where(value < 0, 0.0, value).to(padded.dtype.element_ty), index < total)


@triton.jit
def _transpose(weights, taps, first, C: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr):
    c = first + tl.arange(0, CHANNELS)[None, :]
    tap = tl.arange(0, 32)[:, None]
    value = tl.load(weights + c * TAPS + tap, (c < C) & (tap < TAPS), other=0.0)
    tl.store(taps + tap * STRIDE + c, value.to(tl.float32), (c < STRIDE) & (tap < TAPS))


@triton.jit
def _rectify(value):
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _normalize(value, mean, scale, shift, mask):
    """Rounded as if it were stored; zero around the maps."""
    return tl.where(mask, (value.to(tl.float32) - mean) * scale + shift, 0.0).to(value.dtype)


@triton.jit
def _locate(p, height: tl.constexpr, width: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The images, and first rows and columns of blocks p of maps."""
    ACROSS: tl.constexpr = (width + COLUMNS - 1) // COLUMNS
    DOWN: tl.constexpr = (height + ROWS - 1) // ROWS
    return p // (ACROSS * DOWN), p // ACROSS % DOWN * ROWS, p % ACROSS * COLUMNS


@triton.jit
def _mask(here, h, w, c, H: tl.constexpr, W: tl.constexpr, STRIDE: tl.constexpr):
    """The mask of pixels and channels that exist."""
    return (here & (h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None] & (c < STRIDE)[None, :]


@triton.jit
def _factor(taps, tap, c, STRIDE: tl.constexpr):
    """The weights of a tap, as a row."""
    return tl.load(taps + tap * STRIDE + c, c < STRIDE, other=0.0)[None, :]


@triton.jit
def _add(sums, index: tl.constexpr, value):
    """The sums, with a value added to one of them."""
    return sums[:index] + (sums[index] + value,) + sums[index + 1 :]  # noqa: RUF005 (Triton has no stars)


# Which tap connects two pixels is computed by Python. Triton generates a function again for each value of its
# constants: functions of pairs of pixels took most of the time in which the kernels of a network were compiled.


@triton.constexpr_function
def _tap_from(pixel, y, z, COLUMNS, STEP, K):
    """The tap by which a pixel of a block of outputs looks at (y, z) of its inputs, or -1."""
    ky, kx = y - pixel // COLUMNS * STEP, z - pixel % COLUMNS * STEP
    return ky * K + kx if 0 <= ky < K and 0 <= kx < K else -1


@triton.constexpr_function
def _tap_to(pixel, y, z, COLUMNS, STEP, K):
    """The tap by which (y, z) of the outputs looks at a pixel of a block of inputs, or -1."""
    ky, kx = pixel // COLUMNS + K // 2 - y * STEP, pixel % COLUMNS + K // 2 - z * STEP
    return ky * K + kx if 0 <= ky < K and 0 <= kx < K else -1


@triton.jit
def depthwise_forward(
    x,
    taps,
    d,
    partial,
    weight,
    bias,
    running_mean,
    running_var,
    saved,
    rows,
    chunk,
    chunks,
    eps,
    momentum,
    images,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNKS: tl.constexpr,
    NORM: tl.constexpr,
    AFFINE: tl.constexpr,
    TRACK: tl.constexpr,
):
    """ReLU and depthwise convolution; with NORM after a batch norm, as `batch_norm_forward` computes it."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    if NORM:
        mean, var = combine_moments(partial, rows, chunk, chunks, c, C, CHUNKS)
        scale, shift = finish_moments(
            *(mean, var, weight, bias, running_mean, running_var, saved, rows, eps, momentum),
            *(c, C, AFFINE, TRACK, tl.program_id(0) == 0),
        )
    n, i, j = _locate(tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS), OH, OW, ROWS, COLUMNS)
    here = n < images
    top, left = i * STEP - K // 2, j * STEP - K // 2
    source = x + ((n * H + top) * W + left)[:, None] * STRIDE + c[None, :]
    sums = (tl.zeros([BLOCKS, CHANNELS], tl.float32),) * (ROWS * COLUMNS)
    for y in tl.static_range(STEP * (ROWS - 1) + K):
        for z in tl.static_range(STEP * (COLUMNS - 1) + K):
            mask = _mask(here, top + y, left + z, c, H, W, STRIDE)
            value = tl.load(source + (y * W + z) * STRIDE, mask, other=0.0)
            if NORM:
                value = _normalize(value, mean[None, :], scale[None, :], shift[None, :], mask)
            value = _rectify(value.to(tl.float32))
            for at in tl.static_range(ROWS * COLUMNS):
                if _tap_from(at, y, z, COLUMNS, STEP, K) >= 0:
                    factor = _factor(taps, _tap_from(at, y, z, COLUMNS, STEP, K), c, STRIDE)
                    sums = _add(sums, at, value * factor)
    target = d + ((n * OH + i) * OW + j)[:, None] * STRIDE + c[None, :]
    for row in tl.static_range(ROWS):
        for column in tl.static_range(COLUMNS):
            mask = _mask(here, i + row, j + column, c, OH, OW, STRIDE)
            result = sums[row * COLUMNS + column].to(d.dtype.element_ty)
            tl.store(target + (row * OW + column) * STRIDE, result, mask)


@triton.jit
def _load_norm(saved, weight, bias, c, C: tl.constexpr, AFFINE: tl.constexpr):
    """Means, scales and shifts of a batch norm, as rows."""
    mean = tl.load(saved + c, c < C, other=0.0)
    scale = tl.load(saved + C + c, c < C, other=0.0)
    shift = tl.zeros_like(mean)
    if AFFINE:
        scale *= tl.load(weight + c, c < C, other=0.0).to(tl.float32)
        shift = tl.load(bias + c, c < C, other=0.0).to(tl.float32)
    return mean[None, :], scale[None, :], shift[None, :]


@triton.jit
def depthwise_backward(
    dd,
    x,
    saved,
    weight,
    bias,
    taps,
    dx,
    sums,
    counters,
    partial,
    images,
    tiles,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    DX_STRIDE: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHANNELS: tl.constexpr,
    NORM: tl.constexpr,
    AFFINE: tl.constexpr,
    ADD: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Through depthwise convolution and ReLU: gradients of the inputs, with ADD added to dx, and of the weights.

    With NORM, x is what comes before a batch norm, and the gradients are those after it, with the sums that it needs.
    Sums stay with the threads over all tiles of a program. ROWS and COLUMNS are those of the input, multiples of STEP.
    """
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    if NORM:
        mean, scale, shift = _load_norm(saved, weight, bias, c, C, AFFINE)
    MIDDLE: tl.constexpr = K // 2
    FIRST: tl.constexpr = -((K - 1 - MIDDLE) // STEP)
    dweights = (tl.zeros([BLOCKS, CHANNELS], tl.float32),) * (K * K)
    total = tl.zeros([BLOCKS, CHANNELS], tl.float32)
    products = tl.zeros([BLOCKS, CHANNELS], tl.float32)
    for tile in range(tiles):
        p = (tl.program_id(0) * tiles + tile) * BLOCKS + tl.arange(0, BLOCKS)
        n, i, j = _locate(p, H, W, ROWS, COLUMNS)
        here = n < images
        pixel = ((n * H + i) * W + j)[:, None]
        values, inputs = (), ()
        for row in tl.static_range(ROWS):
            for column in tl.static_range(COLUMNS):
                mask = _mask(here, i + row, j + column, c, H, W, STRIDE)
                value = tl.load(x + (pixel + row * W + column) * STRIDE + c[None, :], mask, other=0.0)
                values += (value,)
                if NORM:
                    value = _normalize(value, mean, scale, shift, mask)
                inputs += (_rectify(value.to(tl.float32)),)
        gradients = (tl.zeros([BLOCKS, CHANNELS], tl.float32),) * (ROWS * COLUMNS)
        top, left = i // STEP, j // STEP  # of the output
        source = dd + ((n * OH + top) * OW + left)[:, None] * STRIDE + c[None, :]
        for y in tl.static_range(FIRST, (ROWS - 1 + MIDDLE) // STEP + 1):
            for z in tl.static_range(FIRST, (COLUMNS - 1 + MIDDLE) // STEP + 1):
                mask = _mask(here, top + y, left + z, c, OH, OW, STRIDE)
                outer = tl.load(source + (y * OW + z) * STRIDE, mask, other=0.0).to(tl.float32)
                for at in tl.static_range(ROWS * COLUMNS):
                    if _tap_to(at, y, z, COLUMNS, STEP, K) >= 0:
                        factor = _factor(taps, _tap_to(at, y, z, COLUMNS, STEP, K), c, STRIDE)
                        gradients = _add(gradients, at, outer * factor)
                        dweights = _add(dweights, _tap_to(at, y, z, COLUMNS, STEP, K), inputs[at] * outer)
        for row in tl.static_range(ROWS):
            for column in tl.static_range(COLUMNS):
                mask = _mask(here, i + row, j + column, c, H, W, STRIDE)
                is_positive = inputs[row * COLUMNS + column] > 0
                rounded = tl.where(is_positive, gradients[row * COLUMNS + column], 0.0).to(dx.dtype.element_ty)
                if NORM:
                    total += rounded.to(tl.float32)
                    products += rounded.to(tl.float32) * (values[row * COLUMNS + column].to(tl.float32) - mean)
                target = dx + (pixel + row * W + column) * DX_STRIDE + c[None, :]
                store(target, rounded, mask & (c < DX_STRIDE)[None, :], ADD)
    for tap in tl.static_range(K * K):
        tl.store(partial + (tl.program_id(0) * (K * K) + tap) * C + c, tl.sum(dweights[tap], 0), c < C)
    if NORM:
        store_sums(tl.sum(total, 0), tl.sum(products, 0), saved, sums, counters, c, C, GROUP)
