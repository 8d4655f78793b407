"""The loop of a one-shot search, written for the user: epochs, schedule, checkpoints, what was found.

In the background it is only `OneShot`; whoever wants another loop writes one around that.
"""

import copy
import math
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau
from torch.utils.data.distributed import DistributedSampler

from asng import checkpoints
from asng.asktell import AskTell, count
from asng.nas.choices import extract, space_of
from asng.nas.cost import Limit, _place
from asng.nas.oneshot import Batch, Loss, OneShot, Step, _distributed, broadcast
from asng.optimizer import ASNG
from asng.space import Categorical, Integer, Normal

DRAWS = 1000  # for an architecture inside the limits, where the most likely one is outside


@dataclass(frozen=True)
class Found:
    """What a search ends with."""

    values: dict[str, Any]  # the architecture: the most likely one that meets all limits
    inside: bool  # False where none met the limits, and a warning said so: then the nearest one
    probability: float  # of drawing these choices and integers from the final distribution
    model: nn.Module  # extracted, with the weights of the search; batch norms need `recalibrate`
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
    schedule: LRScheduler | None = None,
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
    0.9 and decay 3e-4, as in the paper; a schedule is stepped after every epoch.

    With a `checkpoint` the state is saved after every epoch and at Ctrl-C, and the same call continues
    from there; on the CPU it ends with the same bits as without a pause. For that the batches may
    depend on torch's, NumPy's and Python's global random numbers and on a loader's own generator, and
    on nothing else that changes.

    `seed` decides the architectures drawn and the order of the batches: while batches are loaded,
    torch's generator is one of their own. In several processes all see the batches of the first.
    """
    epochs = count(epochs, "epochs", least=1)
    for name, batches in (("train", train), ("valid", valid)):
        _check_batches(name, batches, epochs)
    if schedule is not None and (weights is None or schedule.optimizer is not weights):
        raise ValueError("the schedule is of another optimizer; pass the one that it was made with as weights")
    streams = np.random.SeedSequence(count(seed, "seed", least=0)).spawn(2)
    if optimizer is None:
        space = space_of(model)
        optimizer = ASNG(space, seed=streams[0]) if space else ASNG({"none": Categorical([0])})  # OneShot complains
    if weights is None:
        weights = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    oneshot = OneShot(model, optimizer, weights, loss, clip_norm=clip_norm, limits=limits, amp=amp, leave_out=leave_out)
    plan = CosineAnnealingLR(weights, epochs) if schedule is None else schedule
    run = _Run(oneshot, plan, train, valid, int(streams[1].generate_state(1)[0]))
    path = None if checkpoint is None else Path(checkpoint)
    length = epochs if schedule is None else None  # a given schedule may go on for longer than was planned
    with _interrupts() as interrupted:
        _resume(run, path, length)
        with _bar(progress and _first_rank(), epochs) as show:
            while run.epoch < epochs:
                finished = run.one_epoch(show, interrupted)
                if path is not None and _first_rank():
                    checkpoints.save(path, {"epochs": length, "run": run.state_dict()})
                if not finished:
                    raise KeyboardInterrupt(_how_to_continue(run, epochs, path))
    if run.ranks > 1:
        for buffer in model.buffers():  # every process ran other candidates
            dist.broadcast(buffer, 0)
    return found(oneshot, run.history)


def _check_batches(name: str, batches: Iterable[Batch], epochs: int) -> None:
    if not isinstance(batches, Iterable):
        raise ValueError(f"{name} must give batches when it is iterated, such as a DataLoader, got {batches!r}")
    if isinstance(batches, Iterator) and epochs > 1:
        raise ValueError(
            f"{name} is an iterator ({type(batches).__name__}), which ends after one epoch of {epochs}; pass what it "
            "is made from: a list, a DataLoader or an object whose __iter__ starts anew"
        )
    if isinstance(getattr(batches, "sampler", None), DistributedSampler):
        raise ValueError(f"{name} has a DistributedSampler, but all processes need the same batches; leave it out")


def _how_to_continue(run: "_Run", epochs: int, path: Path | None) -> str:
    where = f"stopped in epoch {min(run.epoch + 1, epochs)} of {epochs} after step {run.steps}"
    if path is None:
        return f"{where}; nothing was saved, since no checkpoint was given"
    return f"{where}; saved in {path}: the same call continues from there"


def _resume(run: "_Run", path: Path | None, epochs: int | None) -> None:
    """Continue from the checkpoint if there is one; all processes from the first one's."""
    loaded: Any = None
    if path is not None and _first_rank() and path.exists():
        try:
            loaded = checkpoints.load(path)
        except ValueError as error:
            loaded = str(error)
    if run.ranks > 1:
        loaded = broadcast(loaded)
    if isinstance(loaded, str):
        raise ValueError(loaded)
    if loaded is None:
        return
    try:
        if loaded["epochs"] != epochs:
            raise ValueError(f"planned for {loaded['epochs']} epochs, not {epochs}, on the default schedule")
        run.load_state_dict(loaded["run"])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is of another search ({error}); use another path, or delete it to start anew"
        ) from None


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
    """What a OneShot has found so far: the most likely architecture that meets all limits.

    Where none did that was drawn or met before, it is the nearest one, and a warning says how far outside.
    """
    values = _choice(oneshot)
    inside = not oneshot.excess(values)
    if not inside and _first_rank():
        warnings.warn(_too_much(oneshot, values), stacklevel=2)
    return Found(
        values=values,
        inside=inside,
        probability=probability(oneshot.optimizer.distribution(), oneshot.optimizer.space, values),
        model=extract(oneshot.model, values),
        history=[dict(record) for record in history],
        optimizer=oneshot.optimizer,
    )


def _choice(oneshot: OneShot) -> dict[str, Any]:
    optimizer = oneshot.optimizer
    mode = optimizer.mode()
    if not oneshot.excess(mode):
        return mode
    distribution, space = optimizer.distribution(), optimizer.space
    drawn = {repr(c.values): c.values for c in copy.deepcopy(optimizer).ask(DRAWS)}
    for values in sorted(drawn.values(), key=lambda values: -probability(distribution, space, values)):
        if not oneshot.excess(values):
            return values
    return oneshot.nearest() or mode


def _too_much(oneshot: OneShot, values: Mapping[str, Any]) -> str:
    pairs = zip(oneshot.costs.limits, oneshot.costs.of(values), strict=True)
    costs = ", ".join(f"{limit.name} {cost:.6g} of at most {limit.at_most:.6g}" for limit, cost in pairs)
    return (
        f"no architecture met all limits; the nearest has {costs}. "
        "Raise the limits, or let the model's decisions go smaller"
    )


def probability(distribution: Mapping[str, Any], space: Mapping[str, Any], values: Mapping[str, Any]) -> float:
    """The probability of these choices and integers; real numbers, which have none, do not count."""
    logarithm = 0.0
    for name, variable in space.items():
        match variable:
            case Categorical():
                logarithm += math.log(distribution[name][_place(variable, values[name])])
            case Integer():
                logarithm += math.log(max(_mass(distribution[name], values[name], variable), 1e-300))
    return math.exp(logarithm)


def _mass(normal: Normal, value: int, variable: Integer) -> float:
    """Of the normal numbers that are clipped and rounded to a value."""
    low = -math.inf if value == variable.low else value - 0.5
    high = math.inf if value == variable.high else value + 0.5
    below = [0.5 * (1 + math.erf((edge - normal.mean) / (normal.std * math.sqrt(2)))) for edge in (low, high)]
    return below[1] - below[0]


Show = Callable[[int, int, Step], None]


class _Run:
    """The position of a search in its data, and all that has to be saved to go on from there.

    The middle of an epoch is found again by loading its batches anew from where its random numbers
    began. Those of torch are kept apart from the model's, which depend on the architectures drawn.
    """

    def __init__(
        self, oneshot: OneShot, schedule: LRScheduler, train: Iterable[Batch], valid: Iterable[Batch], seed: int
    ) -> None:
        self._oneshot, self._schedule, self._train, self._valid = oneshot, schedule, train, valid
        self.ranks = dist.get_world_size() if _distributed() else 1
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self._done: list[list[float]] = []  # of the running epoch: train loss, valid loss, share inside the limits
        self._seconds = 0.0  # of the running epoch
        self._data = torch.Generator().manual_seed(seed).get_state()
        self._before = self._random()  # the epoch
        if self.ranks > 1:
            self._set_random({**broadcast(self._before), "torch": self._before["torch"]})

    @property
    def steps(self) -> int:
        """Done in the running epoch."""
        return len(self._done)

    def one_epoch(self, show: Show, stop: Callable[[], bool]) -> bool:
        """All batches of `train` once, from where the epoch stands, then the schedule; False if stopped before."""
        started = time.monotonic() - self._seconds
        for train_batch, valid_batch in self._batches():
            step = self._oneshot.step(train_batch, valid_batch)
            share = sum(not far for far in step.excess) / len(step.excess)
            self._done.append([_mean(step.train_losses), _mean(step.valid_losses), share])
            self._seconds = time.monotonic() - started
            show(self.epoch, self.steps, step)
            if self._agreed(stop()):
                return False
        if not self._done:
            raise ValueError(f"train gave no batches in epoch {self.epoch + 1}; is it empty, or used up?")
        self._finish()
        return True

    def _batches(self) -> Iterator[tuple[Batch, Batch]]:
        """What is left of the epoch."""
        now = self._random()
        if self.steps:
            self._set_random(self._before)
        else:
            self._before = now
        with self._loading():
            pairs = zip(self._train, _cycled(self._valid), strict=False)
        for place in range(self.steps):
            with self._loading():
                if next(pairs, None) is None:
                    raise ValueError(f"train gives only {place} batches, but was at step {self.steps} when it stopped")
        if self.steps:
            self._set_random(now)
        while True:
            with self._loading():
                pair = next(pairs, None)
            if pair is None:
                return
            yield pair

    def _finish(self) -> None:
        """The end of an epoch."""
        train, valid, inside = (_mean(column) for column in zip(*self._done, strict=True))
        if math.isnan(train) and math.isnan(valid) and inside:
            raise RuntimeError(
                f"all losses of epoch {self.epoch + 1} were NaN or infinite; "
                "lower the learning rate, clip the gradient, or look for a division by zero"
            )
        optimizer = self._oneshot.optimizer
        record = {"epoch": self.epoch + 1, "train_loss": train, "valid_loss": valid, "seconds": self._seconds}
        if self._oneshot.costs.limits:
            record["inside"] = inside
        largest = [float(np.max(p)) for p in optimizer.distribution().values() if isinstance(p, np.ndarray)]
        if largest:
            record["largest_probability"] = sum(largest) / len(largest)
        if isinstance(optimizer, ASNG):
            record["delta"] = optimizer.delta
        self.history.append(record)
        self.epoch, self._done, self._seconds = self.epoch + 1, [], 0.0
        with warnings.catch_warnings():  # there may have been no step of the weights yet
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            if isinstance(self._schedule, ReduceLROnPlateau):
                self._schedule.step(valid)
            else:
                self._schedule.step()

    def _agreed(self, stop: bool) -> bool:
        """Whether any process is to stop: a Ctrl-C does not reach all of them in the same step."""
        if self.ranks > 1:
            votes = torch.tensor([stop], dtype=torch.int32, device=self._oneshot.device)
            dist.all_reduce(votes, dist.ReduceOp.MAX)
            return bool(votes.item())
        return stop

    def state_dict(self) -> dict[str, Any]:
        return {
            "search": self._oneshot.state_dict(),
            "schedule": self._schedule.state_dict(),
            "epoch": self.epoch,
            "history": self.history,
            "done": self._done,
            "seconds": self._seconds,
            "random": self._random(),
            "random_before_epoch": self._before,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._set_random(state["random"])
        self._oneshot.load_state_dict(state["search"])
        self._schedule.load_state_dict(state["schedule"])
        self.epoch, self.history, self._done = state["epoch"], state["history"], state["done"]
        self._seconds, self._before = state["seconds"], state["random_before_epoch"]

    # Random numbers.

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Torch's random numbers are those of the data."""
        model = torch.get_rng_state()
        torch.set_rng_state(self._data)
        try:
            yield
        finally:
            self._data = torch.get_rng_state()
            torch.set_rng_state(model)

    def _random(self) -> dict[str, Any]:
        """The generators that batches and layers draw from."""
        numpys: Any = np.random.get_state()  # noqa: NPY002 - data sets draw from it
        state = {
            "torch": torch.get_rng_state(),
            "data": self._data,
            "loaders": [generator.get_state() for generator in self._generators()],
            "python": random.getstate(),
            "numpy": [numpys[0], numpys[1].tolist(), *numpys[2:]],
        }
        if self._oneshot.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._oneshot.device)
        return state

    def _set_random(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        self._data = state["data"]
        for generator, saved in zip(self._generators(), state["loaders"], strict=True):
            generator.set_state(saved)
        random.setstate(state["python"])
        np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
        if "cuda" in state and self._oneshot.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self._oneshot.device)

    def _generators(self) -> list[torch.Generator]:
        """Those of data loaders and of their samplers, each once."""
        generators = {}
        for batches in (self._train, self._valid):
            batch_sampler = getattr(batches, "batch_sampler", None)
            for holder in (batches, getattr(batches, "sampler", None), getattr(batch_sampler, "sampler", None)):
                generator = getattr(holder, "generator", None)
                if isinstance(generator, torch.Generator):
                    generators[id(generator)] = generator
        return list(generators.values())


def _cycled(batches: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("valid gave no batches; is it empty, or used up?")


def _mean(numbers: Iterable[float | None]) -> float:
    """Of those that are there and finite."""
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    return sum(finite) / len(finite) if finite else math.nan


def _first_rank() -> bool:
    return not _distributed() or dist.get_rank() == 0


@contextmanager
def _bar(wanted: bool, epochs: int) -> Iterator[Show]:
    """A progress bar on a terminal's stderr, with the newest loss; silent elsewhere."""
    if not wanted:
        yield lambda epoch, step, record: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (console.is_terminal or console.is_jupyter)) as bar:
        task = bar.add_task("search", total=epochs)
        steps_per_epoch = 0

        def show(epoch: int, step: int, record: Step) -> None:
            nonlocal steps_per_epoch
            steps_per_epoch = max(steps_per_epoch, step)
            within = step / steps_per_epoch if epoch else 0.0  # the first epoch tells how long they are
            text = f"epoch {epoch + 1}/{epochs} step {step} loss {_mean(record.valid_losses):.3g}"
            bar.update(task, completed=epoch + within, description=text)

        yield show
        bar.update(task, completed=epochs)
