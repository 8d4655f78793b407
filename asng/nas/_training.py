"""The first half of an iteration: one update of the weights, by the mean gradient of several candidates."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas import _distributed
from asng.nas._candidates import FAILED, Failures, Outcome, mean_outcome
from asng.nas._checks import as_list
from asng.nas._distributed import Groups
from asng.nas.supernet import Supernet, Values

TorchOptimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}  # may differ from machine to machine


class WeightOptimizers:
    """All optimizers of the weights: the gradient is scaled, clipped and applied as a whole.

    Args:
        given: A torch optimizer, or a sequence of several.
        max_grad_norm: Largest norm of the gradient of all of them together; None for no limit.
        amp_dtype: Type of mixed precision; float16 needs scaled gradients.
    """

    def __init__(self, given: TorchOptimizers, max_grad_norm: float | None, amp_dtype: torch.dtype | None) -> None:
        self.optimizers = as_list(given)
        self.is_single = not isinstance(given, (list, tuple))
        self.parameters = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        self.device = self.parameters[0].device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=amp_dtype is torch.float16)
        self.max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self.skipped = 0  # steps whose gradient was not finite

    def step(self) -> None:
        """Move the weights along their gradients, unless these are not finite."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        if norm.isfinite():
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
        elif not self.scaler.is_enabled():  # which looks for its scale by such steps
            self.skipped += 1
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
            load_optimizer(optimizer, saved)


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Restore the state of an optimizer, except the way in which it computes, which is that of this machine."""
    groups = list(saved["param_groups"])
    for index, (group, own) in enumerate(zip(groups, optimizer.param_groups, strict=False)):
        groups[index] = {**group, **{name: own[name] for name in IMPLEMENTATION & own.keys()}}
    optimizer.load_state_dict({**saved, "param_groups": groups})


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


RunFn = Callable[[Values, Any], Outcome]


class Training:
    """Trains the weights of a model on candidates.

    Args:
        supernet: The model.
        weight_optimizers: Those of its weights.
        failures: Runs candidates that may fail.
        groups: Which of them this process runs, and on which share of a batch.
    """

    def __init__(
        self, supernet: Supernet, weight_optimizers: WeightOptimizers, failures: Failures, groups: Groups
    ) -> None:
        self._supernet, self._weight_optimizers = supernet, weight_optimizers
        self._failures, self._groups = failures, groups

    def step(self, run: RunFn, candidates: Sequence[Values], batches: Sequence[Any]) -> list[Outcome | None]:
        """Update the weights by the mean gradient of the candidates.

        Args:
            run: (values, batch) -> the loss and the metrics of a candidate.
            candidates: Their values.
            batches: What each of them runs on, one after another.

        Returns:
            The outcomes of its own, means over the batches; None for the others.
        """
        # Weights once touched keep momentum and decay when they are not sampled (paper, section 3.2):
        # their gradient is then zero, not missing.
        parameters = self._weight_optimizers.parameters
        before = [parameter.grad for parameter in parameters]
        self._weight_optimizers.reset_gradients(before)
        try:
            with self._groups.sync:
                outcomes = self._add_gradients(run, candidates, batches, before)
        except BaseException:
            self._weight_optimizers.reset_gradients(before)  # after an error no weight is touched
            raise
        if self._groups.are_shared:
            self._drop_failed(outcomes, before)
        failed = _distributed.all_reduce_gradients(parameters, [outcome is FAILED for outcome in outcomes])
        good = len(candidates) - sum(failed)
        if good and any(parameter.grad is not None for parameter in parameters):
            if good < len(candidates):  # the mean is over the others
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                torch._foreach_mul_(gradients, len(candidates) / good)
            self._weight_optimizers.step()
        return outcomes

    def _add_gradients(
        self, run: RunFn, candidates: Sequence[Values], batches: Sequence[Any], before: list[Tensor | None]
    ) -> list[Outcome | None]:
        """Accumulate the gradients of this process's candidates; returns their outcomes."""
        outcomes: list[Outcome | None] = [None] * len(candidates)
        parts = [self._groups.take(batch) for batch in batches]
        waiting, added = list(self._groups.shard(len(candidates))), []
        while waiting:
            index = waiting.pop(0)
            values, done = candidates[index], []
            for part, fraction in parts:
                gradient, version = self._first_gradient()
                outcome = self._failures.attempt(run, values, part)
                later, changed = self._first_gradient()
                if later is not gradient or changed != version:
                    raise ValueError(
                        "loss_fn changes gradients; leave out zero_grad() and backward() in it: the search calls them, "
                        "and adds up the gradients of all candidates of a step"
                    )
                shares = len(candidates) * len(batches) / fraction
                if outcome is None or not self._failures.attempt(self._backward, values, outcome.loss, shares):
                    break
                done.append(outcome.detach()._replace(weight=fraction))
            if len(done) == len(batches):
                outcomes[index] = mean_outcome(done)
                added.append(index)
                continue
            outcomes[index] = FAILED
            if done or outcome is not None:  # a part of its gradient was accumulated: accumulate the others again
                outcome = None
                self._weight_optimizers.reset_gradients(before)
                waiting, added = added + waiting, []
        return outcomes

    def _first_gradient(self) -> tuple[Tensor | None, int]:
        """The first gradient that there is, and its version, by which writes into it show."""
        gradients = (parameter.grad for parameter in self._weight_optimizers.parameters)
        found = ((gradient, gradient._version) for gradient in gradients if gradient is not None)
        return next(found, (None, 0))

    def _drop_failed(self, outcomes: list[Outcome | None], before: list[Tensor | None]) -> None:
        """Drop the gradient of a candidate that failed in another process of its group."""
        failed = _distributed.any_rank([outcome is FAILED for outcome in outcomes], self._weight_optimizers.device)
        for index in self._groups.shard(len(outcomes)):  # at most one
            if failed[index]:
                outcomes[index] = FAILED
                self._weight_optimizers.reset_gradients(before)

    def _backward(self, values: Values, loss: Tensor, shares: float) -> bool:
        """Add a candidate's share to the gradient; an architecture without weights has none."""
        if loss.requires_grad:
            self._weight_optimizers.scaler.scale(loss / shares).backward()  # type: ignore[no-untyped-call]
        elif any(
            parameter.requires_grad
            for module in self._supernet.active_modules()
            for parameter in module.parameters(recurse=False)
        ):
            if not loss.is_floating_point():
                raise ValueError(
                    f"the loss to train on is a tensor of {loss.dtype}, which has no gradient; return floating point "
                    "numbers, and counts as metrics beside them: return loss, {'errors': count}"
                )
            raise ValueError("the loss does not depend on the weights; is there a detach(), item() or no_grad() in it?")
        return True
