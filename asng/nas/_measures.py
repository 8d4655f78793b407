"""Measures of an architecture: parameters, FLOPs, latency of the network that would be extracted.

A measure is any function `(model, values) -> number` of a model with decisions and an architecture. Those
here leave the model unchanged.
"""

import math
import os
import platform
import statistics
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from asng._checks import check_int
from asng.nas._devices import find_device, to_device
from asng.nas._extract import StaticBuild
from asng.nas._flops import FlopCounter
from asng.nas._preserve import WeightsWritten, label_of, preserve_rng, without_fast_path
from asng.nas.supernet import Supernet, Values

FASTEST, MAX_SPREAD = 3, 0.1  # a latency is the median of the three fastest runs, which agree within 10 %
FAR_ABOVE = 1.5  # times the limit
MAX_RUNS = 10_000


class StaticMeasure(ABC):
    """A measure of the static network alone, so that one `StaticBuild` serves all of them.

    `fingerprint` says all that its numbers depend on besides the network: costs that were saved are used again
    only where it is the same.
    """

    device: torch.device | None = None  # where it runs, if not where the model is
    is_exact: ClassVar[bool] = True  # whether its numbers are the same under any limit

    def __call__(self, model: nn.Module, values: Values) -> float:
        return measure_static(self, StaticBuild(Supernet(model), values))

    @abstractmethod
    def _measure(self, build: StaticBuild, device: torch.device, at_most: float) -> float:
        """The cost of a network whose weights are those of a model on a device, and must stay as they are.

        It has to be exact only as far as it decides whether it is at most `at_most`.
        """


def measure_static(measure: StaticMeasure, build: StaticBuild, at_most: float = math.nan) -> float:
    """The cost of a network, exact or as far as a limit needs it; torch's RNG state is restored."""
    with preserve_rng(build.supernet, measure.device), torch.no_grad():
        return measure._measure(build, find_device(build.supernet.model), at_most)


class _Parameters(StaticMeasure):
    """Count the parameters of the extracted network; shared ones count once.

    Args:
        model: Any module with decisions.
        values: One value for each decision, by name.

    Returns:
        The number of parameters.

    Raises:
        ValueError: The values do not fit.

    >>> import asng.nas
    >>> model = asng.nas.Linear(3, asng.nas.Width("units", 2, 8))
    >>> asng.nas.parameters(model, {"units": 4})
    16
    """

    __name__ = "parameters"
    fingerprint = "parameters"

    def __call__(self, model: nn.Module, values: Values) -> int:
        return Supernet(model).num_parameters(values)

    def _measure(self, build: StaticBuild, device: torch.device, at_most: float) -> int:
        return build.num_parameters()

    def __repr__(self) -> str:
        return "asng.nas.parameters"


parameters: _Parameters = _Parameters()


class ForwardMeasure(StaticMeasure):
    """A measure of one forward on example inputs."""

    def __init__(self, *args: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ValueError(f"kwargs are inputs by name, such as {{'input_ids': ids}}, got {_describe(kwargs)}")
        if not args and not kwargs:
            raise ValueError(
                "example inputs are missing; give what the model is called with, such as torch.zeros(1, 3, 32, 32) or "
                'kwargs={"input_ids": ids}'
            )
        if len(args) == 1 and isinstance(args[0], (tuple, list)) and all(isinstance(n, int) for n in args[0]):
            shape = tuple(args[0])
            raise ValueError(f"an example input is a tensor, not its shape {shape}; give torch.zeros{shape}")
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = dict(kwargs or {})

    def _forward(self, network: nn.Module, device: torch.device) -> Callable[[], Any]:
        """A call of a network on the example inputs; a note on what it raises says which they are."""
        args, kwargs = to_device((self.args, self.kwargs), device)

        def run() -> Any:
            try:
                return network(*args, **kwargs)
            except Exception as error:
                name = type(self).__name__
                error.add_note(f"in a forward on the example inputs that {name} was given: {self._describe_inputs()}")
                raise

        return run

    def _describe_inputs(self) -> str:
        return f"{_describe(self.args)}{f', {_describe(self.kwargs)}' if self.kwargs else ''}"

    def __repr__(self) -> str:
        where = "" if self.device is None else f", device={self.device.type}"
        return f"{type(self).__name__}({self._describe_inputs()}{where})"


class Flops(ForwardMeasure):
    """A measure: the floating-point operations of one forward of the extracted network.

    A multiply-add in convolutions, matrix products, attention and recurrent layers counts as two operations, whichever
    kernel torch uses; nothing else counts. A matrix operation without a formula, such as that of a quantized layer,
    counts as 0, and a warning names it.

    Args:
        args: Example inputs of the model; the whole batch counts.
        kwargs: Example inputs by keyword, such as a batch of a Hugging Face model.

    Raises:
        ValueError: There are no example inputs, one is a shape, or `kwargs` is not a mapping.

    >>> from asng import nas
    >>> Flops(torch.zeros(1, 3))(nas.Linear(3, nas.Width("units", 2, 8)), {"units": 4})
    24
    """

    def __init__(self, *args: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__(*args, kwargs=kwargs)
        self._warned: set[str] = set()

    def _measure(self, build: StaticBuild, device: torch.device, at_most: float) -> int:
        try:
            return self._count(build.copy(share_weights=True), FlopCounter(build.supernet.model), device)
        except WeightsWritten:
            return self._count(build.copy(), FlopCounter(nn.Module()), device)

    def _count(self, network: nn.Module, counter: FlopCounter, device: torch.device) -> int:
        network.eval()  # which returns None where a train() of the user's does
        network.to(device)  # where a `build_static` makes parameters of its own
        run = self._forward(network, device)
        with without_fast_path(), counter:  # for whose kernels torch has no formulas
            run()
        paths = {module: path for path, module in network.named_modules()}
        for name, module in counter.uncounted.items():
            if name in self._warned:
                continue
            self._warned.add(name)
            warnings.warn(
                f"Flops counts {name} in {label_of(module, paths)} as 0, since it has no formula; "
                f"register one: torch.utils.flop_counter.register_flop_formula(torch.ops.{name})",
                stacklevel=5,
            )
        return counter.total

    @property
    def fingerprint(self) -> str:
        """Everything that the numbers depend on besides the network, as text."""
        return f"{self!r}, formulas of torch {torch.__version__}"


class Latency(ForwardMeasure):
    """A measure: the seconds of one forward of the extracted network.

    Each new network runs `warmup` times and then up to `repeats` times, until the three fastest runs agree within 10 %;
    their median is the latency. The fastest runs are the most reliable, because other work on the device only slows
    runs down. Under an upper limit the runs stop when the comparison is decided: when two runs are within the limit, or
    when all first runs are far above it. The latency is then only that of these runs. On the CPU torch uses its current
    number of threads (`torch.set_num_threads`).

    Args:
        args: Example inputs of the model.
        kwargs: Example inputs by keyword, such as a batch of a Hugging Face model.
        device: The device to measure on; by default that of the model.
        repeats: Maximum number of runs, from 1 to 10,000.
        warmup: Number of runs before these, at most 10,000.

    Raises:
        ValueError: There are no example inputs, or a number is too small or too large.

    >>> from asng import nas
    >>> 0 < Latency(torch.zeros(1, 3))(nas.Linear(3, nas.Width("units", 2, 8)), {"units": 4}) < 60
    True
    """

    __name__ = "Latency (s)"  # of limits, columns and axes: costs are shown by name alone
    is_exact = False

    def __init__(
        self,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        repeats: int = 11,
        warmup: int = 3,
    ) -> None:
        super().__init__(*args, kwargs=kwargs)
        try:
            self.device: torch.device | None = None if device is None else torch.device(device)
        except (RuntimeError, TypeError, ValueError):
            raise ValueError(f"device must be one of torch's, such as 'cpu' or 'cuda:0', got {device!r}") from None
        self.repeats: int = check_int(repeats, "repeats", min=1, max=MAX_RUNS)
        self.warmup: int = check_int(warmup, "warmup", min=0, max=MAX_RUNS)

    def _measure(self, build: StaticBuild, device: torch.device, at_most: float) -> float:
        device = self.device or device
        network = build.copy().to(device)  # a copy: what runs may write into its weights
        network.eval()
        run = self._forward(network, device)
        seconds: list[float] = []
        while len(seconds) < self.warmup + self.repeats and not _agree(seconds[self.warmup :]):
            seconds.append(_seconds(run, device))
            if _is_decided(seconds, self.warmup, at_most):
                return _median_of_fastest(seconds)
        return _median_of_fastest(seconds[self.warmup :])

    @property
    def fingerprint(self) -> str:
        """Everything that the numbers depend on besides the network, as text."""
        where = "the model's device" if self.device is None else device_name(self.device)
        host = f"{platform.node()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
        runs = f"{self.repeats} + {self.warmup} runs, torch {torch.__version__}"
        return f"{self!r} on {where}, {host}, {runs}"


def _median_of_fastest(seconds: Sequence[float]) -> float:
    return statistics.median(sorted(seconds)[:FASTEST])


def _agree(seconds: Sequence[float]) -> bool:
    """Whether the three fastest runs lie within 10 %."""
    times = sorted(seconds)[:FASTEST]
    return len(times) == FASTEST and times[-1] <= (1 + MAX_SPREAD) * times[0]


def _is_decided(seconds: Sequence[float], warmup: int, at_most: float) -> bool:
    """Whether a limit is met, as more runs only lower the median of the three fastest, or missed by far."""
    if sum(run <= at_most for run in seconds) == 2:
        return True
    return len(seconds) >= warmup + FASTEST and min(seconds) > FAR_ABOVE * at_most


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one forward, until the device has finished."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"latency is measured on cpu or cuda, not on {device.type}; give a measure of your own")
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def device_name(device: torch.device) -> str:
    """A kind of device: numbers measured on another one are others."""
    return f"cuda, {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


def _describe(inputs: Any) -> str:
    """Shapes and types of example inputs."""
    kind: Any = type(inputs)
    match inputs:
        case Tensor():
            value = f" {inputs.item()}" if inputs.numel() == 1 else ""  # a number may decide what runs
            return f"{tuple(inputs.shape)} {inputs.dtype}{value}"
        case tuple() | list():
            return f"[{', '.join(map(_describe, inputs))}]"
        case Mapping():
            return f"{{{', '.join(f'{key}: {_describe(value)}' for key, value in inputs.items())}}}"
        case _ if kind.__repr__ is object.__repr__:  # which is another in every process
            return str(kind.__name__)
        case _:
            return repr(inputs)[:80]
