"""Which part of a convolution's largest weight is used: channels, groups and kernels that follow decisions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from asng.nas.decision import Decision, Sizable, Size, Takable, UpTo, largest, most_taken

Pair = int | Sequence[int]

GRAIN = 32  # channels


class Window:
    """The sizes of a convolution, checked when it is made, and the part that they cut out of a weight."""

    def __init__(self, takes: Takable, gives: Sizable, kernel: Sizable | Sequence[Sizable], groups: Sizable) -> None:
        height, width = kernel if isinstance(kernel, Sequence) else (kernel, kernel)
        self.takes, self.most_in = most_taken(takes, "in_channels")
        self.gives, self.most_out = largest(gives, "out_channels")
        self.groups, self.most_groups = largest(groups, "groups")
        self.height, most_height = largest(height, "kernel_size")
        self.width, most_width = largest(width, "kernel_size")
        self.most_kernel = (most_height, most_width)
        for channels in (self.takes, self.gives):
            _check_groups(channels, self.groups)
        for side in (self.height, self.width):
            _check_parity(side)

    def roles(self) -> dict[str, Size | UpTo]:
        """The sizes by what they are to the layer."""
        kernel: dict[str, Size | UpTo] = {"height": self.height, "width": self.width}
        if self.height.decision is self.width.decision:
            kernel = {"kernel": self.height}
        return {"takes": self.takes, "gives": self.gives, "shares": self.groups, **kernel}

    def kernel(self) -> tuple[int, int]:
        return self.height(), self.width()

    def shrunk(self, dilation: Pair) -> tuple[int, int]:
        """By how much the selected kernel reaches less far than the largest, on each side."""
        if self.height.decision is None and self.width.decision is None:
            return 0, 0
        (down, across), (most_height, most_width) = pair(dilation), self.most_kernel
        return (most_height - self.height()) // 2 * down, (most_width - self.width()) // 2 * across

    def padding(self, padding: Pair, dilation: Pair) -> tuple[int, int]:
        """The padding with which the output is as large as that of the largest kernel with its padding."""
        (down, across), (less_down, less_across) = pair(padding), self.shrunk(dilation)
        return down - less_down, across - less_across

    def check_padding(self, padding: str | Pair, dilation: Pair) -> None:
        """Raise ValueError where the padding cannot shrink as much as the kernel."""
        if padding == "same":
            return
        given = (0, 0) if isinstance(padding, str) else pair(padding)
        for side, outside, step in zip((self.height, self.width), given, pair(dilation), strict=True):
            sizes = side.all()
            least = (max(sizes) - min(sizes)) // 2 * step
            if outside < least:
                raise ValueError(
                    f"padding={padding!r} is too small for kernels from {min(sizes)} to {max(sizes)}: it belongs to "
                    f"the largest and shrinks with it, so give at least {least}, or {max(sizes) // 2 * step} to keep "
                    "the size of the input"
                )

    def applied(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What to convolve: the input and the parts of weight and bias in use, from whose output to `cut`.

        Where each number of channels is planned for, numbers are rounded up: the input gets channels of zeros, which
        stay zeros times any finite weights, and channels that come out in excess are cut off. So the result and all
        gradients are those of the exact part.
        """
        if self.most_groups > 1 or input.dim() < 3 or not planned(input.device):  # torch refuses what has no channels
            return input, *self.part(weight, bias, transposed=transposed)
        takes, gives = min(rounded(self.takes()), self.most_in), min(rounded(self.gives()), self.most_out)
        rows, columns = (takes, gives) if transposed else (gives, takes)
        more = takes - self.takes()
        filled = F.pad(input, (0, 0, 0, 0, 0, more)) if more else input
        return filled, self._centre(weight)[:rows, :columns], None if bias is None else bias[:gives]

    def cut(self, output: Tensor) -> Tensor:
        """The channels of (..., channels, h, w) that were asked for, laid out in memory as if there were no more."""
        gives = self.gives()
        return output if output.shape[-3] == gives else output.narrow(-3, 0, gives).clone()

    def part(self, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> tuple[Tensor, Tensor | None]:
        """The weight (out, in / groups, h, w), or transposed (in, out / groups, h, w), and the bias (out,) in use."""
        groups = self.groups()
        takes, gives = self.takes() // groups, self.gives() // groups
        weight = self._centre(weight)[:, : takes if not transposed else gives]
        weight = self._of_each_group(weight, groups, gives if not transposed else takes)
        return weight, None if bias is None else self._of_each_group(bias, groups, gives)

    def _centre(self, weight: Tensor) -> Tensor:
        (height, width), (most_height, most_width) = self.kernel(), self.most_kernel
        if (height, width) == self.most_kernel:
            return weight
        top, left = (most_height - height) // 2, (most_width - width) // 2
        return weight[:, :, top : top + height, left : left + width]

    def _of_each_group(self, tensor: Tensor, groups: int, channels: int) -> Tensor:
        """The first channels of each of the first groups."""
        if self.most_groups == 1:
            return tensor[:channels]
        by_group: Tensor = tensor.unflatten(0, (self.most_groups, -1))  # type: ignore[no-untyped-call]
        return by_group[:groups, :channels].flatten(0, 1)


def check_fixed(**settings: Any) -> None:
    """Raise ValueError for settings, which may be pairs, that are given a decision."""
    for name, setting in settings.items():
        for part in setting if isinstance(setting, (tuple, list)) else (setting,):
            if isinstance(part, (Decision, Size)):
                raise ValueError(
                    f"{name} cannot be a decision, got {part!r}; only channels, groups and kernels can. Choose among "
                    f"layers instead: OneOf(name, [one layer for each {name}])"
                )


def planned(device: torch.device) -> bool:
    """Whether convolutions on a device are planned anew, in milliseconds, for each number of channels that comes up."""
    return device.type == "cuda"


def rounded(channels: int) -> int:
    """The next multiple of 32, or up to there the next power of 2: few numbers to plan for, and little in excess.

    >>> [rounded(channels) for channels in (3, 8, 17, 64, 65, 200)]
    [4, 8, 32, 64, 96, 224]
    """
    return -(-channels // GRAIN) * GRAIN if channels > GRAIN else 1 << (channels - 1).bit_length()


def pair(sizes: Pair) -> tuple[int, int]:
    """Torch's shorthand, one number for both axes, written out."""
    down, across = sizes if isinstance(sizes, Sequence) else (sizes, sizes)
    return down, across


def _check_groups(channels: Size | UpTo, groups: Size) -> None:
    if isinstance(channels, UpTo):
        if max(groups.all()) > 1:
            raise ValueError(f"channels that come as they like, {channels}, cannot be dealt out to groups={groups}")
    elif groups.decision is None:
        wrong = [size for size in channels.all() if size % groups()]
        if wrong and channels.decision is not None:
            raise ValueError(
                f"every width must be divisible by groups={groups}, but {channels} can be {wrong[0]}; "
                f"use a Width times {groups}, or a list of widths that are"
            )
    else:
        per_group = {size / n for size, n in zip(channels.all(), groups.all(), strict=False)}
        if not channels.follows(groups) or len(per_group) != 1 or not per_group.pop().is_integer():
            raise ValueError(
                f"groups follow {groups}, so channels must be a multiple of the same, got {channels}; "
                "write groups=width with channels of width or width * 2"
            )


def _check_parity(side: Size) -> None:
    sizes = sorted(side.all())
    if any((b - a) % 2 for a, b in pairwise(sizes)):
        raise ValueError(
            f"kernels are cut from the centre of the largest, so all must be odd or all even, got {sizes}; "
            'use Value("k", Integer(1, 3)) * 2 - 1 for 1, 3 and 5'
        )
