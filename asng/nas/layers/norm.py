"""Elastic norms of channels, of groups of channels, and over the last axes: the first channels or features are used."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from asng._checks import check_bool
from asng.nas._size import AnySize, check_fixed, remainder
from asng.nas.decisions import SizeLike
from asng.nas.layers._base import ElasticLayer, trim


def _remove_bias(norm: ElasticLayer, bias: bool) -> None:
    """Leave the bias out where it is not wanted, for which older versions of torch have no argument."""
    check_fixed(norm.elastic, bias=bias)
    if not check_bool(bias, "bias"):
        norm.register_parameter("bias", None)


class _ElasticNorm(ElasticLayer, nn.modules.batchnorm._NormBase):
    """Base class of batch and instance norms of all dimensions."""

    elastic: ClassVar[tuple[str, ...]] = ("num_features",)

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
        _remove_bias(self, bias)

    def active_tensors(self) -> dict[str, Tensor | None]:
        # Views, so that updates of the running statistics reach the layer.
        features = self.sizes["num_features"]()
        names = ("weight", "bias", "running_mean", "running_var")
        parts = {name: trim(getattr(self, name), features) for name in names}
        return {**parts, "num_batches_tracked": self.num_batches_tracked}


class _ElasticBatchNorm(_ElasticNorm, nn.modules.batchnorm._BatchNorm):
    """Base class of batch norms of all dimensions."""

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
    """Base class of instance norms of all dimensions."""

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


class GroupNorm(ElasticLayer, nn.GroupNorm):
    """`nn.GroupNorm` whose channels and groups may follow decisions: (n, channels, ...).

    Args:
        num_groups: A number, a decision or arithmetic with decisions; it divides every number of channels.
        num_channels: A number, a decision or arithmetic with decisions.
        eps, affine, device, dtype, bias: As in torch.

    Raises:
        ValueError: A size can be less than 1, channels cannot be split into groups, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = GroupNorm(4, Width("channels", [16, 32]))
    >>> select(norm, {"channels": 16})
    >>> norm(torch.ones(2, 16, 8)).shape
    torch.Size([2, 16, 8])
    """

    torch_layer = nn.GroupNorm
    elastic: ClassVar[tuple[str, ...]] = ("num_channels", "num_groups")

    def __init__(
        self,
        num_groups: SizeLike,
        num_channels: SizeLike,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        _remove_bias(self, bias)

    def check_sizes(self, sizes: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        channels, groups = sizes["num_channels"], sizes["num_groups"]
        if isinstance(channels, AnySize):
            raise ValueError(f"channels of any size, {channels}, cannot be split into num_groups={groups}")
        if groups.max < 1:
            raise ValueError(f"num_groups must be at least 1, got {groups}")
        if (channels.is_elastic or groups.is_elastic) and remainder(channels, groups).max:
            raise ValueError(
                f"num_channels must always be divisible by num_groups, but {channels} is not by {groups} for some "
                "values; let the width be a multiple, such as groups * 4, or give a list of widths that are"
            )

    def active_tensors(self) -> dict[str, Tensor | None]:
        channels = self.sizes["num_channels"]()
        return {"weight": trim(self.weight, channels), "bias": trim(self.bias, channels)}

    def forward(self, input: Tensor) -> Tensor:
        self.check_input(self.sizes["num_channels"], input, 1)
        return F.group_norm(input, self.sizes["num_groups"](), **self.active_tensors(), eps=self.eps)


class _ElasticShapeNorm(ElasticLayer):
    """Base class of norms over one or several last axes."""

    elastic: ClassVar[tuple[str, ...]] = ("normalized_shape",)
    _function: ClassVar[Callable[..., Tensor]]  # of torch.nn.functional
    eps: Any

    def __init__(self, normalized_shape: SizeLike | Sequence[SizeLike], *settings: Any) -> None:
        shape = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        super().__init__(shape, *settings)

    def _shape(self) -> list[int]:
        return [size() for size in self.sizes["normalized_shape"]]

    def active_tensors(self) -> dict[str, Tensor | None]:
        shape = self._shape()
        names = [name for name in ("weight", "bias") if hasattr(self, name)]
        return {name: trim(getattr(self, name), *shape) for name in names}  # also of a parametrization

    def forward(self, input: Tensor) -> Tensor:
        """Norm over the last axes, with the first features of each."""
        sizes = self.sizes["normalized_shape"]
        for axis, size in enumerate(sizes, start=-len(sizes)):
            self.check_input(size, input, axis, "features")
        return self._function(input, self._shape(), **self.active_tensors(), eps=self.eps)


class LayerNorm(_ElasticShapeNorm, nn.LayerNorm):
    """`nn.LayerNorm` over one or several last axes, whose sizes may follow decisions: (..., *normalized_shape).

    Args:
        normalized_shape: One size or several: numbers, decisions or arithmetic with decisions.
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
    _function = staticmethod(F.layer_norm)

    def __init__(
        self,
        normalized_shape: SizeLike | Sequence[SizeLike],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)


class RMSNorm(_ElasticShapeNorm, nn.RMSNorm):
    """`nn.RMSNorm` over one or several last axes, whose sizes may follow decisions: (..., *normalized_shape).

    Args:
        normalized_shape: One size or several: numbers, decisions or arithmetic with decisions.
        eps, elementwise_affine, device, dtype: As in torch.

    Raises:
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> norm = RMSNorm(Width("units", 8, 32))
    >>> select(norm, {"units": 10})
    >>> norm(torch.ones(4, 10)).shape
    torch.Size([4, 10])
    """

    torch_layer = nn.RMSNorm
    _function = staticmethod(F.rms_norm)

    def __init__(
        self,
        normalized_shape: SizeLike | Sequence[SizeLike],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
