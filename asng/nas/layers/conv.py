"""Elastic convolutions: channels, groups and kernels may follow decisions.

The first channels are used; on a GPU a few more are computed and cropped. Smaller kernels are cropped from the center.
"""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike
from asng.nas.layers._base import ElasticLayer, InputSize, check_fixed
from asng.nas.layers._conv_slice import ConvSlice, Sizes, to_tuple

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class _ElasticConv(ElasticLayer, nn.modules.conv._ConvNd):
    """What convolutions share: sizes that follow decisions, and the slice of the weight that they select."""

    _axes: int

    def __init__(
        self,
        in_channels: InputSize,
        out_channels: SizeLike,
        kernel_size: SizeLike | Sequence[SizeLike],
        *,
        padding: str | Sizes,
        dilation: Sizes,
        groups: SizeLike,
        **settings: Any,
    ) -> None:
        check_fixed(padding=padding, dilation=dilation, **settings)
        conv_slice = ConvSlice(in_channels, out_channels, kernel_size, groups, self._axes)
        conv_slice.check_padding(padding, dilation)
        sizes: Any = {"padding": padding, "dilation": dilation, **settings}
        for name in {"stride", "padding", "output_padding", "dilation"} & sizes.keys():
            if not isinstance(sizes[name], str):
                sizes[name] = to_tuple(sizes[name], self._axes)
        super().__init__(
            conv_slice.max_in, conv_slice.max_out, conv_slice.max_kernel, groups=conv_slice.max_groups, **sizes
        )
        self._slice = conv_slice
        self.register_sizes(**conv_slice.roles())

    def active_tensors(self) -> dict[str, Tensor | None]:
        weight, bias = self._slice.slice_weight(self.weight, self.bias, transposed=self.transposed)
        return {"weight": weight, "bias": bias}

    def static_settings(self) -> dict[str, Any]:
        settings = {
            "in_channels": self._slice.in_channels(),
            "out_channels": self._slice.out_channels(),
            "kernel_size": self._slice.kernel(),
            "stride": self.stride,
            "padding": self._padding(),
            "dilation": self.dilation,
            "groups": self._slice.groups(),
            "bias": self.bias is not None,
            "padding_mode": self.padding_mode,
        }
        return {**settings, "output_padding": self.output_padding} if self.transposed else settings

    def _padding(self) -> Any:
        return self.padding if isinstance(self.padding, str) else self._slice.padding(self.padding, self.dilation)

    def _convolve(self, function: Any, input: Tensor, *arguments: Any) -> Tensor:
        """The output of torch's function, called with input, weight, bias, stride and these arguments."""
        conv_slice = self._slice
        input, weight, bias = conv_slice.prepare(input, self.weight, self.bias, transposed=self.transposed)
        return conv_slice.crop(function(input, weight, bias, self.stride, *arguments))


class Conv2d(_ElasticConv, nn.Conv2d):
    """`nn.Conv2d` whose channels, groups and kernel may follow decisions: (n, in, h, w) to (n, out, h', w').

    Of several groups, the first channels of each are used; groups that follow a width are left out.

    Args:
        in_channels: A number, a decision, a multiple of one, or `AnySize`.
        out_channels: A number, a decision or a multiple of one.
        kernel_size: The same, for both axes or for each; all odd or all even.
        padding: Belongs to the largest kernel and shrinks with it, so that the output keeps its size.
        groups: A number, or the decision that the channels are multiples of.
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

    torch_layer, _axes = nn.Conv2d, 2

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
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=bias,
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
        )

    def forward(self, input: Tensor) -> Tensor:
        self.check_input(self._slice.in_channels, input, -1 - self._axes)
        padding = self._padding()
        if self.padding_mode != "zeros":
            offsets = [less for less in reversed(self._slice.kernel_offset(self.dilation)) for _ in range(2)]
            around = [pad - less for pad, less in zip(self._reversed_padding_repeated_twice, offsets, strict=True)]
            input, padding = F.pad(input, around, mode=self.padding_mode), 0
        return self._convolve(F.conv2d, input, padding, self.dilation, self._slice.groups())


class ConvTranspose2d(_ElasticConv, nn.ConvTranspose2d):
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

    torch_layer, _axes = nn.ConvTranspose2d, 2

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
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            groups=groups,
            bias=bias,
            dilation=dilation,
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
        )

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        self.check_input(self._slice.in_channels, input, -1 - self._axes)
        padding, kernel = self._padding(), list(self._slice.kernel())
        more = self._output_padding(
            input, output_size, list(self.stride), list(padding), kernel, self._axes, list(self.dilation)
        )
        return self._convolve(F.conv_transpose2d, input, padding, more, self._slice.groups(), self.dilation)
