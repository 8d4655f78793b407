"""What an architecture costs (parameters, FLOPs, measured latency) and how far that is outside of limits.

A measure is any function `(model, values) -> number` of a model with decisions and an architecture.
Those here measure the network that would be extracted, and leave the model as it was.
"""

import math
import numbers
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from asng.nas.counting import count
from asng.nas.devices import device_of, moved
from asng.nas.extraction import extract
from asng.nas.selection import Decisions, Values
from asng.nas.untouched import untouched

Measure = Callable[[nn.Module, Values], SupportsFloat]


@dataclass(frozen=True)
class Limit:
    """The most that a cost may be: `Limit(parameters, 100_000)`; the name is for messages."""

    measure: Measure
    at_most: float
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.measure):
            raise ValueError(f"a limit needs a function (model, values) -> number, got {self.measure!r}")
        if not self.name:
            object.__setattr__(self, "name", getattr(self.measure, "__name__", type(self.measure).__name__))
        if not isinstance(self.at_most, numbers.Real) or not 0 < self.at_most < math.inf:
            raise ValueError(f"the limit of {self.name} must be a number above 0, got {self.at_most!r}")


class Costs:
    """Costs of a model's architectures under limits, each measured once.

    `known` holds what was measured: plain values that can be saved, and put back by `known.update`.
    Whoever changes the model calls `known.clear()`; nothing else of it is remembered but its decisions.
    """

    def __init__(self, model: nn.Module, limits: Sequence[Limit]) -> None:
        if not isinstance(limits, Sequence) or not all(isinstance(limit, Limit) for limit in limits):
            raise ValueError(f"limits must be a list, such as [Limit(parameters, 100_000)], got {limits!r}")
        self.model = model
        self.limits = tuple(limits)
        self.known: dict[str, tuple[float, ...]] = {}
        self.decisions = Decisions(model)
        self._met: dict[str, dict[str, Any]] = {}  # values that their keys do not tell

    def of(self, values: Values) -> tuple[float, ...]:
        """What an architecture costs, one number per limit."""
        key = self.decisions.key(values)
        if not self.decisions.readable:
            self._met[key] = dict(values)
        if key not in self.known:
            self.known[key] = tuple(self._measured(limit, values) for limit in self.limits)
        return self.known[key]

    def excess(self, values: Values) -> float:
        """How far an architecture is outside, relative to the limits and summed over them; 0 inside of all."""
        return self._beyond(self.of(values))

    def _beyond(self, costs: Sequence[float]) -> float:
        pairs = zip(costs, self.limits, strict=True)
        return sum((max(0.0, cost / limit.at_most - 1) for cost, limit in pairs), 0.0)

    def nearest(self) -> dict[str, Any] | None:
        """Of all architectures measured so far, the newest with the smallest excess."""
        told = self.known if self.decisions.readable else self._met
        key = min(reversed(told), key=lambda key: self._beyond(self.known[key]), default=None)
        return None if key is None else self._met.get(key) or self.decisions.values(key)

    def _measured(self, limit: Limit, values: Values) -> float:
        try:
            if limit.measure is parameters:
                return float(count(self.decisions, values))  # without a new look at the whole model
            with untouched(self.decisions):
                cost = limit.measure(self.model, values)
        except Exception as error:
            error.add_note(f"in {limit.name} of the architecture {dict(values)}")
            raise
        try:
            number = float(cost)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"{limit.name} must be a number, got {cost!r} for {dict(values)}") from None
        if not number >= 0:
            raise ValueError(f"{limit.name} must be at least 0, got {number} for {dict(values)}")
        return number


def parameters(model: nn.Module, values: Values) -> int:
    """The number of parameters of the extracted network, what is shared counted once."""
    decisions = Decisions(model)
    decisions.check(values)
    return count(decisions, values)


class Flops:
    """The floating-point operations of one forward of the extracted network on the example inputs.

    Counted by torch: two for each multiplication with addition in convolutions, matrix products and
    attention, none for anything else. The example's batch counts in full.
    """

    def __init__(self, *inputs: Any) -> None:
        self.inputs = _checked(inputs)

    def __call__(self, model: nn.Module, values: Values) -> int:
        with untouched(Decisions(model)), torch.no_grad():
            device = device_of(model)
            # Torch's counter follows gradients.
            network = extract(model, values).eval().requires_grad_(False).to(device)
            inputs = moved(self.inputs, device)
            with FlopCounterMode(display=False) as counter:
                network(*inputs)
        return int(counter.get_total_flops())


class Latency:
    """Median seconds of one forward of the extracted network on the example inputs, on a device.

    The device is the one where the network will run, by default the one where it is trained. On the
    CPU torch uses the threads that it is set to (`torch.set_num_threads`). Each new architecture runs
    forward `warm_up + repeats` times; whatever else runs on the device disturbs the measurement.
    """

    def __init__(
        self, *inputs: Any, device: torch.device | str | None = None, repeats: int = 11, warm_up: int = 3
    ) -> None:
        self.inputs = _checked(inputs)
        self.device = None if device is None else torch.device(device)
        if repeats < 1 or warm_up < 0:
            raise ValueError(f"repeats must be at least 1 and warm_up 0, got {repeats} and {warm_up}")
        self.repeats = repeats
        self.warm_up = warm_up

    def __call__(self, model: nn.Module, values: Values) -> float:
        device = self.device or device_of(model)
        with untouched(Decisions(model), device), torch.no_grad():
            network = extract(model, values).eval().to(device)
            inputs = moved(self.inputs, device)
            for _ in range(self.warm_up):
                network(*inputs)
            return statistics.median(_seconds(network, inputs, device) for _ in range(self.repeats))


def _seconds(network: nn.Module, inputs: Sequence[Any], device: torch.device) -> float:
    """Seconds of one forward."""
    match device.type:
        case "cpu":
            start = time.perf_counter()
            network(*inputs)
            return time.perf_counter() - start
        case "cuda":
            with torch.cuda.device(device):
                event: Any = torch.cuda.Event
                begin, end = event(enable_timing=True), event(enable_timing=True)
                torch.cuda.synchronize()
                begin.record()
                network(*inputs)
                end.record()
                end.synchronize()
                return float(begin.elapsed_time(end)) / 1000
        case other:
            raise ValueError(f"latency is measured on cpu or cuda, not on {other}; give a measure of your own")


def _checked(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    if not inputs:
        raise ValueError(
            "example inputs are missing; give what the model is called with, such as torch.zeros(1, 3, 32, 32)"
        )
    return inputs
