"""Triton kernels of maps: rectified side by side, where the second index of a program is that of the map, and summed
with a factor for each image, where it is that of the image.

Triton has no lists of pointers, hence their names.
"""

import triton
import triton.language as tl


@triton.jit
def _offsets(index, C: tl.constexpr, COUNT: tl.constexpr):
    """Offsets of the numbers of one map among those of all."""
    return index // C * (COUNT * C) + tl.program_id(1) * C + index % C


@triton.jit
def _copy_rectified(x, y, index, mask, C: tl.constexpr, COUNT: tl.constexpr):
    value = tl.load(x + index, mask, other=0.0).to(tl.float32)
    tl.store(y + _offsets(index, C, COUNT), tl.where(value < 0, 0.0, value).to(y.dtype.element_ty), mask)


@triton.jit
def concat_relu(x0, x1, x2, x3, x4, y, numbers, C: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number, mask = tl.program_id(1), index < numbers
    if number == 0:
        _copy_rectified(x0, y, index, mask, C, COUNT)
    elif number == 1:
        _copy_rectified(x1, y, index, mask, C, COUNT)
    elif number == 2:
        _copy_rectified(x2, y, index, mask, C, COUNT)
    elif number == 3:
        _copy_rectified(x3, y, index, mask, C, COUNT)
    else:
        _copy_rectified(x4, y, index, mask, C, COUNT)


@triton.jit
def concat_relu_backward(
    dy, y, dx0, dx1, dx2, dx3, dx4, numbers, C: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number, mask = tl.program_id(1), index < numbers
    offsets = _offsets(index, C, COUNT)
    value = tl.load(y + offsets, mask, other=0.0).to(tl.float32)
    gradient = tl.load(dy + offsets, mask, other=0.0).to(tl.float32)
    gradient = tl.where(value <= 0, 0.0, gradient).to(dx0.dtype.element_ty)
    if number == 0:
        tl.store(dx0 + index, gradient, mask)
    elif number == 1:
        tl.store(dx1 + index, gradient, mask)
    elif number == 2:
        tl.store(dx2 + index, gradient, mask)
    elif number == 3:
        tl.store(dx3 + index, gradient, mask)
    else:
        tl.store(dx4 + index, gradient, mask)


@triton.jit
def scaled_sum(
    a, b, scale_a, scale_b, y, NUMBERS: tl.constexpr, BLOCK: tl.constexpr, HAS_A: tl.constexpr, HAS_B: tl.constexpr
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < NUMBERS
    offsets = tl.program_id(1) * NUMBERS + index
    left = tl.load(a + offsets, mask, other=0.0).to(tl.float32)
    right = tl.load(b + offsets, mask, other=0.0).to(tl.float32)
    if HAS_A:
        left *= tl.load(scale_a + tl.program_id(1)).to(tl.float32)
    if HAS_B:
        right *= tl.load(scale_b + tl.program_id(1)).to(tl.float32)
    tl.store(y + offsets, (left + right).to(y.dtype.element_ty), mask)


@triton.jit
def scaled_sum_backward(
    dy, scale_a, scale_b, da, db, NUMBERS: tl.constexpr, BLOCK: tl.constexpr, HAS_A: tl.constexpr, HAS_B: tl.constexpr
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < NUMBERS
    offsets = tl.program_id(1) * NUMBERS + index
    gradient = tl.load(dy + offsets, mask, other=0.0).to(tl.float32)
    if HAS_A:
        scaled = gradient * tl.load(scale_a + tl.program_id(1)).to(tl.float32)
        tl.store(da + offsets, scaled.to(da.dtype.element_ty), mask)
    if HAS_B:
        scaled = gradient * tl.load(scale_b + tl.program_id(1)).to(tl.float32)
        tl.store(db + offsets, scaled.to(db.dtype.element_ty), mask)
