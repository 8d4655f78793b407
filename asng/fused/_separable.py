"""Separable convolutions: three kernels forward, six backward."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asng.fused._dispatch import DTYPES, device_of, empty_channels_last, is_supported, to_channels_last
from asng.fused._norm import BatchNorm2d, Split, power_of_two, uses_batch_statistics

NORMS = {nn.BatchNorm2d, BatchNorm2d}
MAX_CHANNELS = 256
MAX_MOMENTS = 8192  # channels times chunks that every program adds up; more are merged by a kernel before
ELEMENTS = 16  # of a thread
DEPTHWISE_ELEMENTS = 32  # the same, where each of 9 or 25 sums goes from thread to thread
ALIGN = 8  # elements of a channels' row in between, so that 16 bytes are loaded at once
MIN_PROGRAMS = 128
MAX_TILE = 4096  # elements of a program
WEIGHT_PROGRAMS = 132  # that sum up gradients of 1x1 convolutions: each writes a matrix


class SeparableConv2d(nn.Sequential):
    """Twice ReLU, depthwise convolution, 1x1 convolution and batch norm: a `torch.nn.Sequential` of these layers.

    In training mode three kernels run forward and six backward (with many channels: up to nine). The layers hold the
    parameters and the state, as ever.

    Args:
        layers: `nn.ReLU`, `nn.Conv2d` with groups, `nn.Conv2d` of size 1 and `nn.BatchNorm2d`, and again. Kernels are
            used for odd kernel sizes with as much padding as keeps the size, no bias, and up to 256 channels; other
            layers, and layers with hooks, run one after another, as in a `torch.nn.Sequential`.

    >>> half = [nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.Conv2d(4, 4, 1, bias=False)]
    >>> again = [nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.Conv2d(4, 4, 1, bias=False)]
    >>> layer = SeparableConv2d(*half, nn.BatchNorm2d(4), *again, nn.BatchNorm2d(4))
    >>> layer(torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)).shape
    torch.Size([2, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        layers: Any = list(self)
        dtype = _compute_dtype(x)
        if not (is_separable(layers) and _fits(x, layers, dtype)):
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        halves, tensors = [], []
        for _, depthwise, pointwise, norm in (layers[:4], layers[4:]):
            if norm.num_batches_tracked is not None and norm.track_running_stats:
                norm.num_batches_tracked.add_(1)
            tensors += [depthwise.weight, pointwise.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var]
            halves.append(Half(depthwise.kernel_size[0], depthwise.stride[0], norm.momentum, norm.eps))
        save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *tensors))
        return _Separable.apply(x, *tensors, halves, dtype, save)  # type: ignore[no-any-return, no-untyped-call]


class Half(NamedTuple):
    """The settings of a half."""

    kernel: int
    stride: int
    momentum: float
    eps: float


class Sizes(NamedTuple):
    """The sizes of a half's input and output; `row` is the number of elements of a pixel in memory."""

    images: int
    channels: int
    row: int
    height: int
    width: int
    out_height: int
    out_width: int

    @classmethod
    def of(cls, x: Tensor, halves: list[Half]) -> list["Sizes"]:
        """Those of each half."""
        images, channels, height, width = x.shape
        row = -(-channels // ALIGN) * ALIGN
        result = []
        for half in halves:
            out_height, out_width = (-(-size // half.stride) for size in (height, width))
            result.append(cls(images, channels, row, height, width, out_height, out_width))
            height, width = out_height, out_width
        return result

    @property
    def pixels(self) -> int:
        """Of the output."""
        return self.images * self.out_height * self.out_width

    @property
    def block_channels(self) -> int:
        """Of a program that has all; matrices are multiplied from 16 on."""
        return max(power_of_two(self.channels), 16)


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


def is_separable(layers: Any) -> bool:
    """Whether layers are those of a separable convolution, with settings that the kernels have."""
    kinds = [type(layer) for layer in layers]
    if (
        kinds[:3] + kinds[4:7] != 2 * [nn.ReLU, nn.Conv2d, nn.Conv2d]
        or not set(kinds[3::4]) <= NORMS
        or len(kinds) != 8
    ):
        return False
    channels = layers[1].in_channels
    return channels <= MAX_CHANNELS and all(
        _is_depthwise(depthwise, channels)
        and (pointwise.in_channels, pointwise.out_channels, pointwise.groups) == (channels, channels, 1)
        and (pointwise.kernel_size, pointwise.stride, pointwise.padding) == ((1, 1), (1, 1), (0, 0))
        and pointwise.bias is None
        and norm.num_features == channels
        for _, depthwise, pointwise, norm in (layers[:4], layers[4:])
    )


def _is_depthwise(layer: nn.Conv2d, channels: int) -> bool:
    size, stride = layer.kernel_size[0], layer.stride[0]
    return (
        layer.in_channels == layer.out_channels == layer.groups == channels
        and layer.kernel_size == (size, size)
        and size % 2 == 1
        and layer.stride == (stride, stride)
        and layer.padding == (size // 2, size // 2)
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and layer.bias is None
    )


def _fits(x: Tensor, layers: Any, dtype: torch.dtype) -> bool:
    weights = [layers[index].weight for index in (1, 2, 5, 6)]
    channels = layers[1].in_channels
    return (
        is_supported(x)
        and x.shape[1] == channels
        and all(uses_batch_statistics(layers[index]) for index in (3, 7))
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
        and dtype in DTYPES
        and (torch.is_autocast_enabled(x.device.type) or all(weight.dtype == dtype for weight in weights))
        and all(weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
        and x.shape[0] * (x.shape[2] // layers[1].stride[0]) * (x.shape[3] // layers[1].stride[0]) > 1
    )


class Moments(NamedTuple):
    """Two numbers for each channel and chunk of rows: (chunks, 2, channels)."""

    partial: Tensor
    rows: int
    chunk: int

    @property
    def arguments(self) -> tuple[int, int, int]:
        return self.rows, self.chunk, len(self.partial)

    def merge(self, kernels: Any, *, moments: bool) -> "Moments":
        """The same in a single chunk, where all programs of the next kernel would have much to add up."""
        chunks, _, channels = self.partial.shape
        if chunks * channels <= MAX_MOMENTS:
            return self
        merged = torch.empty_like(self.partial[:1])
        sizes, warps = (channels, 8, power_of_two(chunks)), max(4, min(power_of_two(chunks) // 64, 16))
        if moments:
            kernels.merge_moments[(-(-channels // 8),)](self.partial, merged, *self.arguments, *sizes, num_warps=warps)
        else:
            kernels.merge_sums[(-(-channels // 8),)](self.partial, merged, chunks, *sizes, num_warps=warps)
        return Moments(merged, self.rows, self.rows)


def _tile(pixels: int, channels: int, elements: int) -> tuple[int, int]:
    """Pixels of a program with some channels, a power of two from 16 on, and its warps."""
    block = power_of_two(max(pixels // MIN_PROGRAMS, 16) + 1) // 2
    block = max(16, min(block, MAX_TILE // channels))
    return block, max(1, min(block * channels // (32 * elements), 8))


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


class _Separable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        from asng.fused import _norm_kernels
        from asng.fused import _separable_kernels as kernels

        *tensors, halves, dtype, save = arguments
        sizes = Sizes.of(x, halves)
        with device_of(x):
            source = _pad(kernels, x, sizes[0], dtype)
            to_save: list[Any] = [source]
            norm, moments = None, None
            for half, size, weights in zip(halves, sizes, (tensors[:6], tensors[6:]), strict=True):
                d, z, moments = _forward_half(kernels, source, half, size, weights, dtype, save, norm, moments)
                saved = torch.empty(2, size.channels, device=x.device)
                norm = [*weights[2:], saved, half.eps, half.momentum]
                to_save += [d, z, saved, *weights[:4]]
                source = z
            y = empty_channels_last((x.shape[0], x.shape[1], *sizes[1][5:]), source)
            _normalize(_norm_kernels, source, y, sizes[1], norm, moments)
        running = [tensor for tensor in (*tensors[4:6], *tensors[10:12]) if tensor is not None]
        if running:
            torch.autograd.graph.increment_version(running)
        if save:
            ctx.save_for_backward(*to_save)
        ctx.halves, ctx.sizes, ctx.shape, ctx.dtype = halves, sizes, x.shape, x.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from asng.fused import _norm_kernels
        from asng.fused import _separable_kernels as kernels

        x, d1, z1, saved1, dw1, pw1, weight1, bias1, d2, z2, saved2, dw2, pw2, weight2, _ = ctx.saved_tensors
        half1, half2 = ctx.halves
        size1, size2 = ctx.sizes
        dy = to_channels_last(gradient)
        dx = torch.empty(ctx.shape, dtype=ctx.dtype, device=x.device, memory_format=torch.channels_last)
        du = torch.empty_like(z1)
        with device_of(x):
            sums = _gradient_sums(_norm_kernels, dy, z2, saved2, size2).merge(kernels, moments=False)
            dd2, dweight2, dbias2, partial_pw2 = _backward_pointwise(
                kernels, dy, size2.channels, z2, saved2, sums, weight2, d2, pw2, size2
            )
            partial_dw2, sums = _backward_depthwise(
                kernels, dd2, z1, du, size2.row, [saved1, weight1, bias1], dw2, half2, size2
            )
            sums = sums.merge(kernels, moments=False)
            dd1, dweight1, dbias1, partial_pw1 = _backward_pointwise(
                kernels, du, size1.row, z1, saved1, sums, weight1, d1, pw1, size1
            )
            partial_dw1, _ = _backward_depthwise(kernels, dd1, x, dx, size1.channels, None, dw1, half1, size1)
            results = [torch.empty_like(weight) for weight in (dw1, pw1, dw2, pw2)]
            _reduce(kernels, [partial_dw1, partial_pw1, partial_dw2, partial_pw2], results)
        first = (results[0], results[1], dweight1, dbias1, None, None)
        second = (results[2], results[3], dweight2, dbias2, None, None)
        return dx, *first, *second, None, None, None


def _pad(kernels: Any, x: Tensor, size: Sizes, dtype: torch.dtype) -> Tensor:
    """The input itself, if its rows of channels are aligned; else rectified, with zeros after each row."""
    if size.row == size.channels:
        return x
    padded = torch.empty(size.images, size.height, size.width, size.row, dtype=dtype, device=x.device)
    total, block = padded.numel(), 1024
    kernels.pad_channels[(-(-total // block),)](x, padded, total, size.channels, size.row, block)
    return padded


def _forward_half(
    kernels: Any,
    x: Tensor,
    half: Half,
    size: Sizes,
    weights: list[Any],
    dtype: torch.dtype,
    save: bool,
    norm: list[Any] | None,
    moments: Moments | None,
) -> tuple[Tensor | None, Tensor, Moments]:
    """ReLU and both convolutions, after the batch norm of the half before if there is one."""
    z = torch.empty(size.pixels, size.row, dtype=dtype, device=x.device)
    d = torch.empty_like(z) if save else None
    block, warps = _tile(size.pixels, size.block_channels, ELEMENTS)
    programs = -(-size.pixels // block)
    partial = torch.empty(programs, 2, size.channels, device=x.device)
    before: list[Any] = [None] * 6
    numbers: tuple[Any, ...] = (2, 2, 2, 0.0, 0.0)
    if norm is not None and moments is not None:
        before = [moments.partial, *norm[:5]]
        numbers = (*moments.arguments, *norm[5:])
    kernels.separable_forward[(programs,)](
        *(x, *before, weights[0], weights[1], d, z, partial, *numbers, size.pixels),
        *(*size[1:], half.kernel, half.stride),
        *(block, size.block_channels, min(size.block_channels, 64), power_of_two(numbers[2])),
        NORM=norm is not None,
        AFFINE=before[1] is not None,
        TRACK=before[3] is not None,
        SAVE=save,
        PRECISION=_precision(),
        num_warps=warps,
    )
    return d, z, Moments(partial, size.pixels, block).merge(kernels, moments=True)


def _normalize(kernels: Any, z: Tensor, y: Tensor, size: Sizes, norm: Any, moments: Any) -> None:
    weight, bias, running_mean, running_var, saved, eps, momentum = norm
    split = Split.of(size.pixels, size.channels)
    kernels.batch_norm_forward[split.chunks, split.groups](
        *(z, None, moments.partial, weight, bias, running_mean, running_var, saved, y, *moments.arguments),
        *(eps, momentum, split.chunk, size.channels, size.row, *split[4:7], power_of_two(len(moments.partial))),
        AFFINE=weight is not None,
        TRACK=running_mean is not None,
        ADD=False,
        RELU=False,
        num_warps=split.warps,
    )


def _gradient_sums(kernels: Any, dy: Tensor, z: Tensor, saved: Tensor, size: Sizes) -> Moments:
    split = Split.of(size.pixels, size.channels)
    partial = torch.empty(split.chunks, 2, size.channels, device=z.device)
    kernels.batch_norm_gradient_sums[split.chunks, split.groups](
        *(dy, z, None, saved, partial, split.rows, split.chunk, size.channels, size.row, *split[4:7]),
        RELU=False,
        num_warps=split.warps,
    )
    return Moments(partial, split.rows, split.chunk)


def _backward_pointwise(
    kernels: Any,
    dy: Tensor,
    dy_row: int,
    z: Tensor,
    saved: Tensor,
    sums: Moments,
    weight: Tensor | None,
    d: Tensor,
    pointwise: Tensor,
    size: Sizes,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    """The gradients of the depthwise convolution's result, of the batch norm, of the weights for each program."""
    block, warps = _tile(size.pixels, size.block_channels, ELEMENTS)
    inputs = min(size.block_channels, 64)
    groups = -(-size.channels // inputs)
    tiles = -(-size.pixels // (block * -(-WEIGHT_PROGRAMS // groups)))
    programs = -(-size.pixels // (block * tiles))
    partial = torch.empty(programs, size.channels**2, device=z.device)
    dd = torch.empty_like(z)
    dweight, dbias = (None, None) if weight is None else (torch.empty_like(weight), torch.empty_like(weight))
    chunks = len(sums.partial)
    kernels.pointwise_backward[programs, groups](
        *(dy, z, saved, sums.partial, weight, d, pointwise, dd, dweight, dbias, partial, chunks, size.pixels),
        *(size.channels, size.row, dy_row, tiles, block, size.block_channels, inputs, power_of_two(chunks)),
        AFFINE=weight is not None,
        PRECISION=_precision(),
        num_warps=max(warps, 4),
    )
    return dd, dweight, dbias, partial


def _backward_depthwise(
    kernels: Any,
    dd: Tensor,
    x: Tensor,
    dx: Tensor,
    dx_row: int,
    norm: list[Any] | None,
    depthwise: Tensor,
    half: Half,
    size: Sizes,
) -> tuple[Tensor, Moments]:
    """Writes the gradient of the input; returns that of the weights for each program, and sums for the norm before."""
    block_channels = min(max(power_of_two(size.channels), ALIGN), 32)
    block, warps = _tile(size.pixels, block_channels, DEPTHWISE_ELEMENTS)
    programs, groups = -(-size.pixels // block), -(-size.channels // block_channels)
    partial = torch.empty(programs, size.channels * half.kernel**2, device=x.device)
    sums = torch.empty(programs, 2, size.channels, device=x.device)
    saved, weight, bias = norm or (None, None, None)
    kernels.depthwise_backward[programs, groups](
        *(dd, x, saved, weight, bias, depthwise, dx, partial, sums, size.pixels),
        *(size.channels, size.row, dx_row, *size[3:], half.kernel, half.stride, block, block_channels),
        NORM=norm is not None,
        AFFINE=weight is not None,
        num_warps=warps,
    )
    return partial, Moments(sums, size.images * size.height * size.width, block)


def _reduce(kernels: Any, partials: list[Tensor], results: list[Tensor]) -> None:
    """The sums of the rows of each, in one launch."""
    rows, columns = 64, 32
    tiles = [-(-max(len(partials[i]), len(partials[i + 2])) // rows) for i in (0, 1)]
    lengths = [partial.shape[1] for partial in partials]
    triples = [item for p, r in zip(partials, results, strict=True) for item in (p, r, len(p))]
    kernels.reduce_rows[-(-max(lengths) // columns), 4](*triples, lengths[0], lengths[1], *tiles, rows, columns)
