"""Layers with torch's own signatures that take a decision where torch takes a number of channels.

Each is torch's layer at its largest, so that initialisation and state_dict are torch's, and computes
with the first channels of its weights, as many as are selected; on a GPU convolutions take some more, which
change nothing. Kernels are cut from the centre. Plain numbers make plain layers.
"""

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas.decision import Sizable, Sized, Takable, largest, most_taken, on_meta
from asng.nas.windows import Pair, Window, check_fixed, pair

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class Conv2d(Sized, nn.Conv2d):
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
        in_channels: Takable,
        out_channels: Sizable,
        kernel_size: Sizable | tuple[Sizable, Sizable],
        stride: Pair = 1,
        padding: str | Pair = 0,
        dilation: Pair = 1,
        groups: Sizable = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_fixed(stride=stride, padding=padding, dilation=dilation, bias=bias, padding_mode=padding_mode)
        window = Window(in_channels, out_channels, kernel_size, groups)
        window.check_padding(padding, dilation)
        super().__init__(
            window.most_in,
            window.most_out,
            window.most_kernel,
            stride=pair(stride),
            padding=padding if isinstance(padding, str) else pair(padding),
            dilation=pair(dilation),
            groups=window.most_groups,
            bias=bias,
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
        )
        self._window = window
        self._follow(**window.roles())

    def needed(self) -> dict[str, Tensor | None]:
        weight, bias = self._window.part(self.weight, self.bias, transposed=False)
        return {"weight": weight, "bias": bias}

    def small(self) -> nn.Conv2d:
        return on_meta(
            nn.Conv2d,
            self._window.takes(),
            self._window.gives(),
            self._window.kernel(),
            stride=pair(self.stride),
            padding=self._outside(),
            dilation=pair(self.dilation),
            groups=self._window.groups(),
            bias=self.bias is not None,
            padding_mode=self.padding_mode,
        )

    def _outside(self) -> str | tuple[int, int]:
        if isinstance(self.padding, str):
            return self.padding
        return self._window.padding(self.padding, self.dilation)

    def forward(self, input: Tensor) -> Tensor:
        window = self._window
        self._take(window.takes, input, -3)
        outside = self._outside()
        if self.padding_mode != "zeros":
            down, across = window.shrunk(self.dilation)
            left, right, top, bottom = self._reversed_padding_repeated_twice
            around = [left - across, right - across, top - down, bottom - down]
            input, outside = F.pad(input, around, mode=self.padding_mode), (0, 0)
        input, weight, bias = window.applied(input, self.weight, self.bias, transposed=False)
        output = F.conv2d(input, weight, bias, self.stride, outside, self.dilation, window.groups())
        return self._give(window.gives(), window.cut(output))


class ConvTranspose2d(Sized, nn.ConvTranspose2d):
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
        in_channels: Takable,
        out_channels: Sizable,
        kernel_size: Sizable | tuple[Sizable, Sizable],
        stride: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
        groups: Sizable = 1,
        bias: bool = True,
        dilation: Pair = 1,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_fixed(stride=stride, padding=padding, output_padding=output_padding, dilation=dilation, bias=bias)
        window = Window(in_channels, out_channels, kernel_size, groups)
        window.check_padding(padding, dilation)
        super().__init__(
            window.most_in,
            window.most_out,
            window.most_kernel,
            stride=pair(stride),
            padding=pair(padding),
            output_padding=pair(output_padding),
            groups=window.most_groups,
            bias=bias,
            dilation=pair(dilation),
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
        )
        self._window = window
        self._follow(**window.roles())

    def needed(self) -> dict[str, Tensor | None]:
        weight, bias = self._window.part(self.weight, self.bias, transposed=True)
        return {"weight": weight, "bias": bias}

    def small(self) -> nn.ConvTranspose2d:
        return on_meta(
            nn.ConvTranspose2d,
            self._window.takes(),
            self._window.gives(),
            self._window.kernel(),
            stride=pair(self.stride),
            padding=self._outside(),
            output_padding=pair(self.output_padding),
            groups=self._window.groups(),
            bias=self.bias is not None,
            dilation=pair(self.dilation),
        )

    def _outside(self) -> tuple[int, int]:
        assert not isinstance(self.padding, str)
        return self._window.padding(self.padding, self.dilation)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        window = self._window
        self._take(window.takes, input, -3)
        outside, dilation = self._outside(), self.dilation
        more = self._output_padding(
            input, output_size, list(self.stride), list(outside), list(window.kernel()), 2, list(dilation)
        )
        input, weight, bias = window.applied(input, self.weight, self.bias, transposed=True)
        output = F.conv_transpose2d(input, weight, bias, self.stride, outside, more, window.groups(), dilation)
        return self._give(window.gives(), window.cut(output))


class Linear(Sized, nn.Linear):
    """`nn.Linear` whose features may follow decisions: (..., in) to (..., out).

    >>> import torch
    >>> from asng.nas import Width, select
    >>> linear = Linear(8, Width("units", [16, 32]))
    >>> select(linear, {"units": 16})
    >>> linear(torch.zeros(1, 8)).shape
    torch.Size([1, 16])
    """

    def __init__(
        self, in_features: Takable, out_features: Sizable, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        check_fixed(bias=bias)
        takes, most_in = most_taken(in_features, "in_features")
        gives, most_out = largest(out_features, "out_features")
        super().__init__(most_in, most_out, bias, device, dtype)
        self._in, self._out = takes, gives
        self._follow(takes=takes, gives=gives)

    def needed(self) -> dict[str, Tensor | None]:
        bias = None if self.bias is None else self.bias[: self._out()]
        return {"weight": self.weight[: self._out(), : self._in()], "bias": bias}

    def small(self) -> nn.Linear:
        return on_meta(nn.Linear, self._in(), self._out(), self.bias is not None)

    def forward(self, input: Tensor) -> Tensor:
        takes, gives = self._take(self._in, input, -1, "features"), self._out()
        bias = None if self.bias is None else self.bias[:gives]
        return self._give(gives, F.linear(input, self.weight[:gives, :takes], bias))
