"""Triton kernels of pooling over square windows, channels last.

A program takes a block of elements in the order of memory; sizes are constants, so that the compiler divides by
multiplying and loads 16 bytes at once where the number of channels allows it. Results are stored in the same portions:
the `zero`, which the compiler does not know, hides that more could be stored at once. Otherwise it would give each
thread 16 bytes in a row, and threads side by side would load from places far apart.
"""

import triton
import triton.language as tl


@triton.jit
def _split(index, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """Image, row, column and channel of an element."""
    pixel = index // C
    row = pixel // W
    return row // H, row % H, pixel % W, index % C


@triton.jit(do_not_specialize=["zero"])
def avg_pool_forward(
    x,
    y,
    total,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, oh, ow, c = _split(index, C, OH, OW)
    top, left = oh * STRIDE - PADDING, ow * STRIDE - PADDING
    source = x + ((n * H + top) * W + left) * C + c
    sums = tl.zeros([BLOCK], tl.float32)
    for ky in tl.static_range(K):
        for kx in tl.static_range(K):
            h, w = top + ky, left + kx
            inside = (index < total) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            sums += tl.load(source + (ky * W + kx) * C, inside, other=0.0).to(tl.float32)
    tl.store(y + zero * ALIGN + index, (sums / (K * K)).to(y.dtype.element_ty), index < total)


@triton.jit(do_not_specialize=["zero"])
def avg_pool_backward(
    dy,
    dx,
    total,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Each element of the input gathers the gradients of the windows that hold it."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, h, w, c = _split(index, C, H, W)
    sums = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range((K + STRIDE - 1) // STRIDE):
        for i in tl.static_range((K + STRIDE - 1) // STRIDE):
            oh, ow = (h + PADDING) // STRIDE - j, (w + PADDING) // STRIDE - i
            ky, kx = h + PADDING - oh * STRIDE, w + PADDING - ow * STRIDE  # where in the window
            inside = (index < total) & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW) & (ky < K) & (kx < K)
            sums += tl.load(dy + ((n * OH + oh) * OW + ow) * C + c, inside, other=0.0).to(tl.float32)
    tl.store(dx + zero * ALIGN + index, (sums / (K * K)).to(dx.dtype.element_ty), index < total)


@triton.jit(do_not_specialize=["zero"])
def max_pool_forward(
    x,
    y,
    taps,
    total,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    SAVE: tl.constexpr,
):
    """As torch: the first of equal maxima, in the order of rows; the last NaN, if there is one."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, oh, ow, c = _split(index, C, OH, OW)
    top, left = oh * STRIDE - PADDING, ow * STRIDE - PADDING
    source = x + ((n * H + top) * W + left) * C + c
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    tap = tl.maximum(-top, 0) * K + tl.maximum(-left, 0)  # the first one inside, where all are -inf
    for ky in tl.static_range(K):
        for kx in tl.static_range(K):
            h, w = top + ky, left + kx
            inside = (index < total) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            value = tl.load(source + (ky * W + kx) * C, inside, other=float("-inf")).to(tl.float32)
            wins = (value > best) | (value != value)
            best = tl.where(wins, value, best)
            tap = tl.where(wins, ky * K + kx, tap)
    tl.store(y + zero * ALIGN + index, best.to(y.dtype.element_ty), index < total)
    if SAVE:
        tl.store(taps + zero * ALIGN + index, tap.to(tl.uint8), index < total)


@triton.jit(do_not_specialize=["zero"])
def max_pool_backward(
    dy,
    taps,
    dx,
    total,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Each element of the input gathers the gradients of the windows that it won."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, h, w, c = _split(index, C, H, W)
    sums = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range((K + STRIDE - 1) // STRIDE):
        for i in tl.static_range((K + STRIDE - 1) // STRIDE):
            oh, ow = (h + PADDING) // STRIDE - j, (w + PADDING) // STRIDE - i
            ky, kx = h + PADDING - oh * STRIDE, w + PADDING - ow * STRIDE
            inside = (index < total) & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW) & (ky < K) & (kx < K)
            source = ((n * OH + oh) * OW + ow) * C + c
            gradient = tl.load(dy + source, inside, other=0.0).to(tl.float32)
            won = tl.load(taps + source, inside, other=255).to(tl.int32) == ky * K + kx
            sums += tl.where(won, gradient, 0.0)
    tl.store(dx + zero * ALIGN + index, sums.to(dx.dtype.element_ty), index < total)
