"""The weight update of an iteration as a CUDA graph can hold it: learning rates and touched flags are device data.

The parameters of a group, and their gradients, lie in flat tensors. A weight counts as touched from the first gradient
on that is not all zero; until then it keeps its value, without decay and without a state. A gradient that is not finite
moves nothing.

`SGDRule` computes what torch's SGD computes, on the flat tensors, and `FusedSGDRule` the same by kernels; `TorchRule`
runs the step of torch's capturable optimizers.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from asng.fused._sgd import LINE, FlatSGD, has_kernels_for
from asng.nas._capture.branch import Weights

_flat_storages: "WeakSet[torch.UntypedStorage]" = WeakSet()  # of values


class FlatGroup:
    """Parameters of a group in flat tensors: values and gradients, and views of them for every parameter.

    The parameters become views of the values. There are gradients of `n` backward passes, which may run side by side.
    With a `low_dtype` the passes run with a copy of the values in that type, and their gradients have it, too.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        number: int,
        parameters: list[Tensor],
        n: int,
        low_dtype: torch.dtype | None = None,
    ) -> None:
        self._optimizer, self._number, self.parameters = optimizer, number, parameters
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
        lines = torch.tensor(self._sizes, device="cpu") // LINE
        owners = torch.repeat_interleave(torch.arange(len(lines), dtype=torch.int32, device="cpu"), lines)
        self.owners = owners.to(like.device, non_blocking=True)  # the parameter of each `LINE` numbers

    @property
    def group(self) -> dict[str, Any]:
        """The settings. The optimizer has them: a state that is loaded brings others."""
        group: dict[str, Any] = self._optimizer.param_groups[self._number]
        return group

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
    """The update of the values of a group along its gradient, and its state, in flat tensors."""

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
        """Flags of the parameters that have a state."""
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
    return FusedSGDRule(flat) if has_kernels_for(flat.values) else SGDRule(flat)


CHANGING = ("params", "lr", "initial_lr")  # settings that a graph does not hold


class WeightUpdate:
    """The weight update of an iteration; `unsupported_reason` says for which optimizers.

    The parameters become views of flat tensors. Call `load` before the first step, and `refresh` before every one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, max_grad_norm: float, n: int) -> None:
        self._optimizer, self._max_grad_norm, self._n = optimizer, max_grad_norm, n
        self.build()

    @torch.no_grad()
    def build(self, low_dtype: torch.dtype | None = None, ids: Container[int] = ()) -> None:
        """Make the flat tensors; passes then run with copies, in `low_dtype`, of the parameters with these ids."""
        self.groups: list[FlatGroup] = []
        self._rules, self.weights = [], []  # frees what they hold
        optimizer = self._optimizer
        for number, group in enumerate(optimizer.param_groups):
            high = [parameter for parameter in group["params"] if id(parameter) not in ids]
            low = [parameter for parameter in group["params"] if id(parameter) in ids]
            self.groups += [FlatGroup(optimizer, number, high, self._n)] if high else []
            self.groups += [FlatGroup(optimizer, number, low, self._n, low_dtype)] if low else []
        self._rules = [rule_for(flat, type(self._optimizer)) for flat in self.groups]
        self.weights = [self._weights_of(number) for number in range(self._n)]  # of each pass
        self._settings, self._parameters = self._current_settings(), self._current_parameters()

    def _current_settings(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in flat.group.items() if k not in CHANGING} for flat in self.groups]

    def _current_parameters(self) -> list[int]:
        """Addresses of the parameters, and which of them get a gradient; read at every step, hence fast."""
        parameters = list(chain.from_iterable(group["params"] for group in self._optimizer.param_groups))
        return [*map(Tensor.data_ptr, parameters), *map(attrgetter("requires_grad"), parameters)]

    def find_change(self) -> str | None:
        """What is not as captured: memory or `requires_grad` of the parameters, or a setting of the optimizer."""
        if self._parameters != self._current_parameters():
            return "the weights' memory or requires_grad"
        pairs = zip(self._settings, self._current_settings(), strict=True)
        changed = (name for old, new in pairs if old != new for name in new if old.get(name) != new[name])
        return next((f"the optimizer's {name}" for name in changed), None)

    @property
    def lrs(self) -> list[float]:
        return [float(flat.group["lr"]) for flat in self.groups]

    def tensors(self) -> list[Tensor]:
        """The tensors that a step changes."""
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
            touched = [parameter.grad is not None for parameter in flat.parameters]
            flat.touched.copy_(torch.tensor(touched, device="cpu"))
            for index, parameter in enumerate(flat.parameters):
                given = self._optimizer.state.get(parameter, {}) if parameter.grad is not None else {}
                for name, tensor in rule.state_of(index).items():
                    if (old := given.get(name)) is None:
                        tensor.zero_()
                    elif old is not tensor:
                        tensor.copy_(old)
        self.store()  # which frees what was taken over
        optimizer: Any = self._optimizer
        optimizer._opt_called = True  # as its step() does, for schedulers, which else warn of theirs

    def store(self) -> None:
        """Leave gradients and states where torch's optimizer would."""
        for flat, rule in zip(self.groups, self._rules, strict=True):
            touched, has_state = flat.touched.tolist(), rule.has_state().tolist()
            for index, parameter in enumerate(flat.parameters):
                parameter.grad = flat.gradient_views[index].to(parameter) if touched[index] else None
                if has_state[index]:
                    self._optimizer.state[parameter].update(rule.state_of(index))
