"""Triton kernels of sums of maps: of several ones, and of two with a factor for each image; of weights of maps."""

import triton
import triton.language as tl


@triton.jit
def _add(total, x, index, mask):
    return total + tl.load(x + index, mask, other=0.0).to(tl.float32)


@triton.jit
def add_up(x0, x1, x2, x3, x4, x5, y, numbers, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of COUNT maps; Triton has no lists of pointers."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < numbers
    total = tl.load(x0 + index, mask, other=0.0).to(tl.float32)
    total = _add(total, x1, index, mask)
    if COUNT > 2:
        total = _add(total, x2, index, mask)
    if COUNT > 3:
        total = _add(total, x3, index, mask)
    if COUNT > 4:
        total = _add(total, x4, index, mask)
    if COUNT > 5:
        total = _add(total, x5, index, mask)
    tl.store(y + index, total.to(y.dtype.element_ty), mask)


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


@triton.jit
def clear_used(
    n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, weight, result, numbers, COLUMNS: tl.constexpr, FIRST: tl.constexpr,
    MAPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Weights (out, COLUMNS), with zeros in the columns of the maps n0 to n9, of which the first is FIRST."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = FIRST + index % COLUMNS // (COLUMNS // MAPS)
    is_used = (number == tl.load(n0)) | (number == tl.load(n1)) | (number == tl.load(n2)) | (number == tl.load(n3))
    is_used |= (number == tl.load(n4)) | (number == tl.load(n5)) | (number == tl.load(n6)) | (number == tl.load(n7))
    is_used |= (number == tl.load(n8)) | (number == tl.load(n9))
    value = tl.load(weight + index, (index < numbers) & ~is_used, other=0.0)
    tl.store(result + index, value, index < numbers)
