"""The torch optimizers of the weights, one or several, as one update with one state."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class WeightOptimizers:
    """All optimizers of the weights: the gradient is scaled, clipped and applied as a whole.

    Args:
        given: A torch optimizer, or a sequence of several.
        max_grad_norm: Largest norm of the gradient of all of them together; None for no limit.
        amp_dtype: Type of mixed precision; float16 needs scaled gradients.
    """

    def __init__(
        self,
        given: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        max_grad_norm: float | None,
        amp_dtype: torch.dtype | None,
    ) -> None:
        self.optimizers = as_list(given)
        self.is_single = not isinstance(given, (list, tuple))
        self.parameters = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        self.device = self.parameters[0].device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=amp_dtype is torch.float16)
        self.max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm

    def step(self) -> None:
        """Move the weights along their gradients, unless these are not finite."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        if norm.isfinite():
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
        if self.scaler.is_enabled():
            self.scaler.update()

    def reset_gradients(self, gradients: list[Tensor | None]) -> None:
        """Give the parameters these gradients, with zeros in them."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        if present := [gradient for gradient in gradients if gradient is not None]:
            torch._foreach_zero_(present)

    def state_dict(self) -> Any:
        """The state of the optimizer, or a list of those of several."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return states[0] if self.is_single else states

    def load_state_dict(self, state: Any) -> None:
        """Restore such a state; ValueError if it is of another number of optimizers, before anything changes."""
        states = [state] if isinstance(state, Mapping) else list(state)
        if isinstance(state, Mapping) is not self.is_single or len(states) != len(self.optimizers):
            raise ValueError(f"it has {len(states)} weight optimizers, this one {len(self.optimizers)}")
        for optimizer, saved in zip(self.optimizers, states, strict=True):
            check_alike(saved["param_groups"], optimizer.state_dict()["param_groups"], "param_groups")
            _check_parameter_states(saved["state"], optimizer)
            optimizer.load_state_dict(saved)


def _check_parameter_states(state: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError for a state that would fail in the next step; of optimizers of others only dicts are known."""
    check_alike(state, {index: {} for index in state}, "state")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim.") or kind.__name__ == "Adafactor":  # which keeps rows and columns
        return
    for index, entries in state.items():
        shape = parameters[index].shape
        for name, value in entries.items():
            is_fitting = isinstance(value, Tensor) and (value.numel() == 1 or value.shape == shape)
            if not is_fitting and value is not None and name != "step":
                raise ValueError(f"state.{index}.{name} is {repr(value)[:40]}, of a parameter of shape {tuple(shape)}")


def check_alike(saved: Any, current: Any, where: str) -> None:
    """Raise ValueError where a saved state has no number, list or dict in the place of one; torch takes anything.

    >>> check_alike({"lr": "a"}, {"lr": 0.1}, "param_groups")
    Traceback (most recent call last):
    ValueError: param_groups.lr is 'a', in the place of 0.1
    """
    kinds: Any = [(int, float, Tensor), (list, tuple), dict]
    expected: Any = next(
        (kind for kind in kinds if isinstance(current, kind) and not isinstance(current, bool)), object
    )
    is_array = isinstance(saved, Tensor) and saved.numel() != (current.numel() if isinstance(current, Tensor) else 1)
    if not isinstance(saved, expected) or (expected is kinds[0] and is_array):
        raise ValueError(f"{where} is {repr(saved)[:40]}, in the place of {repr(current)[:40]}")
    if isinstance(current, (list, tuple)):
        for index, pair in enumerate(zip(saved, current, strict=False)):
            check_alike(*pair, f"{where}.{index}")
    elif isinstance(current, dict):
        for name in current.keys() & saved.keys():
            check_alike(saved[name], current[name], f"{where}.{name}")


def as_list(given: Any) -> list[Any]:
    """One object, or those of a list or tuple.

    >>> as_list("sgd"), as_list(("muon", "adamw"))
    (['sgd'], ['muon', 'adamw'])
    """
    return list(given) if isinstance(given, (list, tuple)) else [given]
