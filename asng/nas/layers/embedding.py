"""Elastic embeddings: the dimension may follow decisions."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike
from asng.nas.layers._base import ElasticLayer
from asng.nas.layers._sizes import first, refuse_any_size


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
