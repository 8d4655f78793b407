"""The weight update of an iteration as a CUDA graph can hold it: learning rates and touched flags are device data.

The parameters of a group, and their gradients, lie in flat tensors. A weight counts as touched from the first gradient
on that is not all zero; until then it keeps its value, without decay and without a state. A gradient that is not finite
moves nothing. `SGDRule` computes what torch's SGD computes, on the flat tensors, and `FusedSGDRule` the same by
kernels; `TorchRule` runs the step of torch's capturable optimizers.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from asng.fused._sgd import LINE, FlatSGD, is_supported
from asng.nas._branch import Weights
from asng.nas._flat import FlatGroup

CHANGING = ("params", "lr", "initial_lr")  # settings that a graph does not hold
# Their state begins with zeros, which is what `TorchRule` gives to weights that are touched for the first time.
CAPTURABLE = ("Adadelta", "Adam", "AdamW", "Adamax", "RAdam", "RMSprop")


def unsupported_reason(optimizer: torch.optim.Optimizer) -> str | None:
    """Return why an optimizer's step cannot be captured, or None if it can."""
    name = type(optimizer).__name__
    is_sgd = type(optimizer) is torch.optim.SGD
    if not is_sgd and (name not in CAPTURABLE or type(optimizer) is not getattr(torch.optim, name)):
        return f"the weight optimizer is {name}, and only SGD, {', '.join(CAPTURABLE)} are captured"
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
        numbers_move = moves.index_select(0, flat.owners)[:, None].expand(-1, LINE).reshape(-1)
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
        self._flat_state, state = [], self._optimizer.state
        for name, first in state[flat.value_views[0]].items():
            if first.dim():
                whole = torch.zeros_like(flat.values)
                parts = flat.views(whole)
            else:  # a count
                whole = first.new_zeros(len(flat.value_views))
                parts = list(whole.unbind())
            self._flat_state.append(whole)
            for view, part in zip(flat.value_views, parts, strict=True):
                state[view][name] = part
        self._states = [state[view] for view in flat.value_views]

    def move(self, lr: float | Tensor) -> None:
        self._optimizer.param_groups[0]["lr"] = lr.float() if isinstance(lr, Tensor) else lr
        self._optimizer.step()

    def flat_state(self) -> list[Tensor]:
        return self._flat_state

    def state_of(self, index: int) -> dict[str, Tensor]:
        return dict(self._states[index])


class WeightUpdate:
    """The weight update of an iteration; `unsupported_reason` says for which optimizers.

    The parameters become views of flat tensors. Call `load` before the first step, and `refresh` before every one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, max_grad_norm: float, n: int) -> None:
        self._optimizer, self._max_grad_norm, self._n = optimizer, max_grad_norm, n
        self._build(None, ())

    def keep_low(self, dtype: torch.dtype, ids: Container[int]) -> None:
        """Run the passes with copies in lower precision of some parameters, named by their ids."""
        self._build(dtype, ids)

    @torch.no_grad()
    def _build(self, dtype: torch.dtype | None, ids: Container[int]) -> None:
        self.groups: list[FlatGroup] = []
        self._rules, self.weights = [], []  # frees what they hold
        for group in self._optimizer.param_groups:
            high = [parameter for parameter in group["params"] if id(parameter) not in ids]
            low = [parameter for parameter in group["params"] if id(parameter) in ids]
            self.groups += [FlatGroup(group, high, self._n)] if high else []
            self.groups += [FlatGroup(group, low, self._n, dtype)] if low else []
        self._rules = [_rule_for(flat, type(self._optimizer)) for flat in self.groups]
        self.weights = [self._weights_of(number) for number in range(self._n)]  # of each pass
        self._settings, self._parameters = self._current_settings(), self._current_parameters()

    def _current_settings(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in flat.group.items() if k not in CHANGING} for flat in self.groups]

    def _current_parameters(self) -> list[int]:
        """Where the parameters are, and which of them get a gradient; at every step, so as fast as Python can."""
        parameters = list(chain.from_iterable(group["params"] for group in self._optimizer.param_groups))
        return [*map(Tensor.data_ptr, parameters), *map(attrgetter("requires_grad"), parameters)]

    def is_as_captured(self) -> bool:
        """Whether the optimizer's settings, and memory and `requires_grad` of its parameters, are as captured."""
        return self._parameters == self._current_parameters() and self._settings == self._current_settings()

    @property
    def lrs(self) -> list[float]:
        return [float(flat.group["lr"]) for flat in self.groups]

    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        tensors = [tensor for flat in self.groups for tensor in (*flat.parameters, flat.touched)]
        return [*tensors, *(tensor for rule in self._rules for tensor in rule.flat_state())]

    def _weights_of(self, number: int) -> Weights:
        gradients: dict[int, Tensor] = {}
        leaves: dict[int, Tensor] = {}
        for part in (flat.weights(number) for flat in self.groups):
            gradients |= part.gradients
            leaves |= part.leaves
        return Weights(gradients, leaves)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what was written into the parameters since the last step."""
        for flat in self.groups:
            flat.refresh()

    @torch.no_grad()
    def begin(self) -> None:
        """Before the passes of an iteration."""
        for flat, rule in zip(self.groups, self._rules, strict=True):
            flat.gather()
            rule.begin()

    @torch.no_grad()
    def step(self, lrs: Sequence[float | Tensor]) -> None:
        """Add up the gradients, clip their sum and move the weights that are touched; none if it is not finite."""
        norm = torch.linalg.vector_norm(torch.cat([rule.add_up() for rule in self._rules]))
        scale = torch.clamp(self._max_grad_norm / (norm + 1e-6), max=1.0)
        for flat, rule, lr in zip(self.groups, self._rules, lrs, strict=True):
            rule.step(norm, scale, lr)
            flat.scatter()

    @torch.no_grad()
    def load(self) -> None:
        """Take over which weights are touched, and their state."""
        for flat, rule in zip(self.groups, self._rules, strict=True):
            flat.gradient.zero_()
            flat.touched.copy_(torch.tensor([parameter.grad is not None for parameter in flat.parameters]))
            for index, parameter in enumerate(flat.parameters):
                given = self._optimizer.state.get(parameter, {}) if parameter.grad is not None else {}
                for name, tensor in rule.state_of(index).items():
                    if (old := given.get(name)) is None:
                        tensor.zero_()
                    elif old is not tensor:
                        tensor.copy_(old)

    def store(self) -> None:
        """Leave gradients and states where torch's optimizer would."""
        for flat, rule in zip(self.groups, self._rules, strict=True):
            for index, (parameter, is_touched) in enumerate(zip(flat.parameters, flat.touched.tolist(), strict=True)):
                parameter.grad = flat.gradient_views[index].to(parameter) if is_touched else None
                if is_touched:
                    self._optimizer.state[parameter].update(rule.state_of(index))


def _rule_for(flat: FlatGroup, kind: type[torch.optim.Optimizer]) -> Rule:
    if kind is not torch.optim.SGD:
        return TorchRule(flat, kind)
    return FusedSGDRule(flat) if is_supported(flat.values) else SGDRule(flat)
