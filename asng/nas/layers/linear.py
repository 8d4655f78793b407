"""Elastic linear layers: the numbers of features may follow decisions."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike, size_and_max
from asng.nas.layers._base import ElasticLayer, InputSize, check_fixed, input_size_and_max


class Linear(ElasticLayer, nn.Linear):
    """`nn.Linear` whose features may follow decisions: (..., in) to (..., out).

    Args:
        in_features: A number, a decision, a multiple of one, or `AnySize`.
        out_features: A number, a decision or a multiple of one.
        bias, device, dtype: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> linear = Linear(8, Width("units", [16, 32]))
    >>> select(linear, {"units": 16})
    >>> linear(torch.zeros(1, 8)).shape
    torch.Size([1, 16])
    """

    torch_layer = nn.Linear

    def __init__(
        self, in_features: InputSize, out_features: SizeLike, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        check_fixed(bias=bias)
        input_size, max_in = input_size_and_max(in_features, "in_features")
        output_size, max_out = size_and_max(out_features, "out_features")
        super().__init__(max_in, max_out, bias, device, dtype)
        self._in, self._out = input_size, output_size
        self.register_sizes(input=input_size, output=output_size)

    def active_tensors(self) -> dict[str, Tensor | None]:
        bias = None if self.bias is None else self.bias[: self._out()]
        return {"weight": self.weight[: self._out(), : self._in()], "bias": bias}

    def static_settings(self) -> dict[str, Any]:
        return {"in_features": self._in(), "out_features": self._out(), "bias": self.bias is not None}

    def forward(self, input: Tensor) -> Tensor:
        in_features, out_features = self.check_input(self._in, input, -1, "features"), self._out()
        bias = None if self.bias is None else self.bias[:out_features]
        return F.linear(input, self.weight[:out_features, :in_features], bias)
