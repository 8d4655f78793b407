"""How weight optimizers move the parameters of a group that lie in flat tensors, as a CUDA graph can hold it.

`SGDRule` computes what torch's SGD computes, on the flat tensors, and `FusedSGDRule` the same by kernels; `TorchRule`
runs the step of torch's capturable optimizers.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from asng.fused._sgd import FlatSGD, is_supported
from asng.nas._capture.flat import FlatGroup

CAPTURABLE = ("ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
# What the state begins with where that is not zero; None: with the learning rate of the first step.
INITIAL_STATES: dict[str, dict[str, float | None]] = {
    "ASGD": {"eta": None, "mu": 1.0},
    "NAdam": {"mu_product": 1.0},
    "Rprop": {"step_size": None},
}


def unsupported_reason(optimizer: torch.optim.Optimizer) -> str | None:
    """Return why an optimizer's step cannot be captured, or None if it can."""
    name = type(optimizer).__name__
    is_sgd = type(optimizer) is torch.optim.SGD
    if not is_sgd and (name not in CAPTURABLE or type(optimizer) is not getattr(torch.optim, name)):
        return f"the weight optimizer is {name}, and only SGD, {', '.join(CAPTURABLE)} are captured"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "the weight optimizer has hooks on its step, which a graph does not call"
    for group in optimizer.param_groups:
        for setting in ("dampening", "maximize", "differentiable") if is_sgd else ("differentiable",):
            if group[setting]:
                return f"the weight optimizer has {setting}={group[setting]}"
        if not is_sgd and not group["capturable"]:
            return f"the weight optimizer has capturable=False; give {name} capturable=True"
        if len({(p.dtype, p.device) for p in group["params"]}) > 1:
            return "the parameters of the weight optimizer differ in type or device"
    return None


class Rule(ABC):
    """How the values of a group move along its gradient, and the state that this needs, in flat tensors."""

    def __init__(self, flat: FlatGroup) -> None:
        self.flat = flat

    @abstractmethod
    def move(self, lr: float | Tensor) -> None:
        """Move the values; those of parameters that are not touched move, too, and are put back by the caller."""

    @abstractmethod
    def flat_state(self) -> list[Tensor]:
        """All tensors of the state: of as many numbers as the group has, or as it has parameters."""

    @abstractmethod
    def state_of(self, index: int) -> dict[str, Tensor]:
        """The state of one parameter, by its names in torch's optimizer: views of the flat tensors."""

    def has_state(self) -> Tensor:
        """Which parameters have a state, by flags."""
        return self.flat.touched

    def begin(self) -> None:
        """Before the passes: no gradients yet."""
        self.flat.rows.zero_()

    def add_up(self) -> Tensor:
        """Add up the gradients of the passes and find what they touch; returns norms of parts of the sum."""
        flat = self.flat
        if flat.low is not None:
            flat.gradient.copy_(flat.rows[0])
        for other in flat.rows[1:]:
            flat.gradient.add_(other)
        norms = torch.stack(torch._foreach_norm(flat.gradient_views))
        flat.touched.logical_or_(norms != 0)
        return norms

    def step(self, norm: Tensor, scale: Tensor, lr: float | Tensor) -> None:
        """Clip the gradient and move what is touched, unless the norm is not finite."""
        flat = self.flat
        flat.gradient.mul_(scale)
        moves = flat.touched & norm.isfinite()
        numbers_move = flat.spread(moves)
        targets = [flat.values, *self.flat_state()]
        before = [target.clone() for target in targets]
        self.move(lr)
        for target, old in zip(targets, before, strict=True):
            torch.where(moves if len(target) == len(moves) else numbers_move, target, old, out=target)
        if flat.low is not None:
            flat.low.copy_(flat.values)


class SGDRule(Rule):
    """Torch's SGD, on flat tensors alone."""

    def __init__(self, flat: FlatGroup) -> None:
        super().__init__(flat)
        self._momentum = torch.zeros_like(flat.values) if flat.group["momentum"] else None
        self._views = [] if self._momentum is None else flat.views(self._momentum)

    def move(self, lr: float | Tensor) -> None:
        settings, values, step = self.flat.group, self.flat.values, self.flat.gradient
        if settings["weight_decay"]:
            step = torch.add(step, values, alpha=settings["weight_decay"])
        if self._momentum is not None:
            moving = self._momentum.mul_(settings["momentum"]).add_(step)
            step = torch.add(step, moving, alpha=settings["momentum"]) if settings["nesterov"] else moving
        if isinstance(lr, Tensor):  # rounded once, as torch rounds a number
            values.addcmul_(step, lr.neg().to(values.dtype))
        else:
            values.add_(step, alpha=-lr)

    def flat_state(self) -> list[Tensor]:
        return [] if self._momentum is None else [self._momentum]

    def state_of(self, index: int) -> dict[str, Tensor]:
        return {"momentum_buffer": self._views[index]} if self._views else {}


class FusedSGDRule(SGDRule):
    """The same by kernels, in two passes over memory; they clear the gradients of the passes, too."""

    def __init__(self, flat: FlatGroup) -> None:
        super().__init__(flat)
        self._kernels = FlatSGD(
            flat.rows, flat.gradient, flat.values, flat.low, self._momentum, flat.owners, flat.touched
        )

    def begin(self) -> None:
        if self.flat.low is None:  # the first pass adds to what was the sum
            self.flat.gradient.zero_()

    def add_up(self) -> Tensor:
        return self._kernels.add_up()

    def step(self, norm: Tensor, scale: Tensor, lr: float | Tensor) -> None:
        names = ("weight_decay", "momentum", "nesterov")
        self._kernels.step(norm, scale, lr, **{name: self.flat.group[name] for name in names})


class TorchRule(Rule):
    """The step of another of torch's optimizers, on the views of the flat tensors."""

    def __init__(self, flat: FlatGroup, kind: type[torch.optim.Optimizer]) -> None:
        super().__init__(flat)
        settings: dict[str, Any] = {**flat.group, "params": flat.value_views, "lr": 0.0}
        self._optimizer: Any = kind([settings])  # type: ignore[call-arg]
        for view, gradient in zip(flat.value_views, flat.gradient_views, strict=True):
            view.grad = gradient
        self._optimizer.step()  # makes the state
        self._flat_state: dict[str, Tensor] = {}
        state = self._optimizer.state
        for name, first in state[max(flat.value_views, key=Tensor.dim)].items():
            if first.dim():
                whole = torch.zeros_like(flat.values)
                parts = flat.views(whole)
            else:  # a count
                whole = first.new_zeros(len(flat.value_views))
                parts = list(whole.unbind())
            self._flat_state[name] = whole
            for view, part in zip(flat.value_views, parts, strict=True):
                state[view][name] = part
        self._states = [state[view] for view in flat.value_views]
        self._initial = INITIAL_STATES.get(kind.__name__, {})

    def move(self, lr: float | Tensor) -> None:
        for name, number in self._initial.items():
            self._begin_state(self._flat_state[name], lr if number is None else number)
        self._optimizer.param_groups[0]["lr"] = lr.float() if isinstance(lr, Tensor) else lr
        self._optimizer.step()

    def _begin_state(self, state: Tensor, initial: float | Tensor) -> None:
        """Write a number into a state where there was no step yet."""
        is_first = ~self.has_state()
        number = initial.to(state.dtype) if isinstance(initial, Tensor) else state.new_full((), initial)
        torch.where(is_first if len(state) == len(is_first) else self.flat.spread(is_first), number, state, out=state)

    def flat_state(self) -> list[Tensor]:
        return list(self._flat_state.values())

    def has_state(self) -> Tensor:
        return self._flat_state["step"] != 0

    def state_of(self, index: int) -> dict[str, Tensor]:
        return dict(self._states[index])


def rule_for(flat: FlatGroup, kind: type[torch.optim.Optimizer]) -> Rule:
    """The rule of a group of an optimizer that `unsupported_reason` has nothing against."""
    if kind is not torch.optim.SGD:
        return TorchRule(flat, kind)
    return FusedSGDRule(flat) if is_supported(flat.values) else SGDRule(flat)
