"""Elastic layers of features: linear ones, PReLU, embeddings and attention use the first features, or heads."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._size import refuse_any_size, remainder
from asng.nas.decisions import InputSize, SizeLike
from asng.nas.layers._base import ElasticLayer, trim, trim_groups


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
        return {"weight": trim(self.weight, out_features, in_features), "bias": trim(self.bias, out_features)}

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
        return {"weight": trim(self.weight, self.sizes["num_parameters"]())}

    def forward(self, input: Tensor) -> Tensor:
        if self.num_parameters > 1:
            self.check_input(self.sizes["num_parameters"], input, 1)
        weight: Any = self.active_tensors()["weight"]
        return F.prelu(input, weight)


class Embedding(ElasticLayer, nn.Embedding):
    """`nn.Embedding` whose dimension may follow decisions: integers (...) to (..., embedding_dim).

    A `Linear` may share its weight: `head.weight = embedding.weight`.

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

    def active_tensors(self) -> dict[str, Tensor | None]:
        return {"weight": trim(self.weight, self.num_embeddings, self.sizes["embedding_dim"]())}

    def forward(self, input: Tensor) -> Tensor:
        weight: Any = self.active_tensors()["weight"]
        settings = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return F.embedding(input, weight, *settings)


class MultiheadAttention(ElasticLayer, nn.MultiheadAttention):
    """`nn.MultiheadAttention` whose width, heads and head dimension may follow decisions.

    The head dimension is `embed_dim / num_heads`: to search it, let `embed_dim` be `heads * head_dim`. If no head is
    ever larger than those of the largest layer, the first entries of the first heads are used. Otherwise, for example
    if width and heads are independent, the first entries of all heads together are used.

    Args:
        embed_dim: A number, a decision or arithmetic with decisions.
        num_heads: The same; it must divide every width.
        dropout, bias, add_bias_kv, add_zero_attn, batch_first, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> heads, head_dim = Width("heads", [2, 4]), Width("head_dim", [8, 16])
    >>> attention = MultiheadAttention(heads * head_dim, heads, batch_first=True)
    >>> select(attention, {"heads": 4, "head_dim": 8})
    >>> x = torch.zeros(1, 5, 32)
    >>> attention(x, x, x)[0].shape
    torch.Size([1, 5, 32])
    """

    torch_layer = nn.MultiheadAttention
    elastic: ClassVar[tuple[str, ...]] = ("embed_dim", "num_heads")

    def __init__(
        self,
        embed_dim: SizeLike,
        num_heads: SizeLike,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        *,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        settings = (dropout, bias, add_bias_kv, add_zero_attn)
        super().__init__(embed_dim, num_heads, *settings, batch_first=batch_first, device=device, dtype=dtype)
        width, heads = self.sizes["embed_dim"], self.sizes["num_heads"]
        self._by_head = (width // heads).max <= self.embed_dim // self.num_heads

    def check_sizes(self, sizes: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        refuse_any_size(sizes)
        if remainder(sizes["embed_dim"], sizes["num_heads"]).max:
            raise ValueError(
                f"embed_dim must always be divisible by num_heads, but {sizes['embed_dim']} is not by "
                f"{sizes['num_heads']} for some values; let it be a product, such as heads * head_dim"
            )

    @classmethod
    def settings_of(cls, layer: nn.Module) -> dict[str, Any]:
        of: Any = layer
        if not of._qkv_same_embed_dim:
            raise ValueError(f"keys and values have the width of queries, not kdim={of.kdim} and vdim={of.vdim}")
        has = {"bias": of.in_proj_bias is not None, "add_bias_kv": of.bias_k is not None}
        return has | {name: getattr(of, name) for name in ("dropout", "add_zero_attn", "batch_first")}

    def active_tensors(self) -> dict[str, Tensor | None]:
        width, out = self.sizes["embed_dim"](), self.out_proj
        weight = torch.cat([self._trim_heads(part)[:, :width] for part in self.in_proj_weight.chunk(3)])
        bias = self.in_proj_bias
        return {
            "in_proj_weight": weight,
            "in_proj_bias": None if bias is None else torch.cat([self._trim_heads(part) for part in bias.chunk(3)]),
            "bias_k": None if self.bias_k is None else self._trim_heads(self.bias_k.flatten()).view(1, 1, -1),
            "bias_v": None if self.bias_v is None else self._trim_heads(self.bias_v.flatten()).view(1, 1, -1),
            "out_proj.weight": self._trim_heads(out.weight[:width].T).T,
            "out_proj.bias": trim(out.bias, width),
        }

    def _trim_heads(self, tensor: Tensor) -> Tensor:
        """The entries of the selected heads, on the first axis."""
        heads = self.sizes["num_heads"]() if self._by_head else 1
        groups = self.num_heads if self._by_head else 1
        return trim_groups(tensor, groups, heads, self.sizes["embed_dim"]() // heads)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        for tensor in (query, key, value):
            self.check_input(self.sizes["embed_dim"], tensor, -1, "features")
        swaps = self.batch_first and query.dim() == 3
        if swaps:  # torch's function looks whether they are the same
            same_key, same_value = key is query, value is key
            query = query.transpose(0, 1)
            key = query if same_key else key.transpose(0, 1)
            value = key if same_value else value.transpose(0, 1)
        part: Any = self.active_tensors()
        output, weights = F.multi_head_attention_forward(
            *(query, key, value, self.sizes["embed_dim"](), self.sizes["num_heads"]()),
            *(part["in_proj_weight"], part["in_proj_bias"], part["bias_k"], part["bias_v"], self.add_zero_attn),
            *(self.dropout, part["out_proj.weight"], part["out_proj.bias"], self.training, key_padding_mask),
            *(need_weights, attn_mask),
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return output.transpose(0, 1) if swaps else output, weights
