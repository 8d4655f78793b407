"""Resumable jobs: long computations in steps, with checkpoints.

A step depends on its number and on the state that the job saves; so a run that was interrupted, or killed,
continues from its checkpoint.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from asng._files import differences
from asng.nas import _checkpoints
from asng.nas.oneshot import finite_mean
from asng.runs import Run

CHECKPOINT = "checkpoint.pt"
MIN_SECONDS = 1e-9  # seconds; clocks may stand still for a while
STATUS_INTERVAL = 0.5  # seconds; looking at a number makes the host wait for the GPU

AmpDtype = Literal["off", "bfloat16", "float16"]
Number = float | Tensor


class Resumable(Protocol):
    """Anything that continues from a state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Job(Protocol):
    """A computation in steps."""

    device: torch.device

    def step(self, number: int) -> Mapping[str, Number]:
        """Do step `number`, counted from 0 over all epochs; returns what it measured."""

    def finish_epoch(self, epoch: int) -> Mapping[str, Any]:
        """What is measured after an epoch, counted from 1; its time is not counted."""

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on, besides their number and torch's random numbers."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from such a state."""


class Show(Protocol):
    """Called with the fraction done and a text; `line`: at the end of an epoch, a text to keep."""

    def __call__(self, fraction: float, text: str, *, line: bool = False) -> None: ...


def show_nothing(fraction: float, text: str, *, line: bool = False) -> None:
    """Shows nothing."""


@dataclass
class Epoch:
    """The measurements of the running epoch."""

    measured: dict[str, list[Number]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, values: Mapping[str, Number]) -> None:
        for name, value in values.items():
            self.measured.setdefault(name, []).append(value)

    def to_floats(self) -> dict[str, list[float]]:
        """All numbers, read from the device with one wait for each name."""
        numbers = {name: [v for v in values if not isinstance(v, Tensor)] for name, values in self.measured.items()}
        for name, values in self.measured.items():  # tensors only come after numbers that were saved
            on_device = [value.double() for value in values if isinstance(value, Tensor)]
            numbers[name] += torch.stack(on_device).tolist() if on_device else []
        self.measured = {name: list(values) for name, values in numbers.items()}
        return numbers

    def means(self) -> dict[str, float | None]:
        """Over the steps, of what is finite; None where nothing is."""
        means = {name: finite_mean(values) for name, values in self.to_floats().items()}
        return {name: None if math.isnan(mean) else mean for name, mean in means.items()}

    def not_finite(self) -> int:
        """Of the steps, how many have a loss that is NaN or infinite and is left out of the means."""
        losses = [values for name, values in self.to_floats().items() if name.endswith("loss")]
        return max((sum(not math.isfinite(value) for value in values) for values in losses), default=0)

    def newest(self) -> dict[str, float]:
        return {name: float(values[-1]) for name, values in self.measured.items()}


def run_job(
    job: Job,
    run: Run,
    *,
    epochs: int,
    steps: int,
    images: int,
    show: Show = show_nothing,
    status: Callable[[], Mapping[str, float]] = dict,
    unit: str = "epoch",
) -> list[dict[str, Any]]:
    """Run the rest of `epochs` times `steps` steps, of `images` each; returns the records of all epochs.

    After every epoch its record is a line of the run's metrics, and the state is saved. Ctrl-C saves
    too, in the middle of an epoch, and ends in KeyboardInterrupt. `status()` is
    shown beside the newest measurements, and called only then.
    """
    path = run.folder / CHECKPOINT
    number, epoch = 0, Epoch()
    if path.exists():
        number, epoch = _resume(path, job, run.config)
    run.truncate(number // steps)
    with _checkpoints.delay_interrupts() as interrupted:
        shown = since = time.monotonic()
        while number < epochs * steps:
            epoch.add(job.step(number))
            number += 1
            if number % steps == 0:
                epoch.to_floats()  # waits for the device, so that its time counts
            now = time.monotonic()
            # Also what passed since the last step: to show its numbers meant to wait for the device.
            epoch.seconds, since = epoch.seconds + now - since, now
            if number % steps == 0:
                speed = images * steps / max(epoch.seconds, MIN_SECONDS)
                record = {unit: number // steps, "step": number, **_record(job, epoch, unit, number // steps, speed)}
                run.append(record)
                show(number / (epochs * steps), format_record(record), line=True)
                epoch = Epoch()
                _save(run, job, number, epoch)
                since = time.monotonic()
            elif now - shown > STATUS_INTERVAL:
                shown = now
                where = f"{unit} {number // steps + 1}/{epochs} step {number % steps}/{steps}"
                speed = images * (number % steps) / max(epoch.seconds, MIN_SECONDS)
                text = format_record({**epoch.newest(), **status()})
                show(number / (epochs * steps), f"{where}, {text}, {speed:.0f} images/s")
            if interrupted():
                if number % steps:
                    _save(run, job, number, epoch)
                raise KeyboardInterrupt(f"stopped after step {number} of {epochs * steps}")
    return run.results()


def _record(job: Job, epoch: Epoch, unit: str, number: int, speed: float) -> dict[str, Any]:
    """What an epoch measured."""
    means = epoch.means()
    lost = [name for name, value in means.items() if name.endswith("loss") and value is None]
    if lost:
        raise ValueError(
            f"all values of {', '.join(lost)} in {unit} {number} were NaN or infinite; lower the learning rate"
        )
    skipped = epoch.not_finite()
    return {
        **means,
        **({"not_finite": skipped} if skipped else {}),
        **job.finish_epoch(number),
        "seconds": epoch.seconds,
        "images_per_second": speed,
    }


def format_record(record: Mapping[str, Any]) -> str:
    """A record as one line.

    >>> format_record({"epoch": 3, "train_loss": 1.23456, "test_accuracy": None, "seconds": 61.2})
    'epoch 3, train loss 1.235, seconds 61.2'
    """
    shown = {name.replace("_", " "): value for name, value in record.items() if isinstance(value, (int, float))}
    return ", ".join(f"{name} {value:.4g}" if value == value else f"{name} nan" for name, value in shown.items())


def _save(run: Run, job: Job, number: int, epoch: Epoch) -> None:
    state = {
        "identity": run.config,
        "number": number,
        "measured": epoch.to_floats(),
        "seconds": epoch.seconds,
        "rng": torch.get_rng_state(),
        "rng_cuda": torch.cuda.get_rng_state(job.device) if job.device.type == "cuda" else None,
        "job": job.state_dict(),
    }
    run.renew()
    _checkpoints.save(run.folder / CHECKPOINT, state)


def _resume(path: Path, job: Job, config: Mapping[str, Any]) -> tuple[int, Epoch]:
    state = load_checkpoint(path, job, config)
    torch.set_rng_state(state["rng"])
    if job.device.type == "cuda" and state["rng_cuda"] is not None:
        torch.cuda.set_rng_state(state["rng_cuda"], job.device)
    return state["number"], Epoch({name: list(v) for name, v in state["measured"].items()}, state["seconds"])


def load_checkpoint(path: Path, job: Resumable, config: Mapping[str, Any]) -> dict[str, Any]:
    """Load a checkpoint into `job` and return it; ValueError if its run has another `config`."""
    state = _checkpoints.load(path)
    try:
        if another := differences(state["identity"], config):
            raise ValueError(another)
        job.load_state_dict(state["job"])
        return state
    except torch.OutOfMemoryError:  # not the checkpoint's fault
        raise
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error) or repr(error)).splitlines()[0]
        cure = "replace it by this run's own, or delete it to start over"
        raise ValueError(f"{path} is of another run ({first}); {cure}") from None


# What jobs share.


def parse_device(name: str) -> torch.device:
    """A device by its name; "auto" is the GPU where there is one."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    if name.startswith("cuda") and not gpus:
        raise ValueError(f"device {name!r} was asked for, but torch {torch.__version__} sees no GPU; give cpu or auto")
    if name not in ("cpu", "cuda", *gpus):  # torch knows more, of which some, as meta, compute nothing
        raise ValueError(f"there is no device {name!r}; give {', '.join(['cpu', *gpus])} or auto")
    return torch.device(name)


def parse_amp_dtype(amp_dtype: AmpDtype) -> torch.dtype | None:
    """The type of mixed precision."""
    return {"off": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[amp_dtype]


def cosine_lr(start: float, done: float) -> float:
    """A learning rate that falls from `start` to 0 while `done` goes from 0 to 1.

    >>> cosine_lr(0.025, 0.0), cosine_lr(0.025, 0.5), cosine_lr(0.025, 1.0)
    (0.025, 0.0125, 0.0)
    """
    return start * (1 + math.cos(math.pi * done)) / 2


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def describe_machine(device: torch.device) -> str:
    """The device and the version of torch."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"
