"""What a loss function returns for a candidate, and how the numbers of all candidates are read at once."""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asng.nas import _distributed

Metrics = Mapping[str, Tensor | float]
LossFn = Callable[[nn.Module, Any], Tensor | tuple[Tensor, Metrics]]
"""A loss: (model, batch) -> a scalar tensor, or (loss, metrics) with a mapping of names to numbers."""


class Outcome(NamedTuple):
    """The loss of a candidate and its metrics, on the device."""

    loss: Tensor  # ()
    metrics: dict[str, Tensor | float]

    def detach(self) -> "Outcome":
        return Outcome(self.loss.detach(), self.metrics)


FAILED = Outcome(torch.tensor(math.inf), {})  # of a candidate that ran out of memory


class Numbers(NamedTuple):
    """Losses and metrics of candidates, on the host."""

    losses: list[float]
    metrics: list[dict[str, float]]  # one mapping per candidate


def to_outcome(returned: Any) -> Outcome:
    """Check what a loss function returned: a scalar tensor, or a pair of one and its metrics."""
    loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = _describe(loss)
        raise ValueError(f"loss_fn(model, batch) must return a scalar tensor, or (loss, metrics), got {got}")
    if loss.is_complex():
        raise ValueError(f"loss_fn(model, batch) must return a real number, got {loss.dtype}; take its abs() or real")
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics must be a mapping of names to numbers, got {_describe(metrics)}")
    return Outcome(loss.reshape(()), {name: _number(name, value) for name, value in metrics.items()})


def _number(name: Any, value: Any) -> Tensor | float:
    if not isinstance(name, str):
        raise ValueError(f"names of metrics must be strings, got {name!r}")
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.detach().reshape(())
    if isinstance(value, Real):
        return float(value)
    raise ValueError(f"metric {name!r} must be a real number or a scalar tensor, got {_describe(value)}")


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    return repr(value)


def gather_numbers(
    train: Sequence[Outcome | None], valid: Sequence[Outcome | None], device: torch.device
) -> tuple[Numbers, Numbers, int]:
    """Losses and metrics as numbers, and how many in `valid` failed, with one wait for the device.

    None stands for a candidate that another process ran.
    """
    n = len(train)
    own = {index: outcome for index, outcome in enumerate((*train, *valid)) if outcome is not None}
    exact = torch.float32 if device.type == "mps" else torch.float64
    values = [value for outcome in own.values() for value in (outcome.loss, *outcome.metrics.values())]
    tensors = [value.to(device, exact) for value in values if isinstance(value, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else ())
    read: dict[int, tuple[float, dict[str, float], bool]] = {}  # by candidate
    for index, outcome in own.items():
        loss = next(numbers)
        metrics = {name: next(numbers) if isinstance(v, Tensor) else v for name, v in outcome.metrics.items()}
        read[index] = loss, metrics, outcome is FAILED
    for others in _distributed.gather_objects(read):
        read |= others
    every = [read[index] for index in sorted(read)]
    losses, mappings = [loss for loss, _, _ in every], [metrics for _, metrics, _ in every]
    failed = sum(is_failed for _, _, is_failed in every[n:])
    return Numbers(losses[:n], mappings[:n]), Numbers(losses[n:], mappings[n:]), failed
