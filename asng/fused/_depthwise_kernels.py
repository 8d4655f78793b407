"""Triton kernels of depthwise convolutions after a ReLU, channels last, of 3x3 or 5x5 taps.

Two pixels side by side share what they load. Inputs and results have STRIDE elements for each pixel, a multiple of 8:
channels beyond C are zeros, so that loads of 16 bytes are aligned. Weights come tap by tap, as rows of STRIDE elements.
"""

import triton
import triton.language as tl


@triton.jit
def prepare(
    x,
    padded,
    total,
    depthwise1,
    depthwise2,
    taps1,
    taps2,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    PAD: tl.constexpr,
):
    """Weights of depthwise convolutions tap by tap (K * K, STRIDE), and if PAD the rectified input; zeros beyond C."""
    program = tl.program_id(0)
    GROUPS: tl.constexpr = (STRIDE + CHANNELS - 1) // CHANNELS
    if program < GROUPS:
        _transpose(depthwise1, taps1, program * CHANNELS, C, STRIDE, K1 * K1, CHANNELS)
    elif program < 2 * GROUPS:
        _transpose(depthwise2, taps2, (program - GROUPS) * CHANNELS, C, STRIDE, K2 * K2, CHANNELS)
    elif PAD:
        index = (program - 2 * GROUPS) * BLOCK + tl.arange(0, BLOCK)
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
def _load_rectified(x, mask, RELU: tl.constexpr):
    value = tl.load(x, mask, other=0.0).to(tl.float32)
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL) if RELU else value


@triton.jit
def _factor(taps, tap, c, STRIDE: tl.constexpr):
    """The weights of a tap, as a row."""
    return tl.load(taps + tap * STRIDE + c, c < STRIDE, other=0.0)[None, :]


@triton.jit
def depthwise_forward(
    x,
    taps,
    d,
    images,
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
    RELU: tl.constexpr,
):
    """ReLU and depthwise convolution: two pixels side by side for each of PIXELS, which share what they load."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    PAIRS: tl.constexpr = (OW + 1) // 2
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = p // PAIRS, p % PAIRS * 2
    top, left = row % OH * STEP - K // 2, column * STEP - K // 2
    here = row < images * OH
    source = x + ((row // OH * H + top) * W + left)[:, None] * STRIDE + c[None, :]
    sums0 = tl.zeros([PIXELS, CHANNELS], tl.float32)
    sums1 = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for ky in range(K):
        for kx in tl.static_range(K + STEP):
            h, w = top + ky, left + kx
            mask = (here & (h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None] & (c < STRIDE)[None, :]
            value = _load_rectified(source + (ky * W + kx) * STRIDE, mask, RELU)
            if kx < K:
                sums0 += value * _factor(taps, ky * K + kx, c, STRIDE)
            if kx >= STEP:
                sums1 += value * _factor(taps, ky * K + kx - STEP, c, STRIDE)
    target = d + (row * OW + column)[:, None] * STRIDE + c[None, :]
    mask = here[:, None] & (c < STRIDE)[None, :]
    tl.store(target, sums0.to(d.dtype.element_ty), mask)
    tl.store(target + STRIDE, sums1.to(d.dtype.element_ty), mask & (column + 1 < OW)[:, None])


@triton.jit
def _input_gradient(
    gradient, x, dx, mean, scale, shift, n, h, w, c, here, STRIDE, DX_STRIDE, H: tl.constexpr, W: tl.constexpr, NORM
):
    """Writes the gradient of some pixels, through ReLU; returns what they add to the sums for the batch norm before."""
    here = here & (h < H) & (w < W)
    mask = here[:, None] & (c < STRIDE)[None, :]
    pixel = ((n * H + h) * W + w)[:, None]
    value = tl.load(x + pixel * STRIDE + c[None, :], mask, other=0.0).to(tl.float32)
    before = value
    if NORM:
        before = value * scale[None, :] + shift[None, :]
    rounded = tl.where(mask & (before > 0), gradient, 0.0).to(dx.dtype.element_ty)
    tl.store(dx + pixel * DX_STRIDE + c[None, :], rounded, here[:, None] & (c < DX_STRIDE)[None, :])
    rounded = rounded.to(tl.float32)
    return rounded, rounded * (value - mean[None, :])


@triton.jit
def _add_tap(sums, outer, taps, ky: tl.constexpr, kx: tl.constexpr, c, K: tl.constexpr, STRIDE: tl.constexpr):
    if (ky >= 0) & (ky < K) & (kx >= 0) & (kx < K):
        sums += outer * _factor(taps, ky * K + kx, c, STRIDE)
    return sums


@triton.jit
def depthwise_input_gradient(
    dd,
    x,
    saved,
    weight,
    bias,
    taps,
    dx,
    sums,
    images,
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
    """Through depthwise convolution and ReLU; with NORM also the sums for the batch norm before.

    Each of PIXELS stands for STEP x 2 pixels of the input; what they share of the output's gradient is loaded once.
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
    COLUMNS: tl.constexpr = (W + 1) // 2
    ROWS: tl.constexpr = (H + STEP - 1) // STEP
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    i, j, n = (p // COLUMNS) % ROWS, p % COLUMNS, p // (COLUMNS * ROWS)
    here = n < images
    g00 = tl.zeros([PIXELS, CHANNELS], tl.float32)
    g01, g10, g11 = g00, g00, g00
    MIDDLE: tl.constexpr = K // 2
    for a in tl.static_range(-(MIDDLE // STEP), (STEP - 1 + MIDDLE) // STEP + 1):
        for b in tl.static_range(-(MIDDLE // STEP), (1 + MIDDLE) // STEP + 1):
            oh, ow = i + a, j * (2 // STEP) + b
            inside = here & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW)
            source = dd + ((n * OH + oh) * OW + ow)[:, None] * STRIDE + c[None, :]
            outer = tl.load(source, inside[:, None] & (c < STRIDE)[None, :], other=0.0).to(tl.float32)
            g00 = _add_tap(g00, outer, taps, MIDDLE - a * STEP, MIDDLE - b * STEP, c, K, STRIDE)
            g01 = _add_tap(g01, outer, taps, MIDDLE - a * STEP, MIDDLE - b * STEP + 1, c, K, STRIDE)
            if STEP == 2:
                g10 = _add_tap(g10, outer, taps, MIDDLE - a * STEP + 1, MIDDLE - b * STEP, c, K, STRIDE)
                g11 = _add_tap(g11, outer, taps, MIDDLE - a * STEP + 1, MIDDLE - b * STEP + 1, c, K, STRIDE)
    h, w = i * STEP, j * 2
    total, products = _input_gradient(g00, x, dx, mean, scale, shift, n, h, w, c, here, STRIDE, DX_STRIDE, H, W, NORM)
    t, q = _input_gradient(g01, x, dx, mean, scale, shift, n, h, w + 1, c, here, STRIDE, DX_STRIDE, H, W, NORM)
    total, products = total + t, products + q
    if STEP == 2:
        t, q = _input_gradient(g10, x, dx, mean, scale, shift, n, h + 1, w, c, here, STRIDE, DX_STRIDE, H, W, NORM)
        total, products = total + t, products + q
        t, q = _input_gradient(g11, x, dx, mean, scale, shift, n, h + 1, w + 1, c, here, STRIDE, DX_STRIDE, H, W, NORM)
        total, products = total + t, products + q
    if NORM:
        target = sums + tl.program_id(0) * 2 * C + c
        tl.store(target, tl.sum(total, 0), c < C)
        tl.store(target + C, tl.sum(products, 0) * tl.load(saved + C + c, c < C, other=0.0), c < C)


@triton.jit
def _add_to(sums0, sums1, sums2, sums3, sums4, product, index: tl.constexpr):
    """Add to one of the sums."""
    if index == 0:
        sums0 += product
    elif index == 1:
        sums1 += product
    elif index == 2:
        sums2 += product
    elif index == 3:
        sums3 += product
    else:
        sums4 += product
    return sums0, sums1, sums2, sums3, sums4


@triton.jit
def depthwise_weight_gradient(
    dd,
    x,
    partial,
    images,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STEP: tl.constexpr,
    TILES: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    RELU: tl.constexpr,
):
    """Of a row of 3 or 5 taps, by pairs of pixels of the output; the sums stay with the threads to the end."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    ky = tl.program_id(2)
    sums0 = tl.zeros([PIXELS, CHANNELS], tl.float32)
    sums1, sums2, sums3, sums4 = sums0, sums0, sums0, sums0
    PAIRS: tl.constexpr = (OW + 1) // 2
    for tile in range(TILES):
        p = (tl.program_id(0) * TILES + tile) * PIXELS + tl.arange(0, PIXELS)
        row, column = p // PAIRS, p % PAIRS * 2
        h, left = row % OH * STEP + ky - K // 2, column * STEP - K // 2
        mask = ((row < images * OH) & (h >= 0) & (h < H))[:, None] & (c < STRIDE)[None, :]
        gradients = dd + (row * OW + column)[:, None] * STRIDE + c[None, :]
        outer0 = tl.load(gradients, mask, other=0.0).to(tl.float32)
        outer1 = tl.load(gradients + STRIDE, mask & (column + 1 < OW)[:, None], other=0.0).to(tl.float32)
        source = x + ((row // OH * H + h) * W + left)[:, None] * STRIDE + c[None, :]
        for kx in tl.static_range(K + STEP):
            inside = mask & ((left + kx >= 0) & (left + kx < W))[:, None]
            value = _load_rectified(source + kx * STRIDE, inside, RELU)
            if kx < K:
                sums0, sums1, sums2, sums3, sums4 = _add_to(sums0, sums1, sums2, sums3, sums4, value * outer0, kx)
            if kx >= STEP:
                sums0, sums1, sums2, sums3, sums4 = _add_to(
                    sums0, sums1, sums2, sums3, sums4, value * outer1, kx - STEP
                )
    target = partial + (tl.program_id(0) * C + c) * (K * K) + ky * K
    tl.store(target, tl.sum(sums0, 0), c < C)
    tl.store(target + 1, tl.sum(sums1, 0), c < C)
    tl.store(target + 2, tl.sum(sums2, 0), c < C)
    if K == 5:
        tl.store(target + 3, tl.sum(sums3, 0), c < C)
        tl.store(target + 4, tl.sum(sums4, 0), c < C)
