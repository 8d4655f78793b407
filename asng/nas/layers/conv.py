"""Elastic convolutions, and transposed ones, in one, two and three dimensions."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._size import AnySize, Size, remainder
from asng.nas.decisions import InputSize, SizeLike
from asng.nas.layers._base import ElasticLayer, trim_groups

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Sizes = int | Sequence[int]

CHANNEL_MULTIPLE = 32  # channels


class ElasticConv(ElasticLayer, nn.modules.conv._ConvNd):
    """Base class of convolutions of (..., channels, *spatial): slices the weight to the selected sizes."""

    elastic: ClassVar[tuple[str, ...]] = ("in_channels", "out_channels", "groups", "kernel_size")
    _axes: ClassVar[int]  # spatial ones
    _function: ClassVar[str]  # of torch.nn.functional

    def __init__(self, in_channels: InputSize, out_channels: SizeLike, kernel_size: Any, *settings: Any) -> None:
        super().__init__(in_channels, out_channels, _to_tuple(kernel_size, self._axes), *settings)
        self._elastic_kernel = any(side.is_elastic for side in self.sizes["kernel_size"])

    def check_sizes(self, sizes: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        for channels in (sizes["in_channels"], sizes["out_channels"]):
            check_groups(channels, sizes["groups"])
        given = arguments["padding"]
        padding = {"valid": 0, "same": math.inf}.get(given) if isinstance(given, str) else given
        if padding is None:
            raise ValueError(f"padding must be numbers, 'valid' or 'same', got {given!r}")
        paddings, dilations = (_to_tuple(setting, self._axes) for setting in (padding, arguments["dilation"]))
        for side, pad, step in zip(sizes["kernel_size"], paddings, dilations, strict=True):
            _check_kernel(side, pad, step, given)

    def active_tensors(self) -> dict[str, Tensor | None]:
        return self._first_channels(self.sizes["in_channels"](), self.sizes["out_channels"]())

    def _first_channels(self, in_channels: int, out_channels: int) -> dict[str, Tensor | None]:
        """Weight and bias of the selected kernel and groups for these numbers of channels."""
        groups = self.sizes["groups"]()
        inputs, outputs = in_channels // groups, out_channels // groups
        rows, columns = (inputs, outputs) if self.transposed else (outputs, inputs)
        weight = trim_groups(self._crop_kernel()[:, :columns], self.groups, groups, rows)
        bias = None if self.bias is None else trim_groups(self.bias, self.groups, groups, outputs)
        return {"weight": weight, "bias": bias}

    def _crop_kernel(self) -> Tensor:
        """The weight of the selected kernel, which is the center of the largest one."""
        weight = self.weight
        if self._elastic_kernel:
            for axis, (offset, size) in enumerate(zip(self._offsets(), self._kernel(), strict=True), start=2):
                weight = weight.narrow(axis, offset, size) if offset else weight
        return weight

    def _kernel(self) -> list[int]:
        return [side() for side in self.sizes["kernel_size"]]

    def _offsets(self) -> list[int]:
        """The offset of the selected kernel in the largest one, on each axis."""
        return [(largest - size) // 2 for largest, size in zip(self.kernel_size, self._kernel(), strict=True)]

    def _padding(self) -> Any:
        """The padding that keeps the output size of the largest kernel."""
        if isinstance(self.padding, str) or not self._elastic_kernel:
            return self.padding
        offsets = zip(self.padding, self._offsets(), self.dilation, strict=True)
        return tuple(pad - offset * step for pad, offset, step in offsets)

    def static_settings(self) -> dict[str, Any]:
        return {**super().static_settings(), "padding": self._padding()}

    def _convolve(self, input: Tensor, *arguments: Any) -> Tensor:
        """The output of torch's function, called with input, weight, bias, stride and these arguments.

        Where new shapes are slow, numbers of channels are rounded up: the input is padded with channels of
        zeros, and surplus output channels are cropped. The result and all gradients are those of the exact slice.
        """
        in_channels, out_channels = inputs, outputs = self.sizes["in_channels"](), self.sizes["out_channels"]()
        has_channels = input.dim() > self._axes  # otherwise torch refuses it
        if self.groups == 1 and has_channels and is_slow_for_new_shapes(input.device):
            inputs = min(round_channels(in_channels), self.in_channels)
            outputs = min(round_channels(out_channels), self.out_channels)
            if inputs > in_channels:
                input = F.pad(input, (*(0, 0) * self._axes, 0, inputs - in_channels))
        part = self._first_channels(inputs, outputs)
        function: Any = getattr(F, self._function)
        output: Tensor = function(input, part["weight"], part["bias"], self.stride, *arguments)
        return output if outputs == out_channels else output.narrow(-1 - self._axes, 0, out_channels).clone()


class Conv(ElasticConv):
    """Base class of convolutions that are not transposed: torch's arguments, and the padding."""

    def __init__(
        self,
        in_channels: InputSize,
        out_channels: SizeLike,
        kernel_size: SizeLike | Sequence[SizeLike],
        stride: Sizes = 1,
        padding: str | Sizes = 0,
        dilation: Sizes = 1,
        groups: SizeLike = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        settings = (stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, kernel_size, *settings)

    def forward(self, input: Tensor) -> Tensor:
        self.check_input(self.sizes["in_channels"], input, -1 - self._axes)
        padding = self._padding()
        if self.padding_mode != "zeros":
            smaller = [n * step for n, step in zip(self._offsets(), self.dilation, strict=True) for _ in range(2)]
            around = zip(self._reversed_padding_repeated_twice, reversed(smaller), strict=True)
            input, padding = F.pad(input, [pad - less for pad, less in around], mode=self.padding_mode), 0
        return self._convolve(input, padding, self.dilation, self.sizes["groups"]())


class ConvTranspose(ElasticConv):
    """Base class of transposed convolutions: torch's arguments, and the padding of the output."""

    def __init__(
        self,
        in_channels: InputSize,
        out_channels: SizeLike,
        kernel_size: SizeLike | Sequence[SizeLike],
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: SizeLike = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        settings = (stride, padding, output_padding, groups, bias, dilation, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, kernel_size, *settings)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        self.check_input(self.sizes["in_channels"], input, -1 - self._axes)
        padding = self._padding()
        transposed: Any = self  # also one of torch's
        more = transposed._output_padding(
            input, output_size, list(self.stride), list(padding), self._kernel(), self._axes, list(self.dilation)
        )
        return self._convolve(input, padding, more, self.sizes["groups"](), self.dilation)


def is_slow_for_new_shapes(device: torch.device) -> bool:
    """True where the first convolution of a shape takes longer than later ones: cuDNN plans it."""
    return device.type == "cuda"


def round_channels(channels: int) -> int:
    """The next multiple of 32, or below 32 the next power of 2: few shapes to plan, and little surplus.

    >>> [round_channels(channels) for channels in (3, 8, 17, 64, 65, 200)]
    [4, 8, 32, 64, 96, 224]
    """
    if channels > CHANNEL_MULTIPLE:
        return -(-channels // CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE
    return 1 << (channels - 1).bit_length()


def _to_tuple(sizes: Any, axes: int) -> tuple[Any, ...]:
    """One size for all axes, or one for each, as a tuple."""
    if isinstance(sizes, Sequence) and len(sizes) != axes:
        raise ValueError(
            f"kernels, paddings and dilations are one number or {axes}, got {sizes!r}; to search for one of several, "
            "give nas.Value('kernel', Categorical([...]))"
        )
    return tuple(sizes) if isinstance(sizes, Sequence) else (sizes,) * axes


def check_groups(channels: Size | AnySize, groups: Size) -> None:
    """Raise ValueError unless channels can always be split into groups, none larger than those of the largest layer."""
    if groups.max < 1:
        raise ValueError(f"groups must be at least 1, got {groups}")
    if isinstance(channels, AnySize):
        if groups.max > 1:
            raise ValueError(f"channels of any size, {channels}, cannot be split into groups={groups}")
    elif not groups.is_elastic:
        wrong = [size for size in channels.values() if size % groups()]
        if wrong and channels.is_elastic:
            raise ValueError(
                f"every width must be divisible by groups={groups}, but {channels} can be {wrong[0]}; "
                f"use a Width times {groups}, or a list of widths that are"
            )
    elif remainder(channels, groups).max or (channels // groups).max > channels.max // groups.max:
        raise ValueError(
            f"groups follow {groups}, so channels must be a multiple of the same, got {channels}; "
            "write groups=width with channels of width or width * 2"
        )


def _check_kernel(side: Size, padding: float, dilation: int, given: Any) -> None:
    sizes = sorted(side.values())
    if any((b - a) % 2 for a, b in pairwise(sizes)):
        raise ValueError(
            f"kernels are cut from the center of the largest, so all must be odd or all even, got {sizes}; "
            'use Value("k", Integer(1, 3)) * 2 - 1 for 1, 3 and 5'
        )
    min_padding = (sizes[-1] - sizes[0]) // 2 * dilation
    if padding < min_padding:
        raise ValueError(
            f"padding={given!r} is too small for kernels from {sizes[0]} to {sizes[-1]}: it belongs to the largest and "
            f"shrinks with it, so give at least {min_padding}, or {sizes[-1] // 2 * dilation} to keep the size of the "
            "input"
        )


class Conv1d(Conv, nn.Conv1d):
    """`nn.Conv1d` whose channels, groups and kernel may follow decisions: (n, in, l) to (n, out, l').

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, dilation, bias, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> conv = Conv1d(3, Width("channels", 16, 64), kernel_size=3, padding=1)
    >>> select(conv, {"channels": 20})
    >>> conv(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 20, 8])
    """

    torch_layer = nn.Conv1d
    _axes, _function = 1, "conv1d"


class Conv2d(Conv, nn.Conv2d):
    """`nn.Conv2d` whose channels, groups and kernel may follow decisions: (n, in, h, w) to (n, out, h', w').

    With several groups, the first channels of each are used. If the number of groups follows a width, the last groups
    are left out.

    Args:
        in_channels: A number, a decision, arithmetic with decisions, or `AnySize`.
        out_channels: A number, a decision or arithmetic with decisions.
        kernel_size: The same, for both axes or for each; all odd or all even.
        padding: That of the largest kernel; it shrinks with the kernel, so that the output keeps its size.
        groups: A number, or a decision of which the channels are multiples.
        stride, dilation, bias, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> conv = Conv2d(3, Width("channels", 16, 64), kernel_size=3, padding=1)
    >>> select(conv, {"channels": 20})
    >>> conv(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 20, 8, 8])
    """

    torch_layer = nn.Conv2d
    _axes, _function = 2, "conv2d"


class Conv3d(Conv, nn.Conv3d):
    """`nn.Conv3d` whose channels, groups and kernel may follow decisions: (n, in, d, h, w) to (n, out, d', h', w').

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, dilation, bias, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> conv = Conv3d(3, Width("channels", 16, 64), kernel_size=3, padding=1)
    >>> select(conv, {"channels": 20})
    >>> conv(torch.zeros(1, 3, 8, 8, 8)).shape
    torch.Size([1, 20, 8, 8, 8])
    """

    torch_layer = nn.Conv3d
    _axes, _function = 3, "conv3d"


class ConvTranspose1d(ConvTranspose, nn.ConvTranspose1d):
    """`nn.ConvTranspose1d` whose channels, groups and kernel may follow decisions, as those of `Conv1d` do.

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, output_padding, bias, dilation, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Value, select
    >>> from asng.space import Integer
    >>> conv = ConvTranspose1d(4, 3, Value("k", Integer(1, 3)) * 2 - 1, stride=2, padding=2, output_padding=1)
    >>> select(conv, {"k": 2})
    >>> conv(torch.zeros(1, 4, 8)).shape
    torch.Size([1, 3, 16])
    """

    torch_layer = nn.ConvTranspose1d
    _axes, _function = 1, "conv_transpose1d"


class ConvTranspose2d(ConvTranspose, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` whose channels, groups and kernel may follow decisions, as those of `Conv2d` do.

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, output_padding, bias, dilation, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Value, select
    >>> from asng.space import Integer
    >>> conv = ConvTranspose2d(4, 3, Value("k", Integer(1, 3)) * 2 - 1, stride=2, padding=2, output_padding=1)
    >>> select(conv, {"k": 2})
    >>> conv(torch.zeros(1, 4, 8, 8)).shape
    torch.Size([1, 3, 16, 16])
    """

    torch_layer = nn.ConvTranspose2d
    _axes, _function = 2, "conv_transpose2d"


class ConvTranspose3d(ConvTranspose, nn.ConvTranspose3d):
    """`nn.ConvTranspose3d` whose channels, groups and kernel may follow decisions, as those of `Conv3d` do.

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, output_padding, bias, dilation, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Value, select
    >>> from asng.space import Integer
    >>> conv = ConvTranspose3d(4, 3, Value("k", Integer(1, 3)) * 2 - 1, stride=2, padding=2, output_padding=1)
    >>> select(conv, {"k": 2})
    >>> conv(torch.zeros(1, 4, 8, 8, 8)).shape
    torch.Size([1, 3, 16, 16, 16])
    """

    torch_layer = nn.ConvTranspose3d
    _axes, _function = 3, "conv_transpose3d"
