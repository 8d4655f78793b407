"""Triton kernels of pooling over 3x3 windows with a padding of 1 and steps of 1 or 2, channels last.

A program has some rows of an image, and of each a block of elements in the order of memory: the same channel of the
pixel before is C elements before. What a row contributes is computed once for all windows that it is in.

The `zero`, which the compiler does not know, hides that elements of the same column could be loaded and stored by more
than ALIGN at once, the number for its neighbors. Otherwise each thread would have 16 bytes in a row, and threads side
by side would load from places far apart.
"""

import triton
import triton.language as tl

from asng.fused._store_kernels import store


@triton.jit(do_not_specialize=["zero"])
def avg_pool(
    x,
    y,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    ADD: tl.constexpr,
):
    """Means; with a step of 1 also the gradients of the inputs, which are means of the outputs'."""
    CHUNKS: tl.constexpr = (OH + ROWS - 1) // ROWS
    n, first = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS * ROWS
    index = tl.program_id(1) * BLOCK + zero * ALIGN + tl.arange(0, BLOCK)
    center = index
    if STEP == 2:
        center = index + index // C * C
    above = tl.zeros([BLOCK], tl.float32)
    middle = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range((ROWS - 1) * STEP + 3):
        h = first * STEP - 1 + i
        row = x + (n * H + h) * (W * C)
        inside = index < tl.where((h >= 0) & (h < H), OW * C, 0)
        below = tl.load(row + center, inside, other=0.0).to(tl.float32)
        below += tl.load(row + center - C, inside & (center >= C), other=0.0).to(tl.float32)
        below += tl.load(row + center + C, inside & (center + C < W * C), other=0.0).to(tl.float32)
        if i >= 2 and i % STEP == 0:
            oh = first + (i - 2) // STEP
            target = y + (n * OH + oh) * (OW * C) + index
            mean = (above + middle + below) * (1 / 9)
            store(target, mean, index < tl.where(oh < OH, OW * C, 0), ADD)
        above = middle
        middle = below


@triton.jit(do_not_specialize=["zero"])
def avg_pool_backward(
    dy,
    dx,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    ADD: tl.constexpr,
):
    """With a step of 2: 2x2 pixels of the input are in the windows of up to 2x2 of the output."""
    n, oh = tl.program_id(0) // OH, tl.program_id(0) % OH
    index = tl.program_id(1) * BLOCK + zero * ALIGN + tl.arange(0, BLOCK)
    inside = index < OW * C
    right = index < (OW - 1) * C
    below_length = tl.where(oh + 1 < OH, OW * C, 0)
    source = dy + (n * OH + oh) * (OW * C) + index
    value = tl.load(source, inside, other=0.0).to(tl.float32) * (1 / 9)
    value_right = tl.load(source + C, right, other=0.0).to(tl.float32) * (1 / 9)
    below = tl.load(source + OW * C, index < below_length, other=0.0).to(tl.float32) * (1 / 9)
    below_right = tl.load(source + (OW + 1) * C, index < below_length - C, other=0.0).to(tl.float32) * (1 / 9)
    column = index + index // C * C
    target = dx + (n * H + 2 * oh) * (W * C) + column
    second = inside & (column + C < W * C)
    lower = index < tl.where(2 * oh + 1 < H, OW * C, 0)
    store(target, value, inside, ADD)
    store(target + C, value + value_right, second, ADD)
    store(target + W * C, value + below, lower, ADD)
    store(target + (W + 1) * C, value + value_right + below + below_right, second & lower, ADD)


@triton.jit
def _take_better(best, tap, value, number):
    """Compare as torch does: the first of equal maxima wins, and the last NaN."""
    wins = (value > best) | (value != value)
    return tl.where(wins, value, best), tl.where(wins, number, tap)


@triton.jit(do_not_specialize=["zero"])
def max_pool(
    x,
    y,
    taps,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    SAVE: tl.constexpr,
    ADD: tl.constexpr,
):
    """Maxima, with ADD added to y, and which of the 9 pixels of its window each one is."""
    CHUNKS: tl.constexpr = (OH + ROWS - 1) // ROWS
    n, first = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS * ROWS
    index = tl.program_id(1) * BLOCK + zero * ALIGN + tl.arange(0, BLOCK)
    center = index
    if STEP == 2:
        center = index + index // C * C
    leftmost = tl.where(center < C, 1, 0)  # the first inside, where all are -inf
    lowest = tl.full([BLOCK], float("-inf"), tl.float32)
    above, tap_above, middle, tap_middle = lowest, leftmost, lowest, leftmost
    for i in tl.static_range((ROWS - 1) * STEP + 3):
        h = first * STEP - 1 + i
        row = x + (n * H + h) * (W * C)
        inside = index < tl.where((h >= 0) & (h < H), OW * C, 0)
        below, tap_below = lowest, leftmost
        for kx in tl.static_range(3):
            column = center + (kx - 1) * C
            exists = inside & (column >= 0) & (column < W * C)
            value = tl.load(row + column, exists, other=float("-inf")).to(tl.float32)
            below, tap_below = _take_better(below, tap_below, value, kx)
        if i >= 2 and i % STEP == 0:
            oh = first + (i - 2) // STEP
            best, tap = lowest, leftmost + tl.where(oh == 0, 3, 0)
            best, tap = _take_better(best, tap, above, tap_above)
            best, tap = _take_better(best, tap, middle, tap_middle + 3)
            best, tap = _take_better(best, tap, below, tap_below + 6)
            target = (n * OH + oh) * (OW * C) + index
            store(y + target, best, index < tl.where(oh < OH, OW * C, 0), ADD)
            if SAVE:
                tl.store(taps + target, tap.to(tl.uint8), index < tl.where(oh < OH, OW * C, 0))
        above, tap_above = middle, tap_middle
        middle, tap_middle = below, tap_below


@triton.jit(do_not_specialize=["zero"])
def max_pool_backward(
    dy,
    taps,
    dx,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    ADD: tl.constexpr,
):
    """With a step of 1: each row of outputs has gradients for the row above, its own and the one below."""
    CHUNKS: tl.constexpr = (H + ROWS - 1) // ROWS
    n, first = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS * ROWS
    index = tl.program_id(1) * BLOCK + zero * ALIGN + tl.arange(0, BLOCK)
    above = tl.zeros([BLOCK], tl.float32)
    middle = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(ROWS + 2):
        h = first - 1 + i
        below = tl.zeros([BLOCK], tl.float32)
        for kx in tl.static_range(3):
            column = index + (1 - kx) * C
            inside = (index < tl.where((h >= 0) & (h < H), W * C, 0)) & (column >= 0) & (column < W * C)
            source = (n * H + h) * (W * C) + column
            gradient = tl.load(dy + source, inside, other=0.0).to(tl.float32)
            tap = tl.load(taps + source, inside, other=255)
            above += tl.where(tap == kx, gradient, 0.0)
            middle += tl.where(tap == kx + 3, gradient, 0.0)
            below += tl.where(tap == kx + 6, gradient, 0.0)
        if i >= 2:
            target = dx + (n * H + h - 1) * (W * C) + index
            store(target, above, index < tl.where(h <= H, W * C, 0), ADD)
        above = middle
        middle = below


@triton.jit(do_not_specialize=["zero"])
def max_pool_backward_step2(
    dy,
    taps,
    dx,
    zero,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    ADD: tl.constexpr,
):
    """2x2 pixels of the input are in the windows of up to 2x2 of the output."""
    n, oh = tl.program_id(0) // OH, tl.program_id(0) % OH
    index = tl.program_id(1) * BLOCK + zero * ALIGN + tl.arange(0, BLOCK)
    inside = index < OW * C
    upper_left = tl.zeros([BLOCK], tl.float32)
    upper_right = tl.zeros([BLOCK], tl.float32)
    lower_left = tl.zeros([BLOCK], tl.float32)
    lower_right = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(2):
        for i in tl.static_range(2):
            exists = index < tl.where(oh + j < OH, (OW - i) * C, 0)
            source = (n * OH + oh + j) * (OW * C) + i * C + index
            gradient = tl.load(dy + source, exists, other=0.0).to(tl.float32)
            tap = tl.load(taps + source, exists, other=255)
            # In the window of an output, its own 2x2 pixels are 4, 5, 7 and 8; further ones see them more to the left.
            lower_right += tl.where(tap == 8 - 6 * j - 2 * i, gradient, 0.0)
            if j == 0:
                upper_right += tl.where(tap == 5 - 2 * i, gradient, 0.0)
            if i == 0:
                lower_left += tl.where(tap == 7 - 6 * j, gradient, 0.0)
            if i == 0 and j == 0:
                upper_left += tl.where(tap == 4, gradient, 0.0)
    column = index + index // C * C
    target = dx + (n * H + 2 * oh) * (W * C) + column
    second = inside & (column + C < W * C)
    lower = index < tl.where(2 * oh + 1 < H, OW * C, 0)
    store(target, upper_left, inside, ADD)
    store(target + C, upper_right, second, ADD)
    store(target + W * C, lower_left, lower, ADD)
    store(target + (W + 1) * C, lower_right, second & lower, ADD)
