"""Batch norm in two kernels each way, with an addition and a ReLU in them."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asng.fused._dispatch import device_of, empty_rows, have_hooks, is_supported, power_of_two, row_of, to_rows

PROGRAM_CHANNELS = 32  # of a program
MAX_SUMS = 4096  # that every program adds up: channels times chunks
PROGRAMS = 264
MIN_TILE, MAX_TILE = 1024, 4096  # elements


class BatchNorm2d(nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d`, with its arguments; in training mode two kernels forward and two backward.

    `batch_norm` runs it with an addition and a ReLU in the same kernels.

    Args:
        num_features: Channels of the input (n, channels, height, width).
        eps: Added to the variance.
        momentum: Weight of the newest batch in the running statistics; None for a cumulative mean.
        affine: Whether a scale and a shift of each channel are learned.
        track_running_stats: Whether running statistics are kept, for evaluation mode.
        device, dtype: Of the parameters and buffers.
        bias: Whether a shift is learned as well as the scale (only if torch has this argument). Without it, torch's
            function runs.

    >>> norm = BatchNorm2d(4)
    >>> norm(torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([2, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        return _run(self, x) if _fits(self, x) else super().forward(x)


def batch_norm(x: Tensor, norm: nn.Module, *, add: Tensor | None = None, relu: bool = False) -> Tensor:
    """A batch norm, an addition and a ReLU: `relu(norm(x) + add)`, by the kernels of `BatchNorm2d` if it is one.

    As a function it also accepts torch's batch norm, which `extract` and `unfuse` put into a model.

    Args:
        x: (n, c, h, w); kernels take it channels last on CUDA.
        norm: Any batch norm. If it is not a `BatchNorm2d`, or has hooks, it is called as a module.
        add: A tensor of the shape of `x`; None for no addition.
        relu: Whether to apply ReLU.

    Returns:
        The result, of the shape of `x`.

    >>> norm, x, y = BatchNorm2d(4), torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8)
    >>> torch.equal(batch_norm(x, norm, add=y, relu=True), torch.relu(norm(x) + y))
    True
    """
    if type(norm) is BatchNorm2d and _fits(norm, x, add) and not have_hooks(norm):
        return _run(norm, x, add, relu)
    y: Tensor = norm(x)
    y = y if add is None else y + add
    return F.relu(y) if relu else y


def _fits(norm: BatchNorm2d, x: Tensor, add: Tensor | None = None) -> bool:
    return (
        is_supported(x)
        and has_kernels_for(norm)
        and (add is None or (add.dtype == x.dtype and add.shape == x.shape and is_supported(add)))
        and x.shape[1] == norm.num_features
        and x.numel() > x.shape[1]
    )


def _run(norm: BatchNorm2d, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
    return _BatchNorm.apply(  # type: ignore[no-any-return, no-untyped-call]
        x, add, norm.weight, norm.bias, *count_batch(norm), norm.momentum, norm.eps, relu
    )


def has_kernels_for(norm: nn.BatchNorm2d) -> bool:
    """Whether a batch norm normalizes by its input's statistics, and follows them by a constant momentum if at all.

    It has both a scale and a shift, or neither, and its tensors have no gaps.
    """
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return (
        (norm.running_mean is None or (norm.training and norm.momentum is not None))
        and (norm.weight is None) == (norm.bias is None)
        and all(tensor is None or tensor.is_contiguous() for tensor in tensors)
    )


def count_batch(norm: nn.BatchNorm2d) -> tuple[Tensor | None, Tensor | None]:
    """Count a batch where torch does; return the running statistics that are to follow it, or None."""
    if not (norm.training and norm.track_running_stats):
        return None, None
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return norm.running_mean, norm.running_var


class Split(NamedTuple):
    """The split of an input into programs: rows in chunks, channels in groups."""

    rows: int
    chunk: int
    chunks: int
    groups: int
    tiles: int  # of a chunk
    block_rows: int
    block_channels: int
    block_chunks: int

    @property
    def warps(self) -> int:
        return 8 if self.block_rows * self.block_channels >= MAX_TILE else 4

    @classmethod
    def of(cls, rows: int, channels: int) -> "Split":
        block_channels = min(power_of_two(channels), PROGRAM_CHANNELS)
        if -channels % block_channels >= 16:  # with half as many at a time fewer are beyond the last
            block_channels = 16
        groups = -(-channels // block_channels)
        chunks = min(MAX_SUMS // block_channels, -(-PROGRAMS // groups))
        chunk = max(-(-rows // chunks), MIN_TILE // block_channels)
        block_rows = min(power_of_two(chunk), MAX_TILE // block_channels)
        chunks = -(-rows // chunk)
        return cls(
            rows, chunk, chunks, groups, -(-chunk // block_rows), block_rows, block_channels, power_of_two(chunks)
        )


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        add: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        from asng.fused import _norm_kernels as kernels

        split, channels, row = Split.of(x.numel() // x.shape[1], x.shape[1]), x.shape[1], row_of(x)
        add = None if add is None else to_rows(add, row)
        partial = torch.empty(split.chunks, 2, channels, device=x.device)
        saved = torch.empty(2, channels, device=x.device)
        y = empty_rows(x.shape, x, row)
        grid, rows, blocks = (split.chunks, split.groups), split[:3], split[4:]
        with device_of(x):
            kernels.batch_norm_moments[grid](x, partial, *rows[:2], channels, row, *blocks[:3], num_warps=split.warps)
            kernels.batch_norm_forward[grid](
                *(x, add, partial, weight, bias, running_mean, running_var, saved, y),
                *(*rows, eps, momentum, split.chunk, channels, row, row, *blocks),
                AFFINE=weight is not None,
                TRACK=running_mean is not None,
                ADD=add is not None,
                RELU=relu,
                num_warps=split.warps,
            )
        ctx.save_for_backward(x, y if relu else None, saved, weight)
        ctx.split, ctx.add, ctx.relu = split, add is not None, relu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from asng.fused import _norm_kernels as kernels

        x, y, saved, weight = ctx.saved_tensors
        split, channels, row = ctx.split, x.shape[1], row_of(x)
        dy = to_rows(gradient, row)
        partial = torch.empty(split.chunks, 2, channels, device=x.device)
        dx = empty_rows(x.shape, x, row)
        dadd = empty_rows(x.shape, x, row) if ctx.add and ctx.relu else dy if ctx.add else None
        dweight, dbias = (None, None) if weight is None else (torch.empty_like(weight), torch.empty_like(weight))
        grid, rows, blocks = (split.chunks, split.groups), split[:3], split[4:]
        with device_of(x):
            kernels.batch_norm_gradient_sums[grid](
                *(dy, x, y, saved, partial, None),
                *(*rows[:2], channels, row, row, *blocks[:3]),
                RELU=ctx.relu,
                GROUP=1,
                num_warps=split.warps,
            )
            kernels.batch_norm_backward[grid](
                *(dy, x, y, saved, partial, weight, dx, dadd, dweight, dbias),
                *(*rows, channels, row, *blocks),
                AFFINE=weight is not None,
                ADD=ctx.add,
                RELU=ctx.relu,
                num_warps=split.warps,
            )
        return dx, dadd, dweight, dbias, None, None, None, None, None
