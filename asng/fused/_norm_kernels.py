"""Triton kernels of batch norm in training mode, channels last: rows are pixels, columns are channels.

The rows are split into `chunks` chunks of `chunk` rows. Sums over all rows are taken in two steps: a kernel writes
those of each chunk, and every program of the next one adds them up for its channels, always in the same order. A row
of the input may have more elements than there are channels (`STRIDE`), and so may one of the output (`Y_STRIDE`) and
of its gradient (`DY_STRIDE`); those of all other maps are as long as those of the input.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(first, last, c, STRIDE: tl.constexpr, ROWS: tl.constexpr):
    """Offsets and mask of the rows from `first` on, `last` excluded; a row has STRIDE elements."""
    row = first + tl.arange(0, ROWS)
    return row[:, None] * STRIDE + c[None, :], (row < last)[:, None] & (c < STRIDE)[None, :]


@triton.jit
def combine_moments(partial, rows, chunk, chunks, c, C: tl.constexpr, CHUNKS: tl.constexpr):
    """Mean and biased variance of channels c from means and summed squared deviations of the chunks."""
    index = tl.arange(0, CHUNKS)
    mask = (index < chunks)[:, None] & (c < C)[None, :]
    offsets = index[:, None] * (2 * C) + c[None, :]
    means = tl.load(partial + offsets, mask, other=0.0)
    squares = tl.load(partial + offsets + C, mask, other=0.0)
    weights = tl.minimum(tl.maximum(rows - index * chunk, 0), chunk).to(tl.float32)[:, None] / rows
    mean = tl.sum(means * weights, 0)
    deviations = means - mean[None, :]
    return mean, tl.sum(squares, 0) / rows + tl.sum(deviations * deviations * weights, 0)


@triton.jit
def finish_moments(
    mean,
    var,
    weight,
    bias,
    running_mean,
    running_var,
    saved,
    rows,
    eps,
    momentum,
    c,
    C: tl.constexpr,
    AFFINE: tl.constexpr,
    TRACK: tl.constexpr,
    first,
):
    """Scale and shift of centered values; the first program also saves the moments and updates the running ones."""
    rstd = 1 / tl.sqrt(var + eps)
    if first:
        tl.store(saved + c, mean, c < C)
        tl.store(saved + C + c, rstd, c < C)
        if TRACK:
            old_mean = tl.load(running_mean + c, c < C, other=0.0).to(tl.float32)
            old_var = tl.load(running_var + c, c < C, other=0.0).to(tl.float32)
            unbiased = var * (rows.to(tl.float32) / (rows - 1))
            tl.store(running_mean + c, old_mean + momentum * (mean - old_mean), c < C)
            tl.store(running_var + c, old_var + momentum * (unbiased - old_var), c < C)
    scale = rstd
    shift = tl.zeros_like(mean)
    if AFFINE:
        scale = rstd * tl.load(weight + c, c < C, other=0.0).to(tl.float32)
        shift = tl.load(bias + c, c < C, other=0.0).to(tl.float32)
    return scale, shift


@triton.jit
def combine_sums(partial, chunks, c, C: tl.constexpr, CHUNKS: tl.constexpr):
    """Two sums of channels c from those of the chunks."""
    index = tl.arange(0, CHUNKS)
    mask = (index < chunks)[:, None] & (c < C)[None, :]
    offsets = index[:, None] * (2 * C) + c[None, :]
    return tl.sum(tl.load(partial + offsets, mask, other=0.0), 0), tl.sum(
        tl.load(partial + offsets + C, mask, other=0.0), 0
    )


@triton.jit
def write_merged_moments(partial, target, first, rows, chunk, chunks, c, C: tl.constexpr, CHUNKS: tl.constexpr):
    """Write the moments of up to CHUNKS chunks, from the first on, as those of a single one."""
    rows = tl.minimum(rows - first * chunk, CHUNKS * chunk)
    mean, var = combine_moments(partial + first * 2 * C, rows, chunk, chunks - first, c, C, CHUNKS)
    tl.store(target + c, mean, c < C)
    tl.store(target + C + c, var * rows, c < C)


@triton.jit
def write_merged_sums(partial, target, first, chunks, c, C: tl.constexpr, CHUNKS: tl.constexpr):
    """The same of two sums."""
    total, product = combine_sums(partial + first * 2 * C, chunks - first, c, C, CHUNKS)
    tl.store(target + c, total, c < C)
    tl.store(target + C + c, product, c < C)


@triton.jit
def is_last(counters, GROUP: tl.constexpr):
    """Whether a program is the last one of GROUP neighbors to come here: it sees what all of them have stored.

    Counters are zero before and after.
    """
    group = tl.program_id(0) // GROUP
    counter = counters + group * tl.num_programs(1) + tl.program_id(1)
    tl.debug_barrier()  # behind the stores of all threads
    last = tl.atomic_add(counter, 1) == tl.minimum(tl.num_programs(0) - group * GROUP, GROUP) - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def merged_row(partial, C: tl.constexpr, GROUP: tl.constexpr):
    """Where the merged numbers of a program's group are: behind those of all programs."""
    return partial + (tl.num_programs(0) + tl.program_id(0) // GROUP) * 2 * C


@triton.jit
def store_sums(total, product, saved, partial, counters, c, C: tl.constexpr, GROUP: tl.constexpr):
    """Write the sums of a program for the gradient of a batch norm; the last one of GROUP merges those of all.

    A kernel of its own would take longer for that, mostly to begin.
    """
    target = partial + tl.program_id(0) * 2 * C + c
    tl.store(target, total, c < C)
    tl.store(target + C, product * tl.load(saved + C + c, c < C, other=0.0), c < C)
    if GROUP > 1:  # noqa: SIM102 (Triton has no `and` of constants and tensors)
        if is_last(counters, GROUP):
            first = tl.program_id(0) // GROUP * GROUP
            row = merged_row(partial, C, GROUP)
            write_merged_sums(partial, row, first, tl.num_programs(0), c, C, GROUP)


@triton.jit
def batch_norm_moments(
    x,
    partial,
    rows,
    chunk,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Mean and summed squared deviations of each chunk."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    start = tl.program_id(0) * chunk
    stop = tl.minimum(start + chunk, rows)
    # Deviations from the first row: squares of the values themselves would cancel.
    center = tl.load(x + start * STRIDE + c, c < C, other=0.0).to(tl.float32)
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    squares = tl.zeros([ROWS, CHANNELS], tl.float32)
    for tile in range(TILES):
        offsets, mask = _tile(start + tile * ROWS, stop, c, STRIDE, ROWS)
        value = tl.load(x + offsets, mask, other=0.0).to(tl.float32)
        deviation = tl.where(mask & (c < C)[None, :], value - center[None, :], 0.0)
        sums += deviation
        squares += deviation * deviation
    total = tl.sum(sums, 0)
    shift = total / (stop - start)
    target = partial + tl.program_id(0) * 2 * C + c
    tl.store(target, center + shift, c < C)
    tl.store(target + C, tl.maximum(tl.sum(squares, 0) - shift * total, 0.0), c < C)


@triton.jit
def batch_norm_forward(
    x,
    add,
    partial,
    weight,
    bias,
    running_mean,
    running_var,
    saved,
    y,
    rows,
    chunk,
    chunks,
    eps,
    momentum,
    span,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNKS: tl.constexpr,
    AFFINE: tl.constexpr,
    TRACK: tl.constexpr,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
):
    """Normalize, scale, shift, add, rectify `span` rows; the first programs also update the running statistics."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mean, var = combine_moments(partial, rows, chunk, chunks, c, C, CHUNKS)
    first = tl.program_id(0) == 0
    scale, shift = finish_moments(
        mean, var, weight, bias, running_mean, running_var, saved, rows, eps, momentum, c, C, AFFINE, TRACK, first
    )
    start = tl.program_id(0) * span
    stop = tl.minimum(start + span, rows)
    for tile in range(TILES):
        offsets, mask = _tile(start + tile * ROWS, stop, c, STRIDE, ROWS)
        value = tl.load(x + offsets, mask, other=0.0).to(tl.float32)
        offsets, mask = _tile(start + tile * ROWS, stop, c, Y_STRIDE, ROWS)
        value = (value - mean[None, :]) * scale[None, :] + shift[None, :]
        if ADD:
            value += tl.load(add + offsets, mask, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)  # NaN stays
        tl.store(y + offsets, value.to(y.dtype.element_ty), mask)


@triton.jit
def batch_norm_gradient_sums(
    dy,
    x,
    y,
    saved,
    partial,
    counters,
    rows,
    chunk,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    DY_STRIDE: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    RELU: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Of each chunk the sums of the gradients, and of their products with the normalized values."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mean = tl.load(saved + c, c < C, other=0.0)
    start = tl.program_id(0) * chunk
    stop = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    products = tl.zeros([ROWS, CHANNELS], tl.float32)
    for tile in range(TILES):
        offsets, mask = _tile(start + tile * ROWS, stop, c, DY_STRIDE, ROWS)
        gradient = tl.load(dy + offsets, mask, other=0.0).to(tl.float32)
        if RELU:
            gradient = tl.where(tl.load(y + offsets, mask, other=0.0) > 0, gradient, 0.0)
        offsets, mask = _tile(start + tile * ROWS, stop, c, STRIDE, ROWS)
        value = tl.load(x + offsets, mask, other=0.0).to(tl.float32)
        sums += gradient
        products += gradient * (value - mean[None, :])
    store_sums(tl.sum(sums, 0), tl.sum(products, 0), saved, partial, counters, c, C, GROUP)


@triton.jit
def batch_norm_backward(
    dy,
    x,
    y,
    saved,
    partial,
    weight,
    dx,
    dadd,
    dweight,
    dbias,
    rows,
    chunk,
    chunks,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNKS: tl.constexpr,
    AFFINE: tl.constexpr,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
):
    """Gradients of the input and, where it was rectified, of what was added; the first chunk's: of the weights."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total, product = combine_sums(partial, chunks, c, C, CHUNKS)
    mean = tl.load(saved + c, c < C, other=0.0)
    rstd = tl.load(saved + C + c, c < C, other=0.0)
    scale = rstd
    if AFFINE:
        scale = rstd * tl.load(weight + c, c < C, other=0.0).to(tl.float32)
        if tl.program_id(0) == 0:
            tl.store(dweight + c, product, c < C)
            tl.store(dbias + c, total, c < C)
    # dx = scale * (gradient - mean of gradients - normalized * mean of products)
    slope = rstd * product / rows
    offset = total / rows - mean * slope
    start = tl.program_id(0) * chunk
    stop = tl.minimum(start + chunk, rows)
    for tile in range(TILES):
        offsets, mask = _tile(start + tile * ROWS, stop, c, STRIDE, ROWS)
        gradient = tl.load(dy + offsets, mask, other=0.0)
        if RELU:
            gradient = tl.where(tl.load(y + offsets, mask, other=0.0) > 0, gradient, 0.0).to(dy.dtype.element_ty)
            if ADD:
                tl.store(dadd + offsets, gradient, mask)
        value = tl.load(x + offsets, mask, other=0.0).to(tl.float32)
        result = scale[None, :] * (gradient.to(tl.float32) - offset[None, :] - value * slope[None, :])
        tl.store(dx + offsets, result.to(dx.dtype.element_ty), mask)
