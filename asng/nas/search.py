"""The loop written for the user: epochs, schedule, progress, checkpoints and what was found.

In the background it is only `OneShot`; whoever wants another loop writes one around that.
"""

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from asng import checkpoints
from asng.asktell import AskTell
from asng.nas.choices import extract, space_of
from asng.nas.cost import Limit
from asng.nas.oneshot import Batch, Loss, OneShot, Step
from asng.optimizer import ASNG
from asng.space import Categorical, Integer, Normal

DRAWS = 1000  # for an architecture inside the limits, where the most likely one is outside


@dataclass(frozen=True)
class Found:
    """What a search ends with."""

    values: dict[str, Any]  # the architecture: the most likely one that meets all limits
    inside: bool  # False where no architecture that met the limits was found: then simply the most likely one
    probability: float  # of drawing these choices and integers from the final distribution
    model: nn.Module  # extracted, with the weights of the search
    history: list[dict[str, float]]  # one record per epoch
    optimizer: AskTell


def search(
    model: nn.Module,
    train: Iterable[Batch],
    valid: Iterable[Batch],
    loss: Loss,
    *,
    epochs: int,
    optimizer: AskTell | None = None,
    weights: torch.optim.Optimizer | None = None,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    clip_norm: float | None = 5.0,
    limits: Sequence[Limit] = (),
    amp: torch.dtype | None = None,
    leave_out: bool = False,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> Found:
    """Search the architecture of a model with decisions while training it.

    `train` and `valid` are iterated anew in every epoch (lists, DataLoaders); `valid` starts over
    when it is shorter. By default the weights follow SGD from 0.025 to 0 on a cosine, with momentum
    0.9 and decay 3e-4, as in the paper. With a `checkpoint` the state is saved after every epoch and
    at Ctrl-C, and the same call continues from there.
    """
    optimizer = ASNG(space_of(model), seed=seed) if optimizer is None else optimizer
    weights = weights or torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    schedule = schedule or torch.optim.lr_scheduler.CosineAnnealingLR(weights, epochs)
    oneshot = OneShot(model, optimizer, weights, loss, clip_norm=clip_norm, limits=limits, amp=amp, leave_out=leave_out)
    run = _Run(oneshot, schedule, train, valid, None if checkpoint is None else Path(checkpoint))
    run.resume()
    with _bar(progress and _first_rank(), epochs) as show, _interrupts() as interrupted:
        while run.epoch < epochs:
            run.one_epoch(show, interrupted)
            if interrupted():
                run.save()
                where = (
                    f"the same call continues from {checkpoint}" if checkpoint else "nothing was saved: no checkpoint"
                )
                raise KeyboardInterrupt(f"stopped in epoch {run.epoch + 1} of {epochs}; {where}")
    return found(oneshot, run.history)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits for the end of a step, so that what is saved is whole; a second one does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen = False

    def note(number: int, frame: Any) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: seen
    finally:
        signal.signal(signal.SIGINT, before)


def found(oneshot: OneShot, history: Sequence[Mapping[str, float]] = ()) -> Found:
    """What a OneShot has found so far: the most likely architecture that meets all limits."""
    values, inside = _inside(oneshot)
    return Found(
        values=values,
        inside=inside,
        probability=probability(oneshot.optimizer.distribution(), oneshot.optimizer.space, values),
        model=extract(oneshot.model, values),
        history=[dict(record) for record in history],
        optimizer=oneshot.optimizer,
    )


def _inside(oneshot: OneShot) -> tuple[dict[str, Any], bool]:
    optimizer = oneshot.optimizer
    mode = optimizer.mode()
    if not oneshot.excess(mode):
        return mode, True
    distribution, space = optimizer.distribution(), optimizer.space
    drawn = {repr(c.values): c.values for c in copy.deepcopy(optimizer).ask(DRAWS)}
    by_likelihood = sorted(drawn.values(), key=lambda values: -probability(distribution, space, values))
    for values in by_likelihood:
        if not oneshot.excess(values):
            return values, True
    return mode, False


def probability(distribution: Mapping[str, Any], space: Mapping[str, Any], values: Mapping[str, Any]) -> float:
    """The probability of these choices and integers; real numbers, which have none, do not count."""
    logarithm = 0.0
    for name, variable in space.items():
        match variable:
            case Categorical():
                place = next(i for i, choice in enumerate(variable.choices) if choice == values[name])
                logarithm += math.log(distribution[name][place])
            case Integer():
                logarithm += math.log(max(_mass(distribution[name], values[name], variable), 1e-300))
    return math.exp(logarithm)


def _mass(normal: Normal, value: int, variable: Integer) -> float:
    """Of the normal numbers that are clipped and rounded to a value."""
    low = -math.inf if value == variable.low else value - 0.5
    high = math.inf if value == variable.high else value + 0.5
    below = [0.5 * (1 + math.erf((edge - normal.mean) / (normal.std * math.sqrt(2)))) for edge in (low, high)]
    return below[1] - below[0]


class _Run:
    """The position of a search in its data, and all that has to be saved to go on from there."""

    def __init__(
        self,
        oneshot: OneShot,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        train: Iterable[Batch],
        valid: Iterable[Batch],
        path: Path | None,
    ) -> None:
        self._oneshot, self._schedule, self._train, self._valid, self._path = oneshot, schedule, train, valid, path
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self._done: list[list[float]] = []  # of the running epoch: train loss, valid loss
        self._before_epoch = self._random()

    def one_epoch(self, show: Callable[[int, int, Step, AskTell], None], stop: Callable[[], bool]) -> None:
        """All batches of `train` once, from where the epoch stands, then the schedule and a checkpoint."""
        started = time.monotonic()
        skip = len(self._done)
        if not skip:
            self._before_epoch = self._random()
        now = self._random()
        self._set_random(self._before_epoch)  # for iterators that draw their order when they start
        batches = zip(self._train, _cycled(self._valid), strict=False)
        for _ in islice(batches, skip):
            pass
        if skip:
            self._set_random(now)
        for train_batch, valid_batch in batches:
            step = self._oneshot.step(train_batch, valid_batch)
            self._done.append([_mean(step.train_losses), _mean([x for x in step.valid_losses if x is not None])])
            show(self.epoch, len(self._done), step, self._oneshot.optimizer)
            if stop():
                return
        if not self._done:
            raise ValueError(
                f"train gave no batches in epoch {self.epoch + 1}; pass something that can be iterated again"
            )
        self._schedule.step()
        self.history.append(self._record(time.monotonic() - started))
        self.epoch, self._done = self.epoch + 1, []
        self.save()

    def _record(self, seconds: float) -> dict[str, float]:
        train, valid = (_mean([x for x in column if math.isfinite(x)]) for column in zip(*self._done, strict=True))
        largest = [
            float(np.max(p)) for p in self._oneshot.optimizer.distribution().values() if isinstance(p, np.ndarray)
        ]
        record = {"epoch": self.epoch + 1.0, "train_loss": train, "valid_loss": valid, "seconds": seconds}
        if largest:
            record["largest_probability"] = sum(largest) / len(largest)
        if isinstance(self._oneshot.optimizer, ASNG):
            record["delta"] = self._oneshot.optimizer.delta
        return record

    def save(self) -> None:
        if self._path is not None and _first_rank():
            state = {
                "search": self._oneshot.state_dict(),
                "schedule": self._schedule.state_dict(),
                "epoch": self.epoch,
                "history": self.history,
                "done": self._done,
                "random": self._random(),
                "random_before_epoch": self._before_epoch,
            }
            checkpoints.save(self._path, state)

    def resume(self) -> None:
        if self._path is None or not self._path.exists():
            return
        state = checkpoints.load(self._path)
        try:
            self._oneshot.load_state_dict(state["search"])
            self._schedule.load_state_dict(state["schedule"])
            self.epoch, self.history, self._done = state["epoch"], state["history"], state["done"]
            self._before_epoch = state["random_before_epoch"]
            self._set_random(state["random"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{self._path} is of another search ({error}); use another path or delete it") from None

    def _random(self) -> dict[str, Any]:
        """The generators that batches and layers draw from: torch's own, and those of data loaders."""
        state: dict[str, Any] = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
        for name, generator in self._generators().items():
            state[name] = generator.get_state()
        return state

    def _set_random(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])
        for name, generator in self._generators().items():
            generator.set_state(state[name])

    def _generators(self) -> dict[str, torch.Generator]:
        loaders = {"train": self._train, "valid": self._valid}
        generators = {name: getattr(loader, "generator", None) for name, loader in loaders.items()}
        return {name: g for name, g in generators.items() if isinstance(g, torch.Generator)}


def _cycled(batches: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("valid gave no batches; pass something that can be iterated again")


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def _first_rank() -> bool:
    return (
        not (torch.distributed.is_available() and torch.distributed.is_initialized())
        or torch.distributed.get_rank() == 0
    )


@contextmanager
def _bar(wanted: bool, epochs: int) -> Iterator[Callable[[int, int, Step, AskTell], None]]:
    """A progress bar over epochs, with the newest losses; silent where it is not wanted."""
    if not wanted:
        yield lambda epoch, step, record, optimizer: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("search", total=epochs)
        steps_per_epoch = 0

        def show(epoch: int, step: int, record: Step, optimizer: AskTell) -> None:
            nonlocal steps_per_epoch
            steps_per_epoch = max(steps_per_epoch, step)
            loss = _mean([x for x in record.valid_losses if x is not None])
            within = step / steps_per_epoch if epoch else 0.0
            text = f"epoch {epoch + 1}/{epochs} step {step} loss {loss:.3g}"
            bar.update(task, completed=epoch + min(within, 1.0), description=text)

        yield show
        bar.update(task, completed=epochs)
