"""Elastic normalization: torch's layers of the largest size, of which the first channels are used."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike, size_and_max
from asng.nas.layers._base import ElasticLayer, check_fixed


class _ElasticBatchNorm(ElasticLayer, nn.modules.batchnorm._BatchNorm):
    """What batch norms of all dimensions share."""

    def __init__(
        self,
        num_features: SizeLike,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        check_fixed(eps=eps, momentum=momentum, affine=affine, track_running_stats=track_running_stats, bias=bias)
        features, max_features = size_and_max(num_features, "num_features")
        super().__init__(max_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        if not bias:
            self.register_parameter("bias", None)
        self._features = features
        self.register_sizes(input=features)

    def active_tensors(self) -> dict[str, Tensor | None]:
        # Views, so that updates of the running statistics reach the layer.
        features = self._features()
        whole = {name: getattr(self, name) for name in ("weight", "bias", "running_mean", "running_var")}
        parts = {name: None if tensor is None else tensor[:features] for name, tensor in whole.items()}
        return {**parts, "num_batches_tracked": self.num_batches_tracked}

    def static_settings(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ("eps", "momentum", "affine", "track_running_stats")}
        return {"num_features": self._features(), **settings}

    def forward(self, input: Tensor) -> Tensor:
        """Batch norm with the first features; batch statistics in training mode, or without running ones."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        self.check_input(self._features, input, 1)
        part = self.active_tensors()
        mean, variance, batches = part["running_mean"], part["running_var"], part["num_batches_tracked"]
        from_batch = self.training or mean is None
        momentum = self.momentum
        if self.training and not self.track_running_stats:
            mean = variance = None  # not updated
        elif self.training and batches is not None:
            batches.add_(1)
            if momentum is None:
                momentum = 1 / float(batches)  # the average of all batches
        return F.batch_norm(input, mean, variance, part["weight"], part["bias"], from_batch, momentum or 0.0, self.eps)


class BatchNorm1d(_ElasticBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` whose features may follow a decision: (n, features) or (n, features, length).

    Args:
        num_features: A number, a decision or a multiple of one.
        eps, momentum, affine, track_running_stats, device, dtype, bias: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = BatchNorm1d(Width("units", 8, 32))
    >>> select(norm, {"units": 10})
    >>> norm(torch.ones(4, 10)).shape
    torch.Size([4, 10])
    """

    torch_layer = nn.BatchNorm1d


class BatchNorm2d(_ElasticBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose channels may follow a decision: (n, channels, h, w).

    Args:
        num_features: A number, a decision or a multiple of one.
        eps, momentum, affine, track_running_stats, device, dtype, bias: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = BatchNorm2d(Width("channels", 8, 32))
    >>> select(norm, {"channels": 10})
    >>> norm(torch.ones(4, 10, 2, 2)).shape
    torch.Size([4, 10, 2, 2])
    """

    torch_layer = nn.BatchNorm2d


class LayerNorm(ElasticLayer, nn.LayerNorm):
    """`nn.LayerNorm` over one or several last axes, whose sizes may follow decisions: (..., *normalized_shape).

    Args:
        normalized_shape: One size or several: numbers, decisions or multiples of them.
        eps, elementwise_affine, bias, device, dtype: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = LayerNorm(Width("units", 8, 32))
    >>> select(norm, {"units": 10})
    >>> norm(torch.ones(4, 10)).shape
    torch.Size([4, 10])
    """

    torch_layer = nn.LayerNorm

    def __init__(
        self,
        normalized_shape: SizeLike | Sequence[SizeLike],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_fixed(eps=eps, elementwise_affine=elementwise_affine, bias=bias)
        shape = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        sizes = [size_and_max(size, "normalized_shape") for size in shape]
        super().__init__([max_features for _, max_features in sizes], eps, elementwise_affine, bias, device, dtype)
        self._sizes = [size for size, _ in sizes]
        self.register_sizes(**{f"input{axis or ''}": size for axis, size in enumerate(self._sizes)})

    def _shape(self) -> list[int]:
        return [size() for size in self._sizes]

    def active_tensors(self) -> dict[str, Tensor | None]:
        part = tuple(slice(size) for size in self._shape())
        tensors = {"weight": self.weight, "bias": self.bias}
        return {name: None if tensor is None else tensor[part] for name, tensor in tensors.items()}

    def static_settings(self) -> dict[str, Any]:
        settings = {"eps": self.eps, "elementwise_affine": self.elementwise_affine, "bias": self.bias is not None}
        return {"normalized_shape": tuple(self._shape()), **settings}

    def forward(self, input: Tensor) -> Tensor:
        for axis, size in enumerate(self._sizes, start=-len(self._sizes)):
            self.check_input(size, input, axis, "features")
        shape, part = self._shape(), self.active_tensors()
        return F.layer_norm(input, shape, part["weight"], part["bias"], self.eps)
