"""The first half of an iteration: one update of the weights, by the mean gradient of several candidates."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from asng.nas import _distributed
from asng.nas._candidates import FAILED, Failures, Outcome, mean_outcome
from asng.nas._weight_optimizers import WeightOptimizers
from asng.nas.supernet import Supernet, Values

Run = Callable[[Values, Any], Outcome]


class Training:
    """Trains the weights of a model on candidates.

    Args:
        supernet: The model.
        weights: The optimizers of its weights.
        failures: Runs candidates that may fail.
    """

    def __init__(self, supernet: Supernet, weights: WeightOptimizers, failures: Failures) -> None:
        self._supernet, self._weights, self._failures = supernet, weights, failures

    def step(self, run: Run, candidates: Sequence[Values], batches: Sequence[Any], own: range) -> list[Outcome | None]:
        """Update the weights by the mean gradient of the candidates.

        Args:
            run: (values, batch) -> the loss and the metrics of a candidate.
            candidates: Their values.
            batches: What each of them runs on, one after another.
            own: Which of them this process runs.

        Returns:
            The outcomes of its own, means over the batches; None for the others.
        """
        # Weights once touched keep momentum and decay when they are not sampled (paper, section 3.2):
        # their gradient is then zero, not missing.
        parameters = self._weights.parameters
        before = [parameter.grad for parameter in parameters]
        self._weights.reset_gradients(before)
        try:
            outcomes = self._add_gradients(run, candidates, batches, own, before)
        except BaseException:
            self._weights.reset_gradients(before)  # after an error no weight is touched
            raise
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
        own: range,
        before: list[Tensor | None],
    ) -> list[Outcome | None]:
        """Accumulate the gradients of this process's candidates; returns their outcomes."""
        outcomes: list[Outcome | None] = [None] * len(candidates)
        waiting, added = list(own), []
        while waiting:
            index = waiting.pop(0)
            values, done = candidates[index], []
            for batch in batches:
                outcome = self._failures.attempt(run, values, batch)
                shares = len(candidates) * len(batches)
                if outcome is None or not self._failures.attempt(self._backward, values, outcome.loss, shares):
                    break
                done.append(outcome.detach())
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

    def _backward(self, values: Values, loss: Tensor, shares: int) -> bool:
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
