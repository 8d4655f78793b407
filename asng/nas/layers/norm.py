"""Elastic normalization: torch's layers of the largest size, of which the first channels are used."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike, size_and_max
from asng.nas.layers._base import ElasticLayer, check_fixed, on_meta


class BatchNorm1d(ElasticLayer, nn.BatchNorm1d):
    """`nn.BatchNorm1d` whose features may follow a decision: (n, features) or (n, features, length).

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = BatchNorm1d(Width("units", 8, 32))
    >>> select(norm, {"units": 10})
    >>> norm(torch.ones(4, 10)).shape
    torch.Size([4, 10])
    """

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
        self._register_sizes(input=features)

    def active_tensors(self) -> dict[str, Tensor | None]:
        return _first_features(self, self._features())

    def build_meta(self) -> nn.BatchNorm1d:
        return on_meta(nn.BatchNorm1d, self._features(), self.eps, self.momentum, self.affine, self.track_running_stats)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        features = self._check_input(self._features, input, 1)
        return self._record_output(features, _batch_norm(self, input, features))


class BatchNorm2d(ElasticLayer, nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose channels may follow a decision: (n, channels, h, w).

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = BatchNorm2d(Width("channels", 8, 32))
    >>> select(norm, {"channels": 10})
    >>> norm(torch.ones(4, 10, 2, 2)).shape
    torch.Size([4, 10, 2, 2])
    """

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
        self._register_sizes(input=features)

    def active_tensors(self) -> dict[str, Tensor | None]:
        return _first_features(self, self._features())

    def build_meta(self) -> nn.BatchNorm2d:
        return on_meta(nn.BatchNorm2d, self._features(), self.eps, self.momentum, self.affine, self.track_running_stats)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        features = self._check_input(self._features, input, 1)
        return self._record_output(features, _batch_norm(self, input, features))


class LayerNorm(ElasticLayer, nn.LayerNorm):
    """`nn.LayerNorm` over one or several last axes, whose sizes may follow decisions: (..., *normalized_shape).

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = LayerNorm(Width("units", 8, 32))
    >>> select(norm, {"units": 10})
    >>> norm(torch.ones(4, 10)).shape
    torch.Size([4, 10])
    """

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
        self._register_sizes(**{f"input{axis or ''}": size for axis, size in enumerate(self._sizes)})

    def _shape(self) -> list[int]:
        return [size() for size in self._sizes]

    def active_tensors(self) -> dict[str, Tensor | None]:
        part = tuple(slice(size) for size in self._shape())
        tensors = {"weight": self.weight, "bias": self.bias}
        return {name: None if tensor is None else tensor[part] for name, tensor in tensors.items()}

    def build_meta(self) -> nn.LayerNorm:
        return on_meta(nn.LayerNorm, self._shape(), self.eps, self.elementwise_affine, self.bias is not None)

    def forward(self, input: Tensor) -> Tensor:
        for axis, size in enumerate(self._sizes, start=-len(self._sizes)):
            self._check_input(size, input, axis, "features")
        shape, part = self._shape(), self.active_tensors()
        return self._record_output(shape[-1], F.layer_norm(input, shape, part["weight"], part["bias"], self.eps))


def _first_features(norm: nn.BatchNorm1d | nn.BatchNorm2d, features: int) -> dict[str, Tensor | None]:
    """The first features of all that a batch norm holds; views, so that updates reach the layer."""
    whole = {name: getattr(norm, name) for name in ("weight", "bias", "running_mean", "running_var")}
    parts = {name: None if tensor is None else tensor[:features] for name, tensor in whole.items()}
    return {**parts, "num_batches_tracked": norm.num_batches_tracked}


def _batch_norm(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor, features: int) -> Tensor:
    """Batch norm with the first features; batch statistics in training mode, or without running ones."""
    part = _first_features(norm, features)
    mean, variance, batches = part["running_mean"], part["running_var"], part["num_batches_tracked"]
    from_batch = norm.training or mean is None
    momentum = norm.momentum
    if norm.training and not norm.track_running_stats:
        mean = variance = None  # not updated
    elif norm.training and batches is not None:
        batches.add_(1)
        if momentum is None:
            momentum = 1 / float(batches)  # the average of all batches
    return F.batch_norm(x, mean, variance, part["weight"], part["bias"], from_batch, momentum or 0.0, norm.eps)
