"""Elastic normalization: torch's layers of the largest size, of which the first channels are used."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike
from asng.nas.layers._base import ElasticLayer, check_fixed, first


class _ElasticBatchNorm(ElasticLayer, nn.modules.batchnorm._BatchNorm):
    """What batch norms of all dimensions share."""

    elastic = ("num_features",)

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
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        check_fixed(bias=bias)  # which older versions of torch do not have
        if not bias:
            self.register_parameter("bias", None)

    def active_tensors(self) -> dict[str, Tensor | None]:
        # Views, so that updates of the running statistics reach the layer.
        features = self.sizes["num_features"]()
        names = ("weight", "bias", "running_mean", "running_var")
        parts = {name: first(getattr(self, name), features) for name in names}
        return {**parts, "num_batches_tracked": self.num_batches_tracked}

    def forward(self, input: Tensor) -> Tensor:
        """Batch norm with the first features; batch statistics in training mode, or without running ones."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        self.check_input(self.sizes["num_features"], input, 1)
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

    torch_layer, elastic = nn.LayerNorm, ("normalized_shape",)

    def __init__(
        self,
        normalized_shape: SizeLike | Sequence[SizeLike],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)

    def _shape(self) -> list[int]:
        return [size() for size in self.sizes["normalized_shape"]]

    def active_tensors(self) -> dict[str, Tensor | None]:
        shape = self._shape()
        return {"weight": first(self.weight, *shape), "bias": first(self.bias, *shape)}

    def forward(self, input: Tensor) -> Tensor:
        sizes = self.sizes["normalized_shape"]
        for axis, size in enumerate(sizes, start=-len(sizes)):
            self.check_input(size, input, axis, "features")
        return F.layer_norm(input, self._shape(), **self.active_tensors(), eps=self.eps)
