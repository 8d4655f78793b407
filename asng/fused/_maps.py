"""Maps with several users, sums of maps, each image with a factor, and weights of some maps: one kernel each way."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asng.fused._dispatch import device_of, empty_rows, is_supported, row_of, to_rows, widen

MAX_TERMS = 6  # of a sum
MAX_USED = 10
BLOCK = 2048  # elements of a program


def fan_out(x: Tensor, number: int) -> Sequence[Tensor]:
    """Return a tensor several times; one kernel adds up the gradients of all uses.

    All share their memory, so in-place operations, such as `torch.nn.ReLU(inplace=True)`, are not allowed.

    Args:
        x: (n, c, h, w); kernels take it channels last on CUDA.
        number: The number of uses.

    Returns:
        The tensor for each use.

    >>> x = torch.ones(2, 4, 8, 8, requires_grad=True)
    >>> sum(fan_out(x, 3)).sum().backward()
    >>> x.grad[0, 0, 0, 0]
    tensor(3.)
    """
    if number > 1 and x.requires_grad and torch.is_grad_enabled() and is_supported(x):
        return _FanOut.apply(x, number)  # type: ignore[no-any-return, no-untyped-call]
    return [x] * number


class _FanOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.row = x.shape, row_of(x)
        return tuple(x.detach() for _ in range(number))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        from asng.fused import _maps_kernels as kernels

        terms = [to_rows(gradient, ctx.row) for gradient in gradients if gradient is not None]
        while len(terms) > 1:
            some, terms = terms[:MAX_TERMS], terms[MAX_TERMS:]
            total, numbers = empty_rows(ctx.shape, some[0], ctx.row), ctx.row * (some[0].numel() // ctx.shape[1])
            padded = [*some, *some[:1] * (MAX_TERMS - len(some))]
            with device_of(total):
                kernels.add_up[(-(-numbers // BLOCK),)](*padded, total, numbers, len(some), BLOCK, num_warps=8)
            terms = [total, *terms]
        return (terms[0] if terms else None), None


def first_channels(x: Tensor, channels: int) -> Tensor:
    """Those of a map, as rows in its memory, without a copy either way: the gradient of all others means nothing."""
    return _FirstChannels.apply(x, channels)  # type: ignore[no-any-return, no-untyped-call]


class _FirstChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, channels: int) -> Tensor:
        ctx.row = x.shape[1]
        return x.detach()[:, :channels]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return widen(to_rows(gradient, ctx.row)), None


def keep_unused(weight: Tensor, used: Sequence[Tensor], first: int, maps: int) -> Tensor:
    """The weight of a 1x1 convolution of maps side by side, with zeros for the maps that are used elsewhere.

    Args:
        weight: (out, maps * in, 1, 1), where kernels can be launched.
        used: Up to ten int32 scalars there: the numbers of what is used, some of which are those of maps.
        first: The number of the first map.
        maps: How many maps there are.
    """
    return _KeepUnused.apply(weight, first, maps, *used)  # type: ignore[no-any-return, no-untyped-call]


class _KeepUnused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, first: int, maps: int, *used: Tensor) -> Tensor:
        ctx.arguments = used, first, maps
        return _clear_used(weight.contiguous(), *ctx.arguments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _clear_used(gradient.contiguous(), *ctx.arguments), *[None] * (2 + len(ctx.arguments[0]))


def _clear_used(weight: Tensor, used: Sequence[Tensor], first: int, maps: int) -> Tensor:
    from asng.fused import _maps_kernels as kernels

    result, numbers = torch.empty_like(weight), [*used, *[used[0]] * (MAX_USED - len(used))]
    with device_of(weight):
        kernels.clear_used[(-(-weight.numel() // BLOCK),)](
            *(*numbers, weight, result, weight.numel(), weight.shape[1], first, maps, BLOCK)
        )
    return result


class ScaledSum(nn.Module):
    """`a * scale_a + b * scale_b`, as in drop path: scales are (n, 1, 1, 1), or None for 1.

    >>> a, b = torch.ones(2, 4, 8, 8), torch.ones(2, 4, 8, 8)
    >>> ScaledSum()(a, b, torch.tensor([0.0, 2.0]).view(2, 1, 1, 1))[:, 0, 0, 0]
    tensor([1., 3.])
    """

    def forward(self, a: Tensor, b: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
        alike = a.dtype == b.dtype and a.shape == b.shape
        if alike and is_supported(a) and is_supported(b) and _scale_images(a, scale_a, scale_b):
            return _ScaledSum.apply(a, b, scale_a, scale_b)  # type: ignore[no-any-return, no-untyped-call]
        return (a if scale_a is None else a * scale_a) + (b if scale_b is None else b * scale_b)


def _scale_images(x: Tensor, *scales: Tensor | None) -> bool:
    """Whether scales are factors for each image, in the type of the map, and no gradient of them is needed."""
    return all(
        scale is None
        or (
            scale.shape == (len(x), 1, 1, 1)
            and scale.dtype == x.dtype
            and scale.is_contiguous()
            and not scale.requires_grad
        )
        for scale in scales
    )


class _ScaledSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None) -> Tensor:
        from asng.fused import _maps_kernels as kernels

        row = row_of(a)
        y, numbers = empty_rows(a.shape, a, row), row * a[0, 0].numel()
        with device_of(a):
            kernels.scaled_sum[-(-numbers // BLOCK), len(a)](
                *(a, to_rows(b, row), scale_a, scale_b, y, numbers, BLOCK),
                HAS_A=scale_a is not None,
                HAS_B=scale_b is not None,
            )
        ctx.save_for_backward(scale_a, scale_b)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from asng.fused import _maps_kernels as kernels

        dy, (scale_a, scale_b) = to_rows(gradient), ctx.saved_tensors
        row = row_of(dy)
        da, db = (dy if scale is None else empty_rows(dy.shape, dy, row) for scale in (scale_a, scale_b))
        if scale_a is not None or scale_b is not None:
            numbers = row * dy[0, 0].numel()
            with device_of(dy):
                kernels.scaled_sum_backward[-(-numbers // BLOCK), len(dy)](
                    *(dy, scale_a, scale_b, da, db, numbers, BLOCK),
                    HAS_A=scale_a is not None,
                    HAS_B=scale_b is not None,
                )
        return da, db, None, None
