"""The weight update of an iteration as a CUDA graph can hold it: learning rates and touched flags are device data.

The parameters of a group, and their gradients, lie in flat tensors. A weight counts as touched from the first gradient
on that is not all zero; until then it keeps its value, without decay and without a state. A gradient that is not finite
moves nothing.
"""

from collections.abc import Container, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from asng.nas._capture.branch import Weights
from asng.nas._capture.flat import FlatGroup
from asng.nas._capture.rules import rule_for

CHANGING = ("params", "lr", "initial_lr")  # settings that a graph does not hold


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
        self._rules = [rule_for(flat, type(self._optimizer)) for flat in self.groups]
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
        self.store()  # which frees what was taken over

    def store(self) -> None:
        """Leave gradients and states where torch's optimizer would."""
        for flat, rule in zip(self.groups, self._rules, strict=True):
            touched, has_state = flat.touched.tolist(), rule.has_state().tolist()
            for index, parameter in enumerate(flat.parameters):
                parameter.grad = flat.gradient_views[index].to(parameter) if touched[index] else None
                if has_state[index]:
                    self._optimizer.state[parameter].update(rule.state_of(index))
