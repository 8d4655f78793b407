"""Parameters that lie in one flat tensor, side by side with their gradients."""

from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from asng.fused._sgd import LINE
from asng.nas._capture.branch import Weights

_flat_storages: "WeakSet[torch.UntypedStorage]" = WeakSet()  # of values


class FlatGroup:
    """Parameters of a group in flat tensors: values and gradients, and views of them for every parameter.

    The parameters become views of the values. There are gradients of `n` backward passes, which may run side by side.
    With a `low_dtype` the passes run with a copy of the values in that type, and their gradients have it, too.
    """

    def __init__(
        self, group: dict[str, Any], parameters: list[Tensor], n: int, low_dtype: torch.dtype | None = None
    ) -> None:
        self.group, self.parameters = group, parameters
        # Each begins where vector loads may: libraries choose other kernels for unaligned weights.
        self._sizes = [-(-parameter.numel() // LINE) * LINE for parameter in parameters]
        like, size = parameters[0].detach(), sum(self._sizes)
        self.values = like.new_zeros(size)
        self.value_views = self.views(self.values)
        self._move_parameters()
        self.low = None if low_dtype is None else self.values.to(low_dtype)
        self._low_views = [] if self.low is None else self.views(self.low)
        self._versions: list[int] = []
        self.rows = like.new_zeros(n, size, dtype=low_dtype)  # the gradients of the passes
        self.gradient = self.rows[0] if low_dtype is None else like.new_zeros(size)  # their clipped sum
        self.gradient_views = self.views(self.gradient)
        self.touched = torch.zeros(len(parameters), dtype=torch.bool, device=like.device)
        lines = torch.tensor(self._sizes) // LINE
        owners = torch.repeat_interleave(torch.arange(len(lines), dtype=torch.int32), lines)
        self.owners = owners.to(like.device, non_blocking=True)  # the parameter of each `LINE` numbers

    def _move_parameters(self) -> None:
        """Make the parameters views of the values, except those whose memory has gaps or is shared."""
        torch._foreach_copy_(self.value_views, self.parameters)
        self._unmoved = []
        for index, (parameter, view) in enumerate(zip(self.parameters, self.value_views, strict=True)):
            if _can_move(parameter):
                parameter.data = view
            else:
                self._unmoved.append(index)
        _flat_storages.add(self.values.untyped_storage())

    def views(self, flat: Tensor) -> list[Tensor]:
        """The part of each parameter in a flat tensor."""
        parts = torch.split(flat, self._sizes)
        return [_view_as(part, p) for part, p in zip(parts, self.parameters, strict=True)]

    def spread(self, flags: Tensor) -> Tensor:
        """One flag for each number of flat tensors, of one for each parameter."""
        return flags.index_select(0, self.owners)[:, None].expand(-1, LINE).reshape(-1)

    def weights(self, number: int) -> Weights:
        """The weights of a pass, with leaves of its own where they are in lower precision."""
        keys = [id(parameter) for parameter in self.parameters]
        leaves = [
            view.detach().requires_grad_(parameter.requires_grad)
            for view, parameter in zip(self._low_views, self.parameters, strict=False)
        ]
        gradients = self.views(self.rows[number])
        return Weights(dict(zip(keys, gradients, strict=True)), dict(zip(keys, leaves, strict=False)))

    def refresh(self) -> None:
        """Copy the values into lower precision if parameters were written since the last time."""
        if self.low is not None:
            versions = [parameter._version for parameter in self.parameters]
            if versions != self._versions:
                self.low.copy_(self.values)
                self._versions = versions

    def gather(self) -> None:
        """Copy the parameters that are no views into the values."""
        self._copy(self.value_views, self.parameters)
        self._copy(self._low_views, self.parameters)

    def scatter(self) -> None:
        """Copy the values into the parameters that are no views."""
        self._copy(self.parameters, self.value_views)

    def _copy(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        if self._unmoved and targets:
            torch._foreach_copy_([targets[i] for i in self._unmoved], [sources[i] for i in self._unmoved])


def _can_move(parameter: Tensor) -> bool:
    """Whether a parameter may become a view: its memory has no gaps, and no other tensor's is in its storage."""
    storage = parameter.untyped_storage()
    is_own = storage.nbytes() == parameter.numel() * parameter.element_size() or storage in _flat_storages
    return type(parameter) in (Tensor, nn.Parameter) and _has_no_gaps(parameter) and is_own


def _has_no_gaps(parameter: Tensor) -> bool:
    end = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    return end == parameter.numel()


def _view_as(flat: Tensor, parameter: Tensor) -> Tensor:
    """The beginning of a flat tensor in a parameter's shape, and in its memory format if that has no gaps."""
    is_dense = _has_no_gaps(parameter)
    stride = parameter.stride() if is_dense else torch.empty(parameter.shape, device="meta").stride()
    return flat.as_strided(parameter.shape, stride, flat.storage_offset())
