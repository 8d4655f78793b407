"""The weight update of an iteration as a CUDA graph can hold it: learning rates and touched flags are device data.

The gradients of a parameter group lie in one flat tensor. A weight counts as touched from the first gradient on that is
not all zero; until then it keeps its value, without decay and without a state. A gradient that is not finite moves
nothing. `SGDRule` computes what torch's SGD computes, on the flat tensors; `TorchRule` runs the step of torch's
capturable optimizers.
"""

from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from asng.nas._branch import Weights

ALIGNMENT = 64  # numbers
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


class FlatGroup:
    """A parameter group in flat tensors: values and gradients, and views of them for every parameter.

    There are `n` gradients, so that as many backward passes can run side by side; the first becomes their sum.
    """

    def __init__(self, group: dict[str, Any], n: int, kind: type[torch.optim.Optimizer]) -> None:
        self.group = group
        self.parameters: list[Tensor] = group["params"]
        # Each begins where vector loads may: libraries choose other kernels for unaligned weights.
        self._sizes = [-(-parameter.numel() // ALIGNMENT) * ALIGNMENT for parameter in self.parameters]
        sizes, like = self._sizes, self.parameters[0].detach()
        self._all_gradients = like.new_zeros(n, sum(sizes))
        self.gradient, self.values = self._all_gradients[0], like.new_zeros(sum(sizes))
        self.gradients = [self.views(flat) for flat in self._all_gradients]  # of each pass
        self.value_views = self.views(self.values)
        self._low: tuple[Tensor, Tensor] | None = None  # values and gradients in lower precision
        self.touched = torch.zeros(len(sizes), dtype=torch.bool, device=like.device)
        owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self.owners = owners.to(like.device)  # of each number the parameter
        self.rule: SGDRule | TorchRule = SGDRule(self) if kind is torch.optim.SGD else TorchRule(self, kind)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The part of each parameter in a flat tensor, in its shape, and in its memory format if that has no gaps."""
        parts = torch.split(flat, self._sizes)
        dense = [torch.empty_like(p, device="meta") for p in self.parameters]
        return [p.as_strided(d.shape, d.stride(), p.storage_offset()) for p, d in zip(parts, dense, strict=True)]

    def keep_low(self, dtype: torch.dtype, ids: Container[int]) -> None:
        """Keep copies in lower precision, with gradients of their own, of some parameters, named by their ids."""
        self._low = self.values.to(dtype), torch.zeros_like(self._all_gradients, dtype=dtype)
        self._low_views = [self.views(flat) for flat in (self._low[0], *self._low[1])]
        self._is_low = [id(parameter) in ids for parameter in self.parameters]

    def slots(self, number: int) -> Iterator[tuple[int, Tensor | None, Tensor]]:
        """Of each parameter in a pass its id, the leaf that runs in its place, if any, and its gradient."""
        for index, parameter in enumerate(self.parameters):
            if self._low is not None and self._is_low[index]:
                leaf = self._low_views[0][index].detach().requires_grad_(parameter.requires_grad)
                yield id(parameter), leaf, self._low_views[1 + number][index]
            else:
                yield id(parameter), None, self.gradients[number][index]

    def begin(self) -> None:
        """Gather the values; no gradients yet."""
        torch._foreach_copy_(self.value_views, self.parameters)
        self._all_gradients.zero_()
        if self._low is not None:
            self._low[0].copy_(self.values)
            self._low[1].zero_()

    def scatter(self) -> None:
        """Copy the values back into the parameters."""
        torch._foreach_copy_(self.parameters, self.value_views)
        if self._low is not None:
            self._low[0].copy_(self.values)

    def add_up(self) -> None:
        if self._low is not None:
            self._all_gradients.add_(self._low[1])
        for other in self._all_gradients[1:]:
            self.gradient.add_(other)


class SGDRule:
    """How the values of a group move along its gradient, and the state that this needs: torch's SGD.

    Attributes:
        flat_state: All tensors of the state: of as many numbers as the group has, or as it has parameters.
        states: The state of each parameter, by its names in torch's optimizer: views of the flat tensors.
    """

    def __init__(self, flat: FlatGroup) -> None:
        self._flat, self._momentum = flat, torch.zeros_like(flat.values)
        self.flat_state = [self._momentum] if flat.group["momentum"] else []
        self.states = [{"momentum_buffer": v} if self.flat_state else {} for v in flat.views(self._momentum)]

    def move(self, lr: float | Tensor) -> None:
        """Move the values; those of parameters that are not touched move, too, and are put back by the caller."""
        settings, values, step = self._flat.group, self._flat.values, self._flat.gradient
        if settings["weight_decay"]:
            step = torch.add(step, values, alpha=settings["weight_decay"])
        if settings["momentum"]:
            moving = self._momentum.mul_(settings["momentum"]).add_(step)
            step = torch.add(step, moving, alpha=settings["momentum"]) if settings["nesterov"] else moving
        if isinstance(lr, Tensor):  # rounded once, as torch rounds a number
            values.addcmul_(step, lr.neg().to(values.dtype))
        else:
            values.add_(step, alpha=-lr)


class TorchRule:
    """The same by the step of another of torch's optimizers, on the views of the flat tensors."""

    def __init__(self, flat: FlatGroup, kind: type[torch.optim.Optimizer]) -> None:
        settings: dict[str, Any] = {**flat.group, "params": flat.value_views, "lr": 0.0}
        self._optimizer: Any = kind([settings])  # type: ignore[call-arg]
        for view, gradient in zip(flat.value_views, flat.gradients[0], strict=True):
            view.grad = gradient
        self._optimizer.step()  # makes the state
        state = self._optimizer.state
        self.flat_state: list[Tensor] = []
        self.states: list[dict[str, Tensor]] = [state[view] for view in flat.value_views]
        for name, first in list(self.states[0].items()):
            if first.dim():
                whole = torch.zeros_like(flat.values)
                parts = flat.views(whole)
            else:  # a count
                whole = first.new_zeros(len(flat.value_views))
                parts = list(whole.unbind())
            self.flat_state.append(whole)
            for of_one, part in zip(self.states, parts, strict=True):
                of_one[name] = part

    def move(self, lr: float | Tensor) -> None:
        self._optimizer.param_groups[0]["lr"] = lr.float() if isinstance(lr, Tensor) else lr
        self._optimizer.step()


class WeightUpdate:
    """The weight update of an iteration; `unsupported_reason` says for which optimizers."""

    @torch.no_grad()
    def __init__(self, optimizer: torch.optim.Optimizer, max_grad_norm: float, n: int) -> None:
        self._optimizer, self._max_grad_norm = optimizer, max_grad_norm
        self.groups = [FlatGroup(group, n, type(optimizer)) for group in optimizer.param_groups if group["params"]]
        self._settings = self._current_settings()
        self.weights = [self._weights_of(number) for number in range(n)]  # of each pass

    def _current_settings(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in flat.group.items() if k not in CHANGING} for flat in self.groups]

    def is_as_captured(self) -> bool:
        return self._settings == self._current_settings()

    @property
    def lrs(self) -> list[float]:
        return [float(flat.group["lr"]) for flat in self.groups]

    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        return [t for flat in self.groups for t in (*flat.parameters, flat.touched, *flat.rule.flat_state)]

    def keep_low(self, dtype: torch.dtype, ids: Container[int]) -> None:
        for flat in self.groups:
            flat.keep_low(dtype, ids)
        self.weights = [self._weights_of(number) for number in range(len(self.weights))]

    def _weights_of(self, number: int) -> Weights:
        slots = [slot for flat in self.groups for slot in flat.slots(number)]
        leaves = {key: leaf for key, leaf, _ in slots if leaf is not None}
        return Weights({key: gradient for key, _, gradient in slots}, leaves)

    @torch.no_grad()
    def begin(self) -> None:
        """Before the passes of an iteration: gather the values; no gradients yet."""
        for flat in self.groups:
            flat.begin()

    @torch.no_grad()
    def step(self, lrs: Sequence[float | Tensor]) -> None:
        """Add up the gradients, clip their sum and move the weights that are touched; none if it is not finite."""
        for flat in self.groups:
            flat.add_up()
        norms = [torch.stack(torch._foreach_norm(flat.gradients[0])) for flat in self.groups]
        for flat, norm in zip(self.groups, norms, strict=True):
            flat.touched.logical_or_(norm != 0)
        total = torch.linalg.vector_norm(torch.cat(norms))
        scale, finite = torch.clamp(self._max_grad_norm / (total + 1e-6), max=1.0), total.isfinite()
        for flat, lr in zip(self.groups, lrs, strict=True):
            flat.gradient.mul_(scale)
            moves = flat.touched & finite
            numbers_move = moves[flat.owners]
            targets = [flat.values, *flat.rule.flat_state]
            before = [target.clone() for target in targets]
            flat.rule.move(lr)
            for target, old in zip(targets, before, strict=True):
                mask = moves if len(target) == len(moves) else numbers_move
                torch.where(mask, target, old, out=target)
            flat.scatter()

    @torch.no_grad()
    def load(self) -> None:
        """Take over which weights are touched, and their state."""
        for flat in self.groups:
            flat.touched.copy_(torch.tensor([parameter.grad is not None for parameter in flat.parameters]))
            for parameter, state in zip(flat.parameters, flat.rule.states, strict=True):
                given = self._optimizer.state.get(parameter, {}) if parameter.grad is not None else {}
                for name, tensor in state.items():
                    if (old := given.get(name)) is None:
                        tensor.zero_()
                    elif old is not tensor:
                        tensor.copy_(old)

    def store(self) -> None:
        """Leave gradients and states where torch's optimizer would."""
        for flat in self.groups:
            rows = zip(flat.parameters, flat.touched.tolist(), flat.gradients[0], flat.rule.states, strict=True)
            for parameter, is_touched, gradient, state in rows:
                parameter.grad = gradient if is_touched else None
                if is_touched:
                    self._optimizer.state[parameter].update(state)
