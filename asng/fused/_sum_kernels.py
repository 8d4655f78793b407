"""Triton kernels of sums with a factor for each image; the second index of a program is that of the image."""

import triton
import triton.language as tl


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
