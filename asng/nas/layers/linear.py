"""Elastic linear layers, embeddings and PReLU: the first features or channels are used."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._size import refuse_any_size
from asng.nas.decisions import InputSize, SizeLike
from asng.nas.layers._base import ElasticLayer, first


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


class Embedding(ElasticLayer, nn.Embedding):
    """`nn.Embedding` whose dimension may follow decisions: integers (...) to (..., embedding_dim).

    Its weight may be that of a `Linear` too: `head.weight = embedding.weight`.

    Args:
        num_embeddings, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, device, dtype: As in torch.
        embedding_dim: A number, a decision or arithmetic with decisions; a number alone with `sparse`.

    Raises:
        ValueError: A size can be less than 1, gradients are sparse, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> embedding = Embedding(100, Width("units", 8, 32))
    >>> select(embedding, {"units": 10})
    >>> embedding(torch.zeros(4, dtype=torch.long)).shape
    torch.Size([4, 10])
    """

    torch_layer = nn.Embedding
    elastic: ClassVar[tuple[str, ...]] = ("embedding_dim",)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: SizeLike,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        settings = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        super().__init__(num_embeddings, embedding_dim, *settings, device=device, dtype=dtype)

    def check_sizes(self, sizes: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        refuse_any_size(sizes)
        if arguments["sparse"] and sizes["embedding_dim"].is_elastic:
            raise ValueError("slices have no sparse gradients; give sparse=False, or a number as embedding_dim")

    @classmethod
    def settings_of(cls, layer: nn.Module) -> dict[str, Any]:
        names = ("num_embeddings", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
        return {name: getattr(layer, name) for name in names}

    def active_tensors(self) -> dict[str, Tensor | None]:
        return {"weight": first(self.weight, self.num_embeddings, self.sizes["embedding_dim"]())}

    def forward(self, input: Tensor) -> Tensor:
        weight: Any = self.active_tensors()["weight"]
        settings = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return F.embedding(input, weight, *settings)
