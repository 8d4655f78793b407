"""Candidates as they run: what their loss function returns, a lack of memory, and decisions that nothing reads."""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from asng._checks import as_float
from asng.nas import _checkpoints, _distributed
from asng.nas.decisions import Decision
from asng.nas.supernet import Supernet


@dataclass(frozen=True)
class Step:
    """The record of one iteration. `train_step` and `judge_step` fill only the fields of their half.

    Attributes:
        train_losses: The losses of the candidates that trained the weights; inf of those that failed. Empty if none was
            feasible.
        valid_losses: The losses of the scored candidates; None for infeasible ones, which did not run. Empty with a
            judge.
        train_metrics: One mapping per candidate; empty without metrics, and for those that failed.
        valid_metrics: The same for the scored candidates, from the judge if there is one; also empty for infeasible
            ones.
        candidates: The values of the scored candidates.
        violations: For each scored candidate the relative violation of the first violated limit; 0 if feasible.
        scores: The numbers that ranked the candidates, from the judge or by default the losses; None for infeasible
            ones.

    >>> numbers = {"train_losses": (0.5, 0.7), "valid_losses": (0.4, None), "violations": (0.0, 0.1)}
    >>> step = Step(**numbers, scores=(0.4, None), candidates=({"act": 0}, {"act": 1}))
    >>> step.train_loss, step.valid_loss, step.score
    (0.6, 0.4, 0.4)
    """

    train_losses: tuple[float, ...] = ()
    valid_losses: tuple[float | None, ...] = ()
    train_metrics: tuple[dict[str, float], ...] = ()
    valid_metrics: tuple[dict[str, float], ...] = ()
    candidates: tuple[dict[str, Any], ...] = ()
    violations: tuple[float, ...] = ()
    scores: tuple[float | None, ...] = ()

    @property
    def train_loss(self) -> float:
        """The mean of the finite losses of the candidates that trained the weights; NaN if there are none."""
        return finite_mean(self.train_losses)

    @property
    def valid_loss(self) -> float:
        """The mean of the finite losses of the scored candidates; NaN if there are none, as with a judge.

        `score` is the mean of the numbers that ranked the candidates, with or without a judge.
        """
        return finite_mean(self.valid_losses)

    @property
    def score(self) -> float:
        """The mean of the finite scores; NaN if there are none."""
        return finite_mean(self.scores)


def finite_mean(numbers: Iterable[float | None]) -> float:
    """The mean of the finite numbers; NaN if there are none.

    >>> finite_mean([1.0, None, math.inf, 3.0])
    2.0
    """
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    return sum(finite) / len(finite) if finite else math.nan


Metrics = Mapping[str, Tensor | float]
LossFn = Callable[[nn.Module, Any], Tensor | tuple[Tensor, Metrics]]
"""A loss: (model, batch) -> a scalar tensor, or (loss, metrics) with a mapping of names to numbers."""

Judge = Callable[[nn.Module, Any], Any]
"""A judge: (model, batch) -> a number, lower is better, or (number, metrics)."""

FAILURES = (torch.OutOfMemoryError, MemoryError)
MAX_FAILED_STEPS = 5  # in a row in which every candidate failed
WATCHED_STEPS = 10  # that are watched for decisions that nothing reads
MIN_CANDIDATES = 10  # in which a decision was active and not read, before it is warned of

T = TypeVar("T")


class Outcome(NamedTuple):
    """The loss of a candidate and its metrics, on the device."""

    loss: Tensor  # ()
    metrics: dict[str, Tensor | float]
    weight: float = 1.0  # the fraction of its batch that a process ran it on

    def detach(self) -> "Outcome":
        return self._replace(loss=self.loss.detach())


FAILED = Outcome(torch.tensor(math.inf), {})  # of a candidate that failed


class Numbers(NamedTuple):
    """The same on the host."""

    loss: float
    metrics: dict[str, float]
    failed: bool = False  # it ran out of memory, or raised an exception of `failures`
    weight: float = 1.0


def to_outcome(returned: Any) -> Outcome:
    """Check what a loss function returned: a scalar tensor, or a pair of one and its metrics."""
    loss, metrics = split_metrics(returned)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        has_loss = isinstance(getattr(loss, "loss", None), Tensor)  # the output of a Hugging Face model
        got = f"a {type(loss).__name__}; return its .loss" if has_loss else _describe_value(loss)
        raise ValueError(f"loss_fn(model, batch) must return a scalar tensor, or (loss, metrics), got {got}")
    if loss.is_complex():
        raise ValueError(f"loss_fn(model, batch) must return a real number, got {loss.dtype}; take its abs() or real")
    return Outcome(loss.reshape(()), _check_metrics(metrics))


def to_score(returned: Any) -> Outcome:
    """Check what a judge returned: anything that converts to a float, or a pair of it and metrics."""
    score, metrics = split_metrics(returned)
    try:
        if not isinstance(score, Tensor):
            score = torch.tensor(as_float(score, "a score must be a number"), dtype=torch.float64)
        if score.numel() != 1 or score.is_complex():
            raise TypeError
    except (TypeError, ValueError):
        raise ValueError(
            "judge(model, batch) must return a number, the lower the better, or (number, metrics), got "
            f"{_describe_value(score)}"
        ) from None
    return Outcome(score.detach().reshape(()), _check_metrics(metrics))


def split_metrics(returned: Any) -> tuple[Any, Any]:
    """The number that a loss function or a judge returned, and its metrics."""
    number, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    return number, metrics


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The means over the micro-batches of a step; a metric that some of them lack is that of the others."""
    if len(outcomes) == 1:
        return outcomes[0]
    weight = sum(outcome.weight for outcome in outcomes) / len(outcomes)
    losses = torch.stack([outcome.loss * (outcome.weight / weight) for outcome in outcomes])
    return Outcome(losses.mean(), _mean_metrics(outcomes), weight)


def _mean_metrics(outcomes: Sequence[Any]) -> dict[str, Any]:
    """The weighted mean of each metric over the outcomes that have it."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.metrics)
    having = {name: [outcome for outcome in outcomes if name in outcome.metrics] for name in names}
    return {name: sum(o.metrics[name] * o.weight for o in h) / sum(o.weight for o in h) for name, h in having.items()}


def _check_metrics(metrics: Any) -> dict[str, Tensor | float]:
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics must be a mapping of names to numbers, got {_describe_value(metrics)}")
    return {name: _number(name, value) for name, value in metrics.items()}


def _number(name: Any, value: Any) -> Tensor | float:
    if not isinstance(name, str):
        raise ValueError(f"names of metrics must be strings, got {name!r}")
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.detach().reshape(())
    if isinstance(value, Real):
        return float(value)
    raise ValueError(f"metric {name!r} must be a real number or a scalar tensor, got {_describe_value(value)}")


def _describe_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    return repr(value)


def gather_numbers(outcomes: Sequence[Outcome | None], device: torch.device) -> list[Numbers]:
    """Losses and metrics as numbers, with one wait for the device.

    None stands for a candidate that another process ran; one that several ran has the weighted mean of their numbers.
    """
    own = {index: outcome for index, outcome in enumerate(outcomes) if outcome is not None}
    exact = torch.float32 if device.type == "mps" else torch.float64
    values = [value for outcome in own.values() for value in (outcome.loss, *outcome.metrics.values())]
    tensors = [value.to(device, exact) for value in values if isinstance(value, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else ())
    read: dict[int, Numbers] = {}  # by candidate
    for index, outcome in own.items():
        loss = next(numbers)
        metrics = {name: next(numbers) if isinstance(v, Tensor) else v for name, v in outcome.metrics.items()}
        read[index] = Numbers(loss, metrics, outcome is FAILED, outcome.weight)
    everywhere = _distributed.gather_objects(read)
    return [_merge([part[index] for part in everywhere if index in part]) for index in sorted({*chain(*everywhere)})]


def _merge(parts: Sequence[Numbers]) -> Numbers:
    """The numbers of one candidate, of which several processes ran a part each."""
    if len(parts) == 1 or any(part.failed for part in parts):
        return max(parts, key=lambda part: part.failed)
    loss = sum(part.loss * part.weight for part in parts) / sum(part.weight for part in parts)
    return Numbers(loss, _mean_metrics(parts))


class Failures:
    """Runs candidates; warns once per architecture that fails, and raises when nothing else is left."""

    def __init__(self, device: torch.device, kinds: tuple[type[Exception], ...] = FAILURES) -> None:
        self._device, self._kinds = device, kinds
        self._what, self._is_memory = "", True  # what the last candidate that failed did
        self._warned: set[str] = set()
        self._in_a_row: dict[str, int] = {}  # by half: steps in which every candidate failed

    def attempt(self, run: Callable[..., T], values: Mapping[str, Any], *arguments: Any) -> T | None:
        """Return `run(values, *arguments)` for a candidate with these values; None if it failed."""
        try:
            return run(values, *arguments)
        except self._kinds as error:
            reason = _checkpoints.short_reason(error)
            self._is_memory = isinstance(error, FAILURES)
            self._what = "ran out of memory" if self._is_memory else f"failed by {type(error).__name__}"
        # Only here is the traceback gone, whose frames hold the activations.
        del arguments
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if str(values) not in self._warned:
            self._warned.add(str(values))
            cure = ". If many do, use smaller batches, or limit the size of the architectures"
            warnings.warn(
                f"the architecture {dict(values)} {self._what} ({reason}); it ranks last where it is judged, and "
                f"its gradient is dropped{cure if self._is_memory else ''}",
                stacklevel=2,
            )
        return None

    def end_step(self, failed: Mapping[str, bool]) -> None:
        """Note of each half that ran whether every candidate failed; RuntimeError after five steps in a row."""
        for half, every_candidate in failed.items():
            self._in_a_row[half] = self._in_a_row.get(half, 0) + 1 if every_candidate else 0
        if self.steps >= MAX_FAILED_STEPS:
            self._in_a_row.clear()
            cure = "; use smaller batches, or add smaller choices to the model" if self._is_memory else ""
            raise RuntimeError(f"every candidate of {MAX_FAILED_STEPS} steps in a row {self._what}{cure}")

    @property
    def steps(self) -> int:
        """The number of steps in a row, up to the last, in which every candidate of a half failed."""
        return max(self._in_a_row.values(), default=0)


class UnreadDecisions:
    """Watches the candidates of the first steps, and warns of decisions that were active but never read."""

    def __init__(self, supernet: Supernet) -> None:
        self._supernet = supernet
        self._modules = [module for module in supernet.paths if isinstance(module, Decision)]
        self._active = dict.fromkeys(supernet.space, 0)  # of decisions not read so far: in how many candidates
        self._steps = 0

    @contextmanager
    def watch(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Record which of the selected values are read."""
        read: set[str] = set()
        for decision in self._modules:
            decision.__dict__["selected"] = (*decision.selected, read)
        try:
            yield
        finally:
            for decision in self._modules:
                decision.__dict__["selected"] = ()
            self._supernet.choose(values)
            for name in read:
                self._active.pop(name, None)
        if self._active:
            for name in self._active.keys() & self._supernet.active(values):
                self._active[name] += 1

    def end_step(self) -> bool:
        """Return True if there is nothing more to watch; warn of decisions that were never read."""
        self._steps += 1
        if self._active and self._steps < WATCHED_STEPS:
            return False
        names = [name for name, candidates in self._active.items() if candidates >= MIN_CANDIDATES]
        warn_of_unread(names, f"the first {WATCHED_STEPS} steps")
        return True


def warn_of_unread(names: Sequence[str], when: str) -> None:
    """Warn of decisions, if there are any."""
    if names and not _has_compiled():  # reads in compiled code, such as a loss, are not seen
        decisions, them = ("decision", "it") if len(names) == 1 else ("decisions", "them")
        warnings.warn(
            f"nothing has read the {decisions} {', '.join(map(repr, names[:5]))} in {when}, so no architecture "
            f"depends on {them}; does forward() use {them}?",
            stacklevel=3,
        )


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")  # loaded if so
    return dynamo is not None and dynamo.counters["frames"]["total"] > 0
