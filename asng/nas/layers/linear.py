"""Elastic linear layers: the numbers of features may follow decisions."""

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike
from asng.nas.layers._base import ElasticLayer
from asng.nas.layers._sizes import InputSize, first


class Linear(ElasticLayer, nn.Linear):
    """`nn.Linear` whose features may follow decisions: (..., in) to (..., out).

    Args:
        in_features: A number, a decision, arithmetic with decisions, or `AnySize`.
        out_features: A number, a decision or arithmetic with decisions.
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
    elastic: ClassVar[tuple[str, ...]] = ("in_features", "out_features")

    def __init__(
        self, in_features: InputSize, out_features: SizeLike, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)

    def active_tensors(self) -> dict[str, Tensor | None]:
        in_features, out_features = self.sizes["in_features"](), self.sizes["out_features"]()
        return {"weight": first(self.weight, out_features, in_features), "bias": first(self.bias, out_features)}

    def forward(self, input: Tensor) -> Tensor:
        self.check_input(self.sizes["in_features"], input, -1, "features")
        part: Any = self.active_tensors()
        return F.linear(input, part["weight"], part["bias"])
