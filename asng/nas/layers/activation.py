"""Elastic activations: those with a weight for each channel."""

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike
from asng.nas.layers._base import ElasticLayer
from asng.nas.layers._sizes import first


class PReLU(ElasticLayer, nn.PReLU):
    """`nn.PReLU` whose number of weights may follow decisions: (n, channels, ...).

    Args:
        num_parameters: The number of channels: a number, a decision or arithmetic with decisions; 1 for all channels.
        init, device, dtype: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> act = PReLU(Width("channels", [8, 16]))
    >>> select(act, {"channels": 8})
    >>> act(-torch.ones(1, 8)).shape
    torch.Size([1, 8])
    """

    torch_layer = nn.PReLU
    elastic: ClassVar[tuple[str, ...]] = ("num_parameters",)

    def __init__(self, num_parameters: SizeLike = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__(num_parameters, init, device, dtype)

    def active_tensors(self) -> dict[str, Tensor | None]:
        return {"weight": first(self.weight, self.sizes["num_parameters"]())}

    def forward(self, input: Tensor) -> Tensor:
        if self.num_parameters > 1:
            self.check_input(self.sizes["num_parameters"], input, 1)
        weight: Any = self.active_tensors()["weight"]
        return F.prelu(input, weight)
