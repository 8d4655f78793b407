"""Elastic convolutions: channels, groups and kernels may follow decisions.

The first channels are used; on a GPU a few more are computed and cropped. Smaller kernels are cropped from the center.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import Size, SizeLike, size_and_max
from asng.nas.layers._base import AnySize, ElasticLayer, InputSize, check_fixed, input_size_and_max, on_meta

Pair = int | Sequence[int]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]

CHANNEL_MULTIPLE = 32  # channels


class ConvSlice:
    """The sizes of a convolution, validated on construction, and the slice of the weight that they select."""

    def __init__(
        self, in_channels: InputSize, out_channels: SizeLike, kernel: SizeLike | Sequence[SizeLike], groups: SizeLike
    ) -> None:
        height, width = kernel if isinstance(kernel, Sequence) else (kernel, kernel)
        self.in_channels, self.max_in = input_size_and_max(in_channels, "in_channels")
        self.out_channels, self.max_out = size_and_max(out_channels, "out_channels")
        self.groups, self.max_groups = size_and_max(groups, "groups")
        self.height, max_height = size_and_max(height, "kernel_size")
        self.width, max_width = size_and_max(width, "kernel_size")
        self.max_kernel = (max_height, max_width)
        for channels in (self.in_channels, self.out_channels):
            _check_groups(channels, self.groups)
        for side in (self.height, self.width):
            _check_parity(side)

    def roles(self) -> dict[str, Size | AnySize]:
        """The sizes by their roles in the layer."""
        kernel: dict[str, Size | AnySize] = {"height": self.height, "width": self.width}
        if self.height.decision is self.width.decision:
            kernel = {"kernel": self.height}
        return {"input": self.in_channels, "output": self.out_channels, "groups": self.groups, **kernel}

    def kernel(self) -> tuple[int, int]:
        return self.height(), self.width()

    def kernel_offset(self, dilation: Pair) -> tuple[int, int]:
        """The offset of the selected kernel in the largest one, on each side, in pixels."""
        if self.height.decision is None and self.width.decision is None:
            return 0, 0
        (down, across), (max_height, max_width) = pair(dilation), self.max_kernel
        return (max_height - self.height()) // 2 * down, (max_width - self.width()) // 2 * across

    def padding(self, padding: Pair, dilation: Pair) -> tuple[int, int]:
        """The padding that keeps the output size of the largest kernel."""
        (down, across), (less_down, less_across) = pair(padding), self.kernel_offset(dilation)
        return down - less_down, across - less_across

    def check_padding(self, padding: str | Pair, dilation: Pair) -> None:
        """Raise ValueError if the padding is too small to shrink with the kernel."""
        if padding == "same":
            return
        given = (0, 0) if isinstance(padding, str) else pair(padding)
        for side, pad, step in zip((self.height, self.width), given, pair(dilation), strict=True):
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
        if self.max_groups > 1 or input.dim() < 3 or not autotunes(input.device):  # torch refuses what has no channels
            return input, *self.slice_weight(weight, bias, transposed=transposed)
        in_channels = min(round_channels(self.in_channels()), self.max_in)
        out_channels = min(round_channels(self.out_channels()), self.max_out)
        rows, columns = (in_channels, out_channels) if transposed else (out_channels, in_channels)
        more = in_channels - self.in_channels()
        filled = F.pad(input, (0, 0, 0, 0, 0, more)) if more else input
        return filled, self._crop_kernel(weight)[:rows, :columns], None if bias is None else bias[:out_channels]

    def crop(self, output: Tensor) -> Tensor:
        """The selected channels of (..., channels, h, w), contiguous in memory."""
        out_channels = self.out_channels()
        return output if output.shape[-3] == out_channels else output.narrow(-3, 0, out_channels).clone()

    def slice_weight(self, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> tuple[Tensor, Tensor | None]:
        """The weight (out, in / groups, h, w), or transposed (in, out / groups, h, w), and the bias (out,) in use."""
        groups = self.groups()
        in_channels, out_channels = self.in_channels() // groups, self.out_channels() // groups
        weight = self._crop_kernel(weight)[:, : in_channels if not transposed else out_channels]
        weight = self._slice_groups(weight, groups, out_channels if not transposed else in_channels)
        return weight, None if bias is None else self._slice_groups(bias, groups, out_channels)

    def _crop_kernel(self, weight: Tensor) -> Tensor:
        (height, width), (max_height, max_width) = self.kernel(), self.max_kernel
        if (height, width) == self.max_kernel:
            return weight
        top, left = (max_height - height) // 2, (max_width - width) // 2
        return weight[:, :, top : top + height, left : left + width]

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


def pair(sizes: Pair) -> tuple[int, int]:
    """One number for both axes, as a pair."""
    down, across = sizes if isinstance(sizes, Sequence) else (sizes, sizes)
    return down, across


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


class Conv2d(ElasticLayer, nn.Conv2d):
    """`nn.Conv2d` whose channels, groups and kernel may follow decisions: (n, in, h, w) to (n, out, h', w').

    `padding` belongs to the largest kernel and shrinks with it, so that the output keeps its size.
    Of several groups, the first channels of each are used; groups that follow a width are left out.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> conv = Conv2d(3, Width("channels", 16, 64), kernel_size=3, padding=1)
    >>> select(conv, {"channels": 20})
    >>> conv(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 20, 8, 8])
    """

    def __init__(
        self,
        in_channels: InputSize,
        out_channels: SizeLike,
        kernel_size: SizeLike | tuple[SizeLike, SizeLike],
        stride: Pair = 1,
        padding: str | Pair = 0,
        dilation: Pair = 1,
        groups: SizeLike = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_fixed(stride=stride, padding=padding, dilation=dilation, bias=bias, padding_mode=padding_mode)
        conv_slice = ConvSlice(in_channels, out_channels, kernel_size, groups)
        conv_slice.check_padding(padding, dilation)
        super().__init__(
            conv_slice.max_in,
            conv_slice.max_out,
            conv_slice.max_kernel,
            stride=pair(stride),
            padding=padding if isinstance(padding, str) else pair(padding),
            dilation=pair(dilation),
            groups=conv_slice.max_groups,
            bias=bias,
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
        )
        self._slice = conv_slice
        self._register_sizes(**conv_slice.roles())

    def active_tensors(self) -> dict[str, Tensor | None]:
        weight, bias = self._slice.slice_weight(self.weight, self.bias, transposed=False)
        return {"weight": weight, "bias": bias}

    def build_meta(self) -> nn.Conv2d:
        return on_meta(
            nn.Conv2d,
            self._slice.in_channels(),
            self._slice.out_channels(),
            self._slice.kernel(),
            stride=pair(self.stride),
            padding=self._padding(),
            dilation=pair(self.dilation),
            groups=self._slice.groups(),
            bias=self.bias is not None,
            padding_mode=self.padding_mode,
        )

    def _padding(self) -> str | tuple[int, int]:
        if isinstance(self.padding, str):
            return self.padding
        return self._slice.padding(self.padding, self.dilation)

    def forward(self, input: Tensor) -> Tensor:
        conv_slice = self._slice
        self._check_input(conv_slice.in_channels, input, -3)
        padding = self._padding()
        if self.padding_mode != "zeros":
            down, across = conv_slice.kernel_offset(self.dilation)
            left, right, top, bottom = self._reversed_padding_repeated_twice
            around = [left - across, right - across, top - down, bottom - down]
            input, padding = F.pad(input, around, mode=self.padding_mode), (0, 0)
        input, weight, bias = conv_slice.prepare(input, self.weight, self.bias, transposed=False)
        output = F.conv2d(input, weight, bias, self.stride, padding, self.dilation, conv_slice.groups())
        return self._record_output(conv_slice.out_channels(), conv_slice.crop(output))


class ConvTranspose2d(ElasticLayer, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` whose channels, groups and kernel may follow decisions, as those of `Conv2d` do.

    >>> import torch
    >>> from asng.nas import Value, select
    >>> from asng.space import Integer
    >>> conv = ConvTranspose2d(4, 3, Value("k", Integer(1, 3)) * 2 - 1, stride=2, padding=2, output_padding=1)
    >>> select(conv, {"k": 2})
    >>> conv(torch.zeros(1, 4, 8, 8)).shape
    torch.Size([1, 3, 16, 16])
    """

    def __init__(
        self,
        in_channels: InputSize,
        out_channels: SizeLike,
        kernel_size: SizeLike | tuple[SizeLike, SizeLike],
        stride: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
        groups: SizeLike = 1,
        bias: bool = True,
        dilation: Pair = 1,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_fixed(stride=stride, padding=padding, output_padding=output_padding, dilation=dilation, bias=bias)
        conv_slice = ConvSlice(in_channels, out_channels, kernel_size, groups)
        conv_slice.check_padding(padding, dilation)
        super().__init__(
            conv_slice.max_in,
            conv_slice.max_out,
            conv_slice.max_kernel,
            stride=pair(stride),
            padding=pair(padding),
            output_padding=pair(output_padding),
            groups=conv_slice.max_groups,
            bias=bias,
            dilation=pair(dilation),
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
        )
        self._slice = conv_slice
        self._register_sizes(**conv_slice.roles())

    def active_tensors(self) -> dict[str, Tensor | None]:
        weight, bias = self._slice.slice_weight(self.weight, self.bias, transposed=True)
        return {"weight": weight, "bias": bias}

    def build_meta(self) -> nn.ConvTranspose2d:
        return on_meta(
            nn.ConvTranspose2d,
            self._slice.in_channels(),
            self._slice.out_channels(),
            self._slice.kernel(),
            stride=pair(self.stride),
            padding=self._padding(),
            output_padding=pair(self.output_padding),
            groups=self._slice.groups(),
            bias=self.bias is not None,
            dilation=pair(self.dilation),
        )

    def _padding(self) -> tuple[int, int]:
        assert not isinstance(self.padding, str)
        return self._slice.padding(self.padding, self.dilation)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        conv_slice = self._slice
        self._check_input(conv_slice.in_channels, input, -3)
        padding, dilation = self._padding(), self.dilation
        more = self._output_padding(
            input, output_size, list(self.stride), list(padding), list(conv_slice.kernel()), 2, list(dilation)
        )
        input, weight, bias = conv_slice.prepare(input, self.weight, self.bias, transposed=True)
        output = F.conv_transpose2d(input, weight, bias, self.stride, padding, more, conv_slice.groups(), dilation)
        return self._record_output(conv_slice.out_channels(), conv_slice.crop(output))
