"""The store of all Triton kernels whose results may be added to what is there."""

import triton
import triton.language as tl


@triton.jit
def store(target, value, mask, ADD: tl.constexpr):
    """Store a value, or with ADD add it, rounded as if it were stored before."""
    rounded = value.to(target.dtype.element_ty)
    if ADD:
        before = tl.load(target, mask, other=0.0).to(tl.float32)
        rounded = (before + rounded.to(tl.float32)).to(target.dtype.element_ty)
    tl.store(target, rounded, mask)
