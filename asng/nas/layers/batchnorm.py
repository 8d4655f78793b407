"""Elastic batch and instance norms in one, two and three dimensions: the first channels are used."""

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from asng.nas._decision import SizeLike
from asng.nas.layers._base import ElasticLayer
from asng.nas.layers._sizes import check_fixed, first


class _ElasticNorm(ElasticLayer, nn.modules.batchnorm._NormBase):
    """What batch and instance norms of all dimensions share."""

    elastic: ClassVar[tuple[str, ...]] = ("num_features",)

    def __init__(self, num_features: SizeLike, *settings: Any, bias: bool) -> None:
        super().__init__(num_features, *settings)
        check_fixed(self.elastic, bias=bias)  # which older versions of torch do not have
        if not bias:
            self.register_parameter("bias", None)

    def active_tensors(self) -> dict[str, Tensor | None]:
        # Views, so that updates of the running statistics reach the layer.
        features = self.sizes["num_features"]()
        names = ("weight", "bias", "running_mean", "running_var")
        parts = {name: first(getattr(self, name), features) for name in names}
        return {**parts, "num_batches_tracked": self.num_batches_tracked}


class _ElasticBatchNorm(_ElasticNorm, nn.modules.batchnorm._BatchNorm):
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
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

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


class _ElasticInstanceNorm(_ElasticNorm, nn.modules.instancenorm._InstanceNorm):
    """What instance norms of all dimensions share."""

    _axes: ClassVar[int]  # spatial ones

    def __init__(
        self,
        num_features: SizeLike,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Instance norm with the first features; statistics of the input in training mode, or without running ones."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        self.check_input(self.sizes["num_features"], input, -1 - self._axes)
        part = self.active_tensors()
        mean, variance, weight, bias = (part[name] for name in ("running_mean", "running_var", "weight", "bias"))
        from_input = self.training or not self.track_running_stats
        batch = input if input.dim() > 1 + self._axes else input[None]
        output = F.instance_norm(batch, mean, variance, weight, bias, from_input, self.momentum or 0.0, self.eps)
        return output.view_as(input)


class BatchNorm1d(_ElasticBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` whose features may follow decisions: (n, features) or (n, features, length).

    Args:
        num_features: A number, a decision or arithmetic with decisions.
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
    """`nn.BatchNorm2d` whose channels may follow decisions: (n, channels, h, w).

    Args:
        num_features: A number, a decision or arithmetic with decisions.
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


class BatchNorm3d(_ElasticBatchNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d` whose channels may follow decisions: (n, channels, d, h, w).

    Args:
        num_features: A number, a decision or arithmetic with decisions.
        eps, momentum, affine, track_running_stats, device, dtype, bias: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = BatchNorm3d(Width("channels", 8, 32))
    >>> select(norm, {"channels": 10})
    >>> norm(torch.ones(4, 10, 2, 2, 2)).shape
    torch.Size([4, 10, 2, 2, 2])
    """

    torch_layer = nn.BatchNorm3d


class InstanceNorm1d(_ElasticInstanceNorm, nn.InstanceNorm1d):
    """`nn.InstanceNorm1d` whose channels may follow decisions: ([n, ]channels, length).

    Args:
        num_features: A number, a decision or arithmetic with decisions.
        eps, momentum, affine, track_running_stats, device, dtype, bias: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = InstanceNorm1d(Width("channels", 8, 32), affine=True)
    >>> select(norm, {"channels": 10})
    >>> norm(torch.ones(4, 10, 2)).shape
    torch.Size([4, 10, 2])
    """

    torch_layer = nn.InstanceNorm1d
    _axes = 1


class InstanceNorm2d(_ElasticInstanceNorm, nn.InstanceNorm2d):
    """`nn.InstanceNorm2d` whose channels may follow decisions: ([n, ]channels, h, w).

    Args:
        num_features: A number, a decision or arithmetic with decisions.
        eps, momentum, affine, track_running_stats, device, dtype, bias: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = InstanceNorm2d(Width("channels", 8, 32), affine=True)
    >>> select(norm, {"channels": 10})
    >>> norm(torch.ones(4, 10, 2, 2)).shape
    torch.Size([4, 10, 2, 2])
    """

    torch_layer = nn.InstanceNorm2d
    _axes = 2


class InstanceNorm3d(_ElasticInstanceNorm, nn.InstanceNorm3d):
    """`nn.InstanceNorm3d` whose channels may follow decisions: ([n, ]channels, d, h, w).

    Args:
        num_features: A number, a decision or arithmetic with decisions.
        eps, momentum, affine, track_running_stats, device, dtype, bias: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = InstanceNorm3d(Width("channels", 8, 32), affine=True)
    >>> select(norm, {"channels": 10})
    >>> norm(torch.ones(4, 10, 2, 2, 2)).shape
    torch.Size([4, 10, 2, 2, 2])
    """

    torch_layer = nn.InstanceNorm3d
    _axes = 3
