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
    return Outcome(loss.reshape(()), {_checked(name): _number(name, value) for name, value in metrics.items()})


def _checked(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"names of metrics must be strings, got {name!r}")
    return name


def _number(name: str, value: Any) -> Tensor | float:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.detach().reshape(())
    if isinstance(value, Real):
        return float(value)
    raise ValueError(f"metric {name!r} must be a real number or a scalar tensor, got {_describe(value)}")


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    return repr(value)


def read_numbers(
    train: Sequence[Outcome | None], valid: Sequence[Outcome | None], device: torch.device
) -> tuple[Numbers, Numbers, int]:
    """Losses and metrics as numbers, and how many in `valid` failed, with one wait for the device.

    None stands for a candidate that another process ran.
    """
    exact = torch.float32 if device.type == "mps" else torch.float64
    zero = torch.zeros((), dtype=exact, device=device)
    every = [*train, *valid]
    measured = [(at, name) for at, outcome in enumerate(every) if outcome is not None for name in outcome.metrics]
    losses = [zero if outcome is None else outcome.loss.to(zero) for outcome in every]
    counts = (sum(outcome is FAILED for outcome in valid), len(measured))
    stacked = torch.stack([*losses, *(zero + count if count else zero for count in counts)])
    _distributed.all_reduce_sum(stacked)
    metrics: list[dict[str, Any]] = [{} if outcome is None else dict(outcome.metrics) for outcome in every]
    on_device = [(at, name) for at, name in measured if isinstance(metrics[at][name], Tensor)]
    if on_device:
        stacked = torch.cat([stacked, torch.stack([metrics[at][name].to(zero) for at, name in on_device])])
    numbers = stacked.tolist()
    for (at, name), number in zip(on_device, numbers[len(every) + len(counts) :], strict=True):
        metrics[at][name] = number
    failed, measured_anywhere = (int(count) for count in numbers[len(every) : len(every) + len(counts)])
    if measured_anywhere:
        metrics = [next(filter(None, of_all), {}) for of_all in zip(*_distributed.gather_objects(metrics), strict=True)]
    n = len(train)
    return Numbers(numbers[:n], metrics[:n]), Numbers(numbers[n : len(every)], metrics[n:]), failed
