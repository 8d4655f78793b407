"""Triton kernels of convolutions whose sizes, strides and weights are numbers in device memory.

A convolution has a small side, (n, h, w, a), and a large one, (n, stride h, stride w, b): `to_small` leads from the
large to the small one, as a convolution does, and `to_large` back, as its gradient or a transposed convolution does.
The weight is (a, k, k, b) in memory, the padding k // 2. One row of `geometry` says what a launch computes; launches of
rows that are not active end at once. In memory a pixel has channels of zeros up to the next multiple of a block, so
that loads are wide and need no masks.
"""

import triton
import triton.language as tl

# Fields of a row.
ACTIVE = tl.constexpr(0)
SMALL_HEIGHT = tl.constexpr(1)
SMALL_WIDTH = tl.constexpr(2)
SMALL_CHANNELS = tl.constexpr(3)
LARGE_HEIGHT = tl.constexpr(4)
LARGE_WIDTH = tl.constexpr(5)
LARGE_CHANNELS = tl.constexpr(6)
KERNEL = tl.constexpr(7)
STRIDE = tl.constexpr(8)
WEIGHT = tl.constexpr(9)  # its row in the table of addresses
WEIGHT_CHANNELS = tl.constexpr(10)  # b of the whole weight
SMALL_SLOT = tl.constexpr(11)  # the slots of both sides
LARGE_SLOT = tl.constexpr(12)
ADDED = tl.constexpr(13)  # the slot of what is added to the output, or -1
ADDED_GRADIENT = tl.constexpr(14)  # the slot of what is added to the gradient of the input, or -1
HAS_GRADIENT = tl.constexpr(15)  # 1 if the gradient of the input is needed


@triton.jit
def _weight(geometry, weights, like, column: tl.constexpr, ALIGNED: tl.constexpr):
    """The address of a weight or of its gradient, and the numbers in its last axis."""
    address = tl.load(weights + 2 * tl.load(geometry + WEIGHT) + column).to(tl.pointer_type(like.dtype.element_ty))
    channels = tl.load(geometry + WEIGHT_CHANNELS)
    if ALIGNED:
        address, channels = tl.multiple_of(address, 16), tl.multiple_of(channels, 16)
    return address, channels


@triton.jit
def _finish(
    accumulated, slots, activation, offsets, mask, added_slot, own_slot, slot_size,
    BACKWARD: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Add, rectify or mask by the activation, and store."""
    if added_slot >= 0:
        added = tl.load(slots + added_slot.to(tl.int64) * slot_size + offsets, mask=mask, other=0.0)
        accumulated += added.to(tl.float32)
    if BACKWARD:
        alive = tl.load(activation + own_slot.to(tl.int64) * slot_size + offsets, mask=mask, other=0.0) > 0
        accumulated = tl.where(alive, accumulated, 0.0)
    elif RELU:
        accumulated = tl.maximum(accumulated, 0.0, propagate_nan=tl.PropagateNan.ALL)
    stored = accumulated.to(slots.dtype.element_ty)
    tl.store(slots + own_slot.to(tl.int64) * slot_size + offsets, stored, mask=mask)


@triton.jit
def to_small(
    geometry, weights, slots, activation, images, slot_size,
    BACKWARD: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr, ALIGNED: tl.constexpr,
    PIXELS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Small side = weight * large side."""
    if tl.load(geometry + (HAS_GRADIENT if BACKWARD else ACTIVE)) == 0:
        return
    height, width = tl.load(geometry + SMALL_HEIGHT), tl.load(geometry + SMALL_WIDTH)
    outputs, inputs = tl.load(geometry + SMALL_CHANNELS), tl.load(geometry + LARGE_CHANNELS)
    pixels = images * height * width
    if (tl.program_id(0) * PIXELS >= pixels) or (tl.program_id(1) * OUTPUTS >= outputs):
        return
    large_height, large_width = tl.load(geometry + LARGE_HEIGHT), tl.load(geometry + LARGE_WIDTH)
    kernel, stride = tl.load(geometry + KERNEL), tl.load(geometry + STRIDE)
    weight, weight_channels = _weight(geometry, weights, slots, 0, ALIGNED)
    blocks = tl.cdiv(inputs, INPUTS)
    padded_outputs, padded_inputs = tl.cdiv(outputs, INPUTS) * INPUTS, blocks * INPUTS
    source = slots + tl.load(geometry + LARGE_SLOT).to(tl.int64) * slot_size

    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    image, within = pixel // (height * width), pixel % (height * width)
    top = within // width * stride - kernel // 2
    left = within % width * stride - kernel // 2
    is_pixel, is_output = pixel < pixels, output < outputs
    rows = output * (kernel * kernel * weight_channels)
    accumulated = tl.zeros((PIXELS, OUTPUTS), tl.float32)
    for step in range(0, kernel * kernel * blocks):
        tap = step // blocks
        channel = step % blocks * INPUTS + tl.arange(0, INPUTS)
        y, x = top + tap // kernel, left + tap % kernel
        inside = is_pixel & (y >= 0) & (y < large_height) & (x >= 0) & (x < large_width)
        at = ((image * large_height + y) * large_width + x) * padded_inputs
        values = tl.load(source + at[:, None] + channel[None, :], mask=inside[:, None], other=0.0)
        factors = tl.load(
            weight + rows[None, :] + (tap * weight_channels + channel)[:, None],
            mask=is_output[None, :] & (channel < weight_channels)[:, None],
            other=0.0,
        )
        accumulated = tl.dot(values, factors, accumulated, input_precision=PRECISION)
    offsets = pixel[:, None] * padded_outputs + output[None, :]
    mask = is_pixel[:, None] & (output < padded_outputs)[None, :]
    added_slot = tl.load(geometry + (ADDED_GRADIENT if BACKWARD else ADDED))
    _finish(
        accumulated, slots, activation, offsets, mask, added_slot,
        tl.load(geometry + SMALL_SLOT), slot_size, BACKWARD, RELU,
    )  # fmt: skip


@triton.jit
def to_large(
    geometry, weights, slots, activation, images, slot_size,
    BACKWARD: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr, ALIGNED: tl.constexpr,
    PIXELS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Large side = transposed weight * small side.

    With a stride of 2 a pixel sees every other row and column of the kernel, by its phase in a 2x2 block. A program has
    pixels of one phase alone.
    """
    if tl.load(geometry + (HAS_GRADIENT if BACKWARD else ACTIVE)) == 0:
        return
    height, width = tl.load(geometry + LARGE_HEIGHT), tl.load(geometry + LARGE_WIDTH)
    outputs, inputs = tl.load(geometry + LARGE_CHANNELS), tl.load(geometry + SMALL_CHANNELS)
    kernel, stride = tl.load(geometry + KERNEL), tl.load(geometry + STRIDE)
    rows_of_phase, columns_of_phase = tl.cdiv(height, stride), tl.cdiv(width, stride)
    pixels = images * rows_of_phase * columns_of_phase
    programs = tl.cdiv(pixels, PIXELS)
    phase = tl.program_id(0) // programs
    if (phase >= stride * stride) or (tl.program_id(1) * OUTPUTS >= outputs):
        return
    small_height, small_width = tl.load(geometry + SMALL_HEIGHT), tl.load(geometry + SMALL_WIDTH)
    weight, weight_channels = _weight(geometry, weights, slots, 0, ALIGNED)
    blocks = tl.cdiv(inputs, INPUTS)
    padded_outputs, padded_inputs = tl.cdiv(outputs, INPUTS) * INPUTS, blocks * INPUTS
    source = slots + tl.load(geometry + SMALL_SLOT).to(tl.int64) * slot_size

    pixel = tl.program_id(0) % programs * PIXELS + tl.arange(0, PIXELS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    image, within = pixel // (rows_of_phase * columns_of_phase), pixel % (rows_of_phase * columns_of_phase)
    y = within // columns_of_phase * stride + phase // stride
    x = within % columns_of_phase * stride + phase % stride
    is_pixel, is_output = (pixel < pixels) & (y < height) & (x < width), output < outputs
    padding = kernel // 2
    first_row, first_column = (phase // stride + padding) % stride, (phase % stride + padding) % stride
    row_taps = tl.cdiv(tl.maximum(kernel - first_row, 0), stride)
    column_taps = tl.cdiv(tl.maximum(kernel - first_column, 0), stride)
    accumulated = tl.zeros((PIXELS, OUTPUTS), tl.float32)
    for step in range(0, row_taps * column_taps * blocks):
        tap = step // blocks
        channel = step % blocks * INPUTS + tl.arange(0, INPUTS)
        row, column = first_row + tap // column_taps * stride, first_column + tap % column_taps * stride
        small_y, small_x = (y + padding - row) // stride, (x + padding - column) // stride
        inside = is_pixel & (y + padding >= row) & (small_y < small_height)
        inside &= (x + padding >= column) & (small_x < small_width)
        at = ((image * small_height + small_y) * small_width + small_x) * padded_inputs
        values = tl.load(source + at[:, None] + channel[None, :], mask=inside[:, None], other=0.0)
        factors = tl.load(
            weight + ((channel * kernel + row) * kernel + column)[:, None] * weight_channels + output[None, :],
            mask=(channel < inputs)[:, None] & (output < weight_channels)[None, :],
            other=0.0,
        )
        accumulated = tl.dot(values, factors, accumulated, input_precision=PRECISION)
    accumulated = tl.where(is_output[None, :], accumulated, 0.0)
    offsets = ((image * height + y) * width + x)[:, None] * padded_outputs + output[None, :]
    mask = is_pixel[:, None] & (output < padded_outputs)[None, :]
    added_slot = tl.load(geometry + (ADDED_GRADIENT if BACKWARD else ADDED))
    _finish(
        accumulated, slots, activation, offsets, mask, added_slot,
        tl.load(geometry + LARGE_SLOT), slot_size, BACKWARD, RELU,
    )  # fmt: skip


@triton.jit
def sum_products(
    geometry, small, large, partial, images, slot_size, partial_size,
    PARTS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The weight's gradient over one part of the pixels, for one element of the kernel."""
    tap = tl.program_id(1)
    kernel = tl.load(geometry + KERNEL)
    if (tl.load(geometry + ACTIVE) == 0) or (tap >= kernel * kernel):
        return
    rows, columns = tl.load(geometry + SMALL_CHANNELS), tl.load(geometry + LARGE_CHANNELS)
    column_blocks = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) // column_blocks * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % column_blocks * COLUMNS + tl.arange(0, COLUMNS)
    height, width = tl.load(geometry + SMALL_HEIGHT), tl.load(geometry + SMALL_WIDTH)
    pixels = images * height * width
    size = tl.cdiv(tl.cdiv(pixels, PIXELS), PARTS) * PIXELS
    start = tl.program_id(2) * size
    if (tl.program_id(0) // column_blocks * ROWS >= rows) or (start >= pixels):
        return
    large_height, large_width = tl.load(geometry + LARGE_HEIGHT), tl.load(geometry + LARGE_WIDTH)
    stride = tl.load(geometry + STRIDE)
    small += tl.load(geometry + SMALL_SLOT).to(tl.int64) * slot_size
    large += tl.load(geometry + LARGE_SLOT).to(tl.int64) * slot_size
    padded_rows, padded_columns = tl.cdiv(rows, BLOCK) * BLOCK, tl.cdiv(columns, BLOCK) * BLOCK
    is_row, is_column = row < padded_rows, column < padded_columns
    accumulated = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(start, tl.minimum(start + size, pixels), PIXELS):
        pixel = first + tl.arange(0, PIXELS)
        image, within = pixel // (height * width), pixel % (height * width)
        y = within // width * stride - kernel // 2 + tap // kernel
        x = within % width * stride - kernel // 2 + tap % kernel
        is_pixel = pixel < pixels
        inside = is_pixel & (y >= 0) & (y < large_height) & (x >= 0) & (x < large_width)
        at = ((image * large_height + y) * large_width + x) * padded_columns
        left = tl.load(
            small + pixel[None, :] * padded_rows + row[:, None], mask=is_row[:, None] & is_pixel[None, :], other=0.0
        )
        right = tl.load(large + at[:, None] + column[None, :], mask=inside[:, None] & is_column[None, :], other=0.0)
        accumulated = tl.dot(left, right, accumulated, input_precision=PRECISION)
    weight_channels = tl.load(geometry + WEIGHT_CHANNELS)
    at = (row[:, None] * kernel * kernel + tap) * weight_channels + column[None, :]
    target = partial + tl.program_id(2).to(tl.int64) * partial_size
    tl.store(target + at, accumulated, mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit
def add_parts(
    geometry, weights, partial, like, images, partial_size,
    PARTS: tl.constexpr, PIXELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """Add the parts of a weight's gradient, always in the same order, to the gradient, whose type is that of `like`."""
    if tl.load(geometry + ACTIVE) == 0:
        return
    kernel, weight_channels = tl.load(geometry + KERNEL), tl.load(geometry + WEIGHT_CHANNELS)
    number = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    size = tl.load(geometry + SMALL_CHANNELS) * kernel * kernel * weight_channels
    if tl.program_id(0) * NUMBERS >= size:
        return
    is_used = (number < size) & (number % weight_channels < tl.load(geometry + LARGE_CHANNELS))
    pixels = images * tl.load(geometry + SMALL_HEIGHT) * tl.load(geometry + SMALL_WIDTH)
    parts = tl.cdiv(pixels, tl.cdiv(tl.cdiv(pixels, PIXELS), PARTS) * PIXELS)
    gradient, _ = _weight(geometry, weights, like, 1, False)
    total = tl.load(gradient + number, mask=is_used, other=0.0).to(tl.float32)
    at = partial + number
    for _ in range(0, parts):
        total += tl.load(at, mask=is_used, other=0.0)
        at += partial_size
    tl.store(gradient + number, total.to(gradient.dtype.element_ty), mask=is_used)
