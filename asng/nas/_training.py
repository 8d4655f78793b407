"""The first half of an iteration: one update of the weights, by the mean gradient of several candidates."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from asng.nas import _distributed
from asng.nas._candidates import FAILED, Failures, Outcome, mean_outcome
from asng.nas._groups import Groups
from asng.nas._weight_optimizers import WeightOptimizers
from asng.nas.supernet import Supernet, Values

Run = Callable[[Values, Any], Outcome]


class Training:
    """Trains the weights of a model on candidates.

    Args:
        supernet: The model.
        weights: The optimizers of its weights.
        failures: Runs candidates that may fail.
        groups: Which of them this process runs, and on which share of a batch.
    """

    def __init__(self, supernet: Supernet, weights: WeightOptimizers, failures: Failures, groups: Groups) -> None:
        self._supernet, self._weights, self._failures, self._groups = supernet, weights, failures, groups

    def step(self, run: Run, candidates: Sequence[Values], batches: Sequence[Any]) -> list[Outcome | None]:
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
        parameters = self._weights.parameters
        before = [parameter.grad for parameter in parameters]
        self._weights.reset_gradients(before)
        try:
            with self._groups.sync:
                outcomes = self._add_gradients(run, candidates, batches, before)
        except BaseException:
            self._weights.reset_gradients(before)  # after an error no weight is touched
            raise
        if self._groups.are_shared:
            self._drop_failed(outcomes, before)
        failed = _distributed.all_reduce_gradients(parameters, [outcome is FAILED for outcome in outcomes])
        good = len(candidates) - sum(failed)
        if good and any(parameter.grad is not None for parameter in parameters):
            if good < len(candidates):  # the mean is over the others
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                torch._foreach_mul_(gradients, len(candidates) / good)
            self._weights.step()
        return outcomes

    def _add_gradients(
        self,
        run: Run,
        candidates: Sequence[Values],
        batches: Sequence[Any],
        before: list[Tensor | None],
    ) -> list[Outcome | None]:
        """Accumulate the gradients of this process's candidates; returns their outcomes."""
        outcomes: list[Outcome | None] = [None] * len(candidates)
        parts = [self._groups.take(batch) for batch in batches]
        waiting, added = list(self._groups.own(len(candidates))), []
        while waiting:
            index = waiting.pop(0)
            values, done = candidates[index], []
            for part, fraction in parts:
                outcome = self._failures.attempt(run, values, part)
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
                self._weights.reset_gradients(before)
                waiting, added = added + waiting, []
        return outcomes

    def _drop_failed(self, outcomes: list[Outcome | None], before: list[Tensor | None]) -> None:
        """Drop the gradient of a candidate that failed in another process of its group."""
        failed = _distributed.any_rank([outcome is FAILED for outcome in outcomes], self._weights.device)
        for index in self._groups.own(len(outcomes)):  # at most one
            if failed[index]:
                outcomes[index] = FAILED
                self._weights.reset_gradients(before)

    def _backward(self, values: Values, loss: Tensor, shares: float) -> bool:
        """Add a candidate's share to the gradient; an architecture without weights has none."""
        if loss.requires_grad:
            self._weights.scaler.scale(loss / shares).backward()  # type: ignore[no-untyped-call]
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
