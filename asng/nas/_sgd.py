"""SGD whose learning rates and whose weights in use are numbers on the device, so that a CUDA graph can hold it.

It computes what torch's SGD computes, on the flat gradients of a parameter group. A weight counts as touched from the
first gradient on that is not all zero; until then it keeps its value, without decay.
"""

from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import Tensor

from asng.nas._branch import Weights

ALIGNMENT = 64  # numbers
SETTINGS = ("momentum", "weight_decay", "nesterov", "dampening", "maximize", "differentiable")


def unsupported_reason(optimizer: torch.optim.Optimizer) -> str | None:
    """Return why an optimizer's step cannot be captured, or None if it can."""
    if type(optimizer) is not torch.optim.SGD:
        return f"the weight optimizer is {type(optimizer).__name__}, and only SGD is captured"
    for group in optimizer.param_groups:
        for name in ("dampening", "maximize", "differentiable"):
            if group[name]:
                return f"the weight optimizer has {name}={group[name]}"
        if len({(p.dtype, p.device) for p in group["params"]}) > 1:
            return "the parameters of the weight optimizer differ in type or device"
    return None


class FlatGroup:
    """A parameter group: gradients and momentum in one tensor each, and views of them for every parameter.

    There are `n` gradients, so that as many backward passes can run side by side; the first becomes their sum.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: dict[str, Any], n: int) -> None:
        self._optimizer, self._group = optimizer, group
        self.parameters: list[Tensor] = group["params"]
        # Each begins where vector loads may: libraries choose other kernels for unaligned weights.
        self._sizes = [-(-parameter.numel() // ALIGNMENT) * ALIGNMENT for parameter in self.parameters]
        sizes, like = self._sizes, self.parameters[0].detach()
        self._all_gradients = like.new_zeros(n, sum(sizes))
        self.gradient = self._all_gradients[0]
        self.momentum, self._values = like.new_zeros(sum(sizes)), like.new_zeros(sum(sizes))
        self.gradients = [self._views(flat) for flat in self._all_gradients]  # of each pass
        self._momenta, self._flat_values = self._views(self.momentum), self._views(self._values)
        self._low: tuple[Tensor, Tensor] | None = None  # values and gradients in lower precision
        self.touched = torch.zeros(len(sizes), dtype=torch.bool, device=like.device)
        owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self._owners = owners.to(like.device)  # of each number the parameter
        self.settings = {name: group[name] for name in SETTINGS}

    @property
    def lr(self) -> float:
        return float(self._group["lr"])

    def is_as_captured(self) -> bool:
        return self.settings == {name: self._group[name] for name in SETTINGS}

    def keep_low(self, dtype: torch.dtype, ids: Container[int]) -> None:
        """Keep copies in lower precision, with gradients of their own, of some parameters, named by their ids."""
        self._low = self._values.to(dtype), torch.zeros_like(self._all_gradients, dtype=dtype)
        self._low_views = [self._views(flat) for flat in (self._low[0], *self._low[1])]
        self._is_low = [id(parameter) in ids for parameter in self.parameters]

    def weights(self, number: int) -> Weights:
        """The weights of a pass, with leaves of its own."""
        gradients = {id(p): gradient for p, gradient in zip(self.parameters, self.gradients[number], strict=True)}
        leaves = {}
        if self._low is not None:
            rows = zip(self.parameters, self._is_low, self._low_views[0], self._low_views[1 + number], strict=True)
            for parameter, is_low, value, gradient in rows:
                if is_low:
                    leaves[id(parameter)] = value.detach().requires_grad_(parameter.requires_grad)
                    gradients[id(parameter)] = gradient
        return Weights(gradients, leaves)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, self._sizes)
        return [_view_as(part, p) for part, p in zip(parts, self.parameters, strict=True)]

    def begin(self) -> None:
        """Gather the values; no gradients yet."""
        torch._foreach_copy_(self._flat_values, self.parameters)
        self._all_gradients.zero_()
        if self._low is not None:
            self._low[0].copy_(self._values)
            self._low[1].zero_()

    def add_up(self) -> None:
        if self._low is not None:
            self._all_gradients.add_(self._low[1])
        for other in self._all_gradients[1:]:
            self.gradient.add_(other)

    def step(self, lr: float | Tensor, scale: Tensor, finite: Tensor) -> None:
        """Move the touched weights; nowhere if the gradient is not finite."""
        momentum, decay = self.settings["momentum"], self.settings["weight_decay"]
        values = self._values
        step = self.gradient.mul_(scale)
        if decay:
            step = torch.add(step, values, alpha=decay).mul_(self.touched[self._owners])
        if momentum:
            moving = (self.momentum * momentum).add_(step)
            self.momentum.copy_(torch.where(finite, moving, self.momentum))
            step = torch.add(step, moving, alpha=momentum) if self.settings["nesterov"] else moving
        if isinstance(lr, Tensor):  # rounded once, as torch rounds a number
            moved = torch.addcmul(values, step, lr.neg().to(values.dtype))
        else:
            moved = torch.add(values, step, alpha=-lr)
        values.copy_(torch.where(finite, moved, values))
        torch._foreach_copy_(self.parameters, self._flat_values)
        if self._low is not None:
            self._low[0].copy_(values)

    def load(self) -> None:
        """Take over which weights are touched, and their momentum."""
        self.touched.copy_(torch.tensor([parameter.grad is not None for parameter in self.parameters]))
        for parameter, view in zip(self.parameters, self._momenta, strict=True):
            momentum = self._optimizer.state[parameter].get("momentum_buffer") if parameter.grad is not None else None
            if momentum is None:
                view.zero_()
            elif momentum is not view:
                view.copy_(momentum)

    def store(self) -> None:
        """Leave gradients and momentum where torch's optimizer would."""
        state, has_momentum = self._optimizer.state, bool(self.settings["momentum"])
        parts = zip(self.parameters, self.gradients[0], self._momenta, self.touched.tolist(), strict=True)
        for parameter, gradient, momentum, touched in parts:
            parameter.grad = gradient if touched else None
            if touched and has_momentum:
                state[parameter]["momentum_buffer"] = momentum


class FlatSGD:
    """The weight update of an iteration; `unsupported_reason` says for which optimizers."""

    def __init__(self, optimizer: torch.optim.Optimizer, max_grad_norm: float, n: int) -> None:
        self._max_grad_norm = max_grad_norm
        self.groups = [FlatGroup(optimizer, group, n) for group in optimizer.param_groups if group["params"]]

    def keep_low(self, dtype: torch.dtype, ids: Container[int]) -> None:
        for group in self.groups:
            group.keep_low(dtype, ids)

    def weights(self, number: int) -> Weights:
        parts = [group.weights(number) for group in self.groups]
        gradients: dict[int, Tensor] = {}
        leaves: dict[int, Tensor] = {}
        for part in parts:
            gradients |= part.gradients
            leaves |= part.leaves
        return Weights(gradients, leaves)

    @torch.no_grad()
    def begin(self) -> None:
        """Before the passes of an iteration."""
        for group in self.groups:
            group.begin()

    @torch.no_grad()
    def step(self, lrs: Sequence[float | Tensor]) -> None:
        """Add up the gradients, clip their sum and move the weights."""
        for group in self.groups:
            group.add_up()
        norms = [torch.stack(torch._foreach_norm(group.gradients[0])) for group in self.groups]
        for group, norm in zip(self.groups, norms, strict=True):
            group.touched.logical_or_(norm != 0)
        total = torch.linalg.vector_norm(torch.cat(norms))
        scale = torch.clamp(self._max_grad_norm / (total + 1e-6), max=1.0)
        for group, lr in zip(self.groups, lrs, strict=True):
            group.step(lr, scale, total.isfinite())

    @property
    def lrs(self) -> list[float]:
        return [group.lr for group in self.groups]

    def is_as_captured(self) -> bool:
        return all(group.is_as_captured() for group in self.groups)

    @torch.no_grad()
    def load(self) -> None:
        for group in self.groups:
            group.load()

    def store(self) -> None:
        for group in self.groups:
            group.store()


def _view_as(flat: Tensor, parameter: Tensor) -> Tensor:
    """The beginning of a flat tensor in a parameter's shape, and in its memory format if that has no gaps."""
    end = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    stride = parameter.stride() if end == parameter.numel() else torch.empty(parameter.shape, device="meta").stride()
    return flat.as_strided(parameter.shape, stride, flat.storage_offset())
