"""The slice of a convolution's largest weight that is used: channels, groups and kernels that follow decisions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from asng.nas._decision import Size, SizeLike, size_and_max
from asng.nas.layers._base import AnySize, InputSize, input_size_and_max

Sizes = int | Sequence[int]

CHANNEL_MULTIPLE = 32  # channels


class ConvSlice:
    """The sizes of a convolution, validated on construction, and the slice of the weight that they select.

    `axes` is the number of spatial axes, before which the channels stand: 2 for images (..., channels, h, w).
    """

    def __init__(
        self,
        in_channels: InputSize,
        out_channels: SizeLike,
        kernel: SizeLike | Sequence[SizeLike],
        groups: SizeLike,
        axes: int,
    ) -> None:
        self.in_channels, self.max_in = input_size_and_max(in_channels, "in_channels")
        self.out_channels, self.max_out = size_and_max(out_channels, "out_channels")
        self.groups, self.max_groups = size_and_max(groups, "groups")
        sides = [size_and_max(side, "kernel_size") for side in to_tuple(kernel, axes)]
        self.sides, self.max_kernel = [side for side, _ in sides], tuple(max_side for _, max_side in sides)
        self.axes, self.elastic_kernel = axes, any(side.decision is not None for side in self.sides)
        for channels in (self.in_channels, self.out_channels):
            _check_groups(channels, self.groups)
        for side in self.sides:
            _check_parity(side)

    def roles(self) -> dict[str, Size | AnySize]:
        """The sizes by their roles in the layer."""
        kernel: dict[str, Size | AnySize] = dict(
            zip(("depth", "height", "width")[-self.axes :], self.sides, strict=True)
        )
        if len({id(side.decision) for side in self.sides}) == 1:
            kernel = {"kernel": self.sides[0]}
        return {"input": self.in_channels, "output": self.out_channels, "groups": self.groups, **kernel}

    def kernel(self) -> tuple[int, ...]:
        return tuple(side() for side in self.sides)

    def kernel_offset(self, dilation: Sequence[int]) -> tuple[int, ...]:
        """The offset of the selected kernel in the largest one, on each side, in pixels."""
        if not self.elastic_kernel:
            return (0,) * self.axes
        sides = zip(self.max_kernel, self.kernel(), dilation, strict=True)
        return tuple((max_size - size) // 2 * step for max_size, size, step in sides)

    def padding(self, padding: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
        """The padding that keeps the output size of the largest kernel."""
        if not self.elastic_kernel:
            return tuple(padding)
        return tuple(pad - less for pad, less in zip(padding, self.kernel_offset(dilation), strict=True))

    def check_padding(self, padding: str | Sizes, dilation: Sizes) -> None:
        """Raise ValueError if the padding is too small to shrink with the kernel."""
        if padding == "same":
            return
        given = (0,) * self.axes if isinstance(padding, str) else to_tuple(padding, self.axes)
        for side, pad, step in zip(self.sides, given, to_tuple(dilation, self.axes), strict=True):
            sizes = side.all()
            min_padding = (max(sizes) - min(sizes)) // 2 * step
            if pad < min_padding:
                raise ValueError(
                    f"padding={padding!r} is too small for kernels from {min(sizes)} to {max(sizes)}: it belongs to "
                    f"the largest and shrinks with it, so give at least {min_padding}, or {max(sizes) // 2 * step} to "
                    "keep the size of the input"
                )

    def prepare(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The input, weight and bias to convolve; `crop` the output afterwards.

        Where convolutions are autotuned, numbers of channels are rounded up: the input is padded with channels of
        zeros, and surplus output channels are cropped. The result and all gradients are those of the exact slice.
        """
        no_channels = input.dim() <= self.axes  # which torch refuses
        if self.max_groups > 1 or no_channels or not autotunes(input.device):
            return input, *self.slice_weight(weight, bias, transposed=transposed)
        in_channels = min(round_channels(self.in_channels()), self.max_in)
        out_channels = min(round_channels(self.out_channels()), self.max_out)
        rows, columns = (in_channels, out_channels) if transposed else (out_channels, in_channels)
        more = in_channels - self.in_channels()
        filled = F.pad(input, (*(0, 0) * self.axes, 0, more)) if more else input
        return filled, self._crop_kernel(weight)[:rows, :columns], None if bias is None else bias[:out_channels]

    def crop(self, output: Tensor) -> Tensor:
        """The selected channels of (..., channels, *spatial), contiguous in memory."""
        out_channels, axis = self.out_channels(), -1 - self.axes
        return output if output.shape[axis] == out_channels else output.narrow(axis, 0, out_channels).clone()

    def slice_weight(self, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> tuple[Tensor, Tensor | None]:
        """The weight (out, in / groups, *kernel), transposed (in, out / groups, *kernel), and bias (out,) in use."""
        groups = self.groups()
        in_channels, out_channels = self.in_channels() // groups, self.out_channels() // groups
        weight = self._crop_kernel(weight)[:, : in_channels if not transposed else out_channels]
        weight = self._slice_groups(weight, groups, out_channels if not transposed else in_channels)
        return weight, None if bias is None else self._slice_groups(bias, groups, out_channels)

    def _crop_kernel(self, weight: Tensor) -> Tensor:
        kernel = self.kernel() if self.elastic_kernel else self.max_kernel
        for axis, (size, max_size) in enumerate(zip(kernel, self.max_kernel, strict=True), start=2):
            if size != max_size:
                weight = weight.narrow(axis, (max_size - size) // 2, size)
        return weight

    def _slice_groups(self, tensor: Tensor, groups: int, channels: int) -> Tensor:
        """The first channels of each of the first groups."""
        if self.max_groups == 1:
            return tensor[:channels]
        by_group: Tensor = tensor.unflatten(0, (self.max_groups, -1))  # type: ignore[no-untyped-call]
        return by_group[:groups, :channels].flatten(0, 1)


def autotunes(device: torch.device) -> bool:
    """True if convolutions on a device are autotuned, which takes milliseconds for every new number of channels."""
    return device.type == "cuda"


def round_channels(channels: int) -> int:
    """The next multiple of 32, or below 32 the next power of 2: few numbers to autotune, and little surplus.

    >>> [round_channels(channels) for channels in (3, 8, 17, 64, 65, 200)]
    [4, 8, 32, 64, 96, 224]
    """
    if channels > CHANNEL_MULTIPLE:
        return -(-channels // CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE
    return 1 << (channels - 1).bit_length()


def to_tuple(sizes: Any, axes: int) -> tuple[Any, ...]:
    """One size for all axes, or one for each, as a tuple."""
    return tuple(sizes) if isinstance(sizes, Sequence) else (sizes,) * axes


def _check_groups(channels: Size | AnySize, groups: Size) -> None:
    if isinstance(channels, AnySize):
        if max(groups.all()) > 1:
            raise ValueError(f"channels of any size, {channels}, cannot be split into groups={groups}")
    elif groups.decision is None:
        wrong = [size for size in channels.all() if size % groups()]
        if wrong and channels.decision is not None:
            raise ValueError(
                f"every width must be divisible by groups={groups}, but {channels} can be {wrong[0]}; "
                f"use a Width times {groups}, or a list of widths that are"
            )
    else:
        per_group = {size / n for size, n in zip(channels.all(), groups.all(), strict=False)}
        if not channels.shares_decision_with(groups) or len(per_group) != 1 or not per_group.pop().is_integer():
            raise ValueError(
                f"groups follow {groups}, so channels must be a multiple of the same, got {channels}; "
                "write groups=width with channels of width or width * 2"
            )


def _check_parity(side: Size) -> None:
    sizes = sorted(side.all())
    if any((b - a) % 2 for a, b in pairwise(sizes)):
        raise ValueError(
            f"kernels are cut from the center of the largest, so all must be odd or all even, got {sizes}; "
            'use Value("k", Integer(1, 3)) * 2 - 1 for 1, 3 and 5'
        )
