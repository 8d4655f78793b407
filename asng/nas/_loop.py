"""The loop of all resumable jobs: searches and trainings, in steps and epochs, with checkpoints.

A checkpoint is saved after every epoch, every few minutes, at Ctrl-C or SIGTERM, and after an error between two steps.
Resuming is bit-exact: a step depends on its index, on the state that its job saves, and on the global RNG states, which
the loop saves. A step that fails leaves weights, batch statistics or RNG states changed: they are not saved.
"""

import math
import random
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from asng._checks import check_int
from asng._files import check_writable
from asng._progress import Progress, no_progress
from asng._signals import delay_interrupts
from asng._untrusted import mismatch
from asng.nas import _distributed
from asng.nas._candidates import finite_mean
from asng.nas._checkpoints import Checkpoint, short_reason

CONTINUES = "continues"  # the first word of a job that was resumed
STATUS_INTERVAL = 0.5  # seconds; reading a number makes the host wait for the GPU
SAVE_INTERVAL = 300.0  # seconds: what an error in a step or a kill costs at most, unless saving takes long
MAX_SAVE_SHARE = 0.01  # of the time that saves within epochs may take

Number = float | Tensor


class NoFiniteLoss(ValueError):
    """All losses of an epoch were NaN or infinite, or all of those that decide between candidates."""


@dataclass
class Epoch:
    """The measurements of the running epoch."""

    number: int = 1
    steps: int = 0
    measured: dict[str, list[Any]] = field(default_factory=dict)  # numbers, or tensors on the device
    seconds: float = 0.0

    def add(self, values: Mapping[str, Number]) -> None:
        self.steps += 1
        for name, value in values.items():
            self.measured.setdefault(name, []).append(value)

    def to_floats(self) -> dict[str, list[float]]:
        """All numbers, read from the device."""
        self.measured = {name: list(map(float, values)) for name, values in self.measured.items()}
        return self.measured

    def means(self) -> dict[str, float | None]:
        """The mean over the steps of each measurement's finite values; None if there are none."""
        means = {name: finite_mean(values) for name, values in self.to_floats().items()}
        return {name: None if math.isnan(mean) else mean for name, mean in means.items()}


class Job(Protocol):
    """A computation in steps; it owns its batches, learning rate and seeds."""

    device: torch.device

    @property
    def steps_per_epoch(self) -> int | None:
        """None if unknown; `step` then returns None at the end of an epoch."""
        return None

    def step(self, index: int) -> Mapping[str, Number] | None:
        """Do step `index`, counted from 0 over all epochs; returns measurements."""

    def finish_epoch(self, epoch: Epoch) -> Mapping[str, Any]:
        """Further fields of the record of an epoch; the time this takes is not counted."""
        return {}

    def wants_stop(self, record: Mapping[str, Any] | None = None) -> bool:
        """Whether to end after the last step, or, given its record, after an epoch."""
        return False

    def status(self, epoch: Epoch) -> Mapping[str, float]:
        """Numbers to show beside the newest measurements."""
        return {}

    def generators(self) -> list[torch.Generator]:
        """The job's own generators, whose states are saved."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """The state after the last complete step, without RNG states."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from such a state."""


def run_job(
    job: Job,
    *,
    epochs: int,
    checkpoint: Checkpoint | None = None,
    progress: Progress = no_progress,
    unit: str = "epoch",
) -> list[dict[str, Any]]:
    """Run the rest of the epochs of a job, or until it wants to stop; returns the records of all whole epochs.

    In several processes all run the same job, and rank 0 reads and writes the checkpoint.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came; the step was completed, and the state saved.
        NoFiniteLoss: All losses of an epoch were NaN or infinite, or all of those that decide between candidates.
    """
    loop = _Loop(job, epochs, checkpoint, unit)
    with delay_interrupts() as interrupted, ExitStack() as until_end:
        if checkpoint is not None:
            loop.start(checkpoint, until_end)
            loop.report_start(progress)
        while len(loop.history) < epochs:
            try:
                is_over = False
                while not is_over and loop.step(progress):
                    # A Ctrl-C does not reach all processes in the same step.
                    flags = [interrupted(), job.wants_stop()]
                    is_interrupted, is_over = _distributed.any_rank(flags, job.device)
                    if is_interrupted:
                        loop.save()
                        raise KeyboardInterrupt(loop.how_to_continue())
                    loop.save_if_due()
                if not is_over:
                    record = loop.finish_epoch(progress)
                    (is_over,) = _distributed.any_rank([job.wants_stop(record)], job.device)
            except BaseException as error:
                if isinstance(error, Exception) or not interrupted():  # a second Ctrl-C does not wait
                    loop.save_after(error)
                raise
            loop.save()
            if is_over:
                break
    return loop.history


class _Loop:
    """The position of a job in its epochs, and the records so far."""

    def __init__(self, job: Job, epochs: int, checkpoint: Checkpoint | None, unit: str) -> None:
        self._job, self._epochs, self._checkpoint, self._unit = job, epochs, checkpoint, unit
        self.history: list[dict[str, Any]] = []
        self._epoch = Epoch()
        self._index = 0  # of the next step
        self._steps_per_epoch = job.steps_per_epoch or 0  # if unknown, of the epoch before
        self._is_in_step = False  # so that the state of the job is not one to continue from
        self._timed = self._shown = time.monotonic()
        self._due = self._timed + SAVE_INTERVAL  # when to save again
        self._saved, self._saved_position = 0, ""  # the index when the state was saved, and in words

    def start(self, checkpoint: Checkpoint, until_end: ExitStack) -> None:
        """Lock and load the checkpoint on rank 0; all processes continue from its state, or raise its error."""

        def lock_and_load() -> dict[str, Any] | None:
            checkpoint.lock()
            until_end.callback(checkpoint.release)
            return checkpoint.load()

        loaded = _distributed.call_on_rank0(lock_and_load)
        if loaded is not None:
            with checkpoint.explain_errors():
                self.load_state_dict(loaded)
        if len(self.history) < self._epochs:  # a finished job is read where nothing can be written
            _distributed.call_on_rank0(lambda: check_writable(checkpoint.path))
        if checkpoint.records is not None and _distributed.is_rank0():
            checkpoint.records.restore(self.history)

    def report_start(self, progress: Progress) -> None:
        """Say where a job continues; nothing of one that begins or is finished."""
        if self._index and len(self.history) < self._epochs:
            progress(self._fraction(), f"{CONTINUES} {self._position()}", line=True)

    def step(self, progress: Progress) -> bool:
        """Do a step; False at the end of the epoch."""
        if self._epoch.steps == self._job.steps_per_epoch:  # resumed before it was finished
            return False
        self._is_in_step = True
        measured = self._job.step(self._index)
        if measured is None:  # it asked for a batch in vain: in the step until the epoch is finished
            return False
        self._epoch.add(measured)
        self._index += 1
        self._is_in_step = False
        is_last = self._epoch.steps == self._job.steps_per_epoch
        if is_last:
            self._epoch.to_floats()  # waits for the device, so that its time counts
        # Also the time since the last step: to show its numbers meant to wait for the device.
        now = time.monotonic()
        self._epoch.seconds, self._timed = self._epoch.seconds + now - self._timed, now
        if not is_last and now - self._shown > STATUS_INTERVAL:
            self._shown = now
            progress(self._fraction(), self._status())
        return True

    def _fraction(self) -> float:
        within = min(self._epoch.steps / self._steps_per_epoch, 1.0) if self._steps_per_epoch else 0.0
        return (len(self.history) + within) / self._epochs

    def _status(self) -> str:
        epoch, steps = self._epoch, self._job.steps_per_epoch
        newest = {name: float(values[-1]) for name, values in epoch.measured.items()}
        where = f"{self._unit} {epoch.number}/{self._epochs} step {epoch.steps}{f'/{steps}' if steps else ''}"
        return f"{where}, {format_record({**newest, **self._job.status(epoch)})}"

    def finish_epoch(self, progress: Progress) -> dict[str, Any]:
        """Record the epoch; returns the record."""
        epoch = self._epoch
        means = epoch.means()
        self._check_finite(means)
        fields = self._job.finish_epoch(epoch)
        rest = {name: mean for name, mean in means.items() if name not in fields}
        record = {self._unit: epoch.number, **rest, **fields, "seconds": epoch.seconds}
        if self._checkpoint is not None and self._checkpoint.records is not None and _distributed.is_rank0():
            self._checkpoint.records.append(record)
        self.history.append(record)
        self._steps_per_epoch = max(self._steps_per_epoch, epoch.steps)
        self._epoch, self._is_in_step = Epoch(epoch.number + 1), False
        progress(self._fraction(), format_record(record), line=True)
        return record

    def _check_finite(self, means: Mapping[str, float | None]) -> None:
        """Raise NoFiniteLoss if the running epoch has none, or no finite score."""
        epoch = self._epoch
        if means.get("score", 0.0) is None:
            raise NoFiniteLoss(
                f"all scores of {self._unit} {epoch.number} were NaN or infinite; check the judge, or lower the "
                "learning rate, if the weights diverge"
            )
        losses = [means[name] for name in ("train_loss", "valid_loss") if name in means]  # not a user's metrics
        if losses and losses[-1] is None:  # that to train on is finite in a step after which the weights diverge
            which = "losses" if losses[0] is None else "validation losses"
            error = NoFiniteLoss(
                f"all {which} of {self._unit} {epoch.number} were NaN or infinite; "
                "lower the learning rate, clip the gradient, or look for a division by zero or NaN in the data"
            )
            if self._checkpoint is not None and self.history:
                where = f"{self._unit} {len(self.history)}, before these losses"
                error.add_note(f"{self._checkpoint.path} is as it was after {where}")
            raise error

    def save(self) -> None:
        start = time.monotonic()
        if self._checkpoint is not None and _distributed.is_rank0():
            self._checkpoint.save(self.state_dict())
        self._timed, self._saved, self._saved_position = time.monotonic(), self._index, self._position()
        self._due = self._timed + max(SAVE_INTERVAL, (self._timed - start) / MAX_SAVE_SHARE)

    def save_if_due(self) -> None:
        """Save between two steps of an epoch with finite losses, if the last time was minutes ago."""
        if self._checkpoint is None or time.monotonic() < self._due or not _distributed.is_rank0():
            return
        means = self._epoch.means()  # waits for the device, so that its time counts
        now = time.monotonic()
        self._epoch.seconds, self._timed = self._epoch.seconds + now - self._timed, now
        self._due = now + SAVE_INTERVAL
        with suppress(NoFiniteLoss):
            self._check_finite(means)
            self.save()

    def save_after(self, error: BaseException) -> None:
        """Save the state after an error between steps, if it is a new one with finite losses, and say so in a note.

        After an error in a step the last save stays, and the note says where it continues.
        """
        old = 0 if self._is_in_step else self._saved
        if self._checkpoint is None or self._index == old or isinstance(error, NoFiniteLoss):
            return
        where = self.how_to_continue()
        try:
            if not self._is_in_step:
                self.save()
        except Exception as another:  # such as a full disk; the first error is the one to show
            where = f"the state could not be saved ({short_reason(another)})"
        if _distributed.is_rank0():
            error.add_note(where)

    def how_to_continue(self) -> str:
        where = f"stopped {self._position()}"
        if self._checkpoint is None:
            return f"{where}; nothing was saved, since no checkpoint was given"
        if self._is_in_step and self._index != self._saved:
            start = (
                f"continues {self._saved_position}, saved in {self._checkpoint.path}" if self._saved else "starts over"
            )
            return f"{where}, in a step that failed: the same call {start}"
        return f"{where}; saved in {self._checkpoint.path}: the same call continues from there"

    def _position(self) -> str:
        epoch = self._epoch
        return f"in {self._unit} {min(epoch.number, self._epochs)} of {self._epochs} after step {epoch.steps}"

    def state_dict(self) -> dict[str, Any]:
        """The state after the last step."""
        return {
            "history": self.history,
            "index": self._index,
            "steps": self._epoch.steps,
            "measured": self._epoch.to_floats(),
            "seconds": self._epoch.seconds,
            "rng": rng_states(self._job),
            "job": self._job.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["history"]) > self._epochs:
            raise ValueError(f"it has {len(state['history'])} {self._unit}s, more than the {self._epochs} asked for")
        if fault := mismatch(state["history"], list[dict[str, Any]]):
            raise ValueError(f"history {fault}")
        if [record[self._unit] for record in state["history"]] != list(range(1, len(state["history"]) + 1)):
            raise ValueError(f"the {self._unit}s of its history are not consecutive")
        index, steps = (check_int(state[name], name, min=0) for name in ("index", "steps"))
        per_epoch = self._job.steps_per_epoch
        if per_epoch is not None and (index != len(state["history"]) * per_epoch + steps or steps > per_epoch):
            raise ValueError(f"step {index} is not step {steps} after {len(state['history'])} {self._unit}s")
        self._job.load_state_dict(state["job"])
        self.history, self._index = state["history"], index
        measured = {name: list(map(float, values)) for name, values in state["measured"].items()}
        self._epoch = Epoch(len(self.history) + 1, steps, measured, float(state["seconds"]))
        self._saved, self._saved_position = self._index, self._position()
        set_rng_states(self._job, state["rng"])


# RNG states of the process and of a job.


def rng_states(job: Job) -> dict[str, Any]:
    """The states of torch's, NumPy's and Python's global generators, and of the job's own."""
    numpys: Any = np.random.get_state()  # noqa: NPY002 - data sets draw from it
    numpy = [numpys[0], numpys[1].tolist(), *numpys[2:]]
    generators = [generator.get_state() for generator in job.generators()]
    state = {"torch": torch.get_rng_state(), "generators": generators, "python": random.getstate(), "numpy": numpy}
    return {**state, "cuda": torch.cuda.get_rng_state(job.device)} if job.device.type == "cuda" else state


def set_rng_states(job: Job, state: Mapping[str, Any]) -> None:
    """Restore what `rng_states` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    if "cuda" in state and job.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], job.device)
    for generator, saved in zip(job.generators(), state["generators"], strict=True):
        generator.set_state(saved)


def format_record(record: Mapping[str, Any]) -> str:
    """A record as one line.

    >>> format_record({"epoch": 3, "train_loss": 1.23456, "test_accuracy": None, "seconds": 61.2})
    'epoch 3, train loss 1.235, seconds 61.2'
    """
    shown = {name.replace("_", " "): value for name, value in record.items() if isinstance(value, (int, float))}
    return ", ".join(f"{name} {value:.4g}" if value == value else f"{name} nan" for name, value in shown.items())
