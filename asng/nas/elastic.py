"""Layers with torch's own signatures that take a decision where torch takes a number of channels.

Each is torch's layer of the largest size, so that initialization and state_dict are torch's, and computes with the
first channels of its weights; on a GPU convolutions compute a few more and crop them. Smaller kernels are cropped
from the center.
"""

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas.decision import ElasticLayer, InputSize, SizeLike, input_size_and_max, on_meta, size_and_max
from asng.nas.windows import ConvSlice, Pair, check_fixed, pair

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


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


class Linear(ElasticLayer, nn.Linear):
    """`nn.Linear` whose features may follow decisions: (..., in) to (..., out).

    >>> import torch
    >>> from asng.nas import Width, select
    >>> linear = Linear(8, Width("units", [16, 32]))
    >>> select(linear, {"units": 16})
    >>> linear(torch.zeros(1, 8)).shape
    torch.Size([1, 16])
    """

    def __init__(
        self, in_features: InputSize, out_features: SizeLike, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        check_fixed(bias=bias)
        input_size, max_in = input_size_and_max(in_features, "in_features")
        output_size, max_out = size_and_max(out_features, "out_features")
        super().__init__(max_in, max_out, bias, device, dtype)
        self._in, self._out = input_size, output_size
        self._register_sizes(input=input_size, output=output_size)

    def active_tensors(self) -> dict[str, Tensor | None]:
        bias = None if self.bias is None else self.bias[: self._out()]
        return {"weight": self.weight[: self._out(), : self._in()], "bias": bias}

    def build_meta(self) -> nn.Linear:
        return on_meta(nn.Linear, self._in(), self._out(), self.bias is not None)

    def forward(self, input: Tensor) -> Tensor:
        in_features, out_features = self._check_input(self._in, input, -1, "features"), self._out()
        bias = None if self.bias is None else self.bias[:out_features]
        return self._record_output(out_features, F.linear(input, self.weight[:out_features, :in_features], bias))
