"""The training loop of a one-shot search: epochs, lr_scheduler, checkpoints, result.

For another loop, write one around `OneShot`.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data.distributed import DistributedSampler

from asng._asktell import Optimizer
from asng._checks import check_int
from asng._files import Lock, differences
from asng.nas import _checkpoints, _distributed
from asng.nas._identity import describe_search
from asng.nas._outcome import LossFn
from asng.nas.limits import Limit
from asng.nas.oneshot import Batch, OneShot, Step
from asng.nas.position import NoFiniteLoss, OnStep, SearchLoop
from asng.nas.result import SearchResult, result
from asng.nas.supernet import space_of
from asng.optimizer import ASNG
from asng.space import Categorical

SECONDS_PER_LINE = 10.0  # of progress, where rich is not installed


def search(
    model: nn.Module,
    train_loader: Iterable[Batch],
    valid_loader: Iterable[Batch],
    loss_fn: LossFn,
    *,
    epochs: int,
    arch_optimizer: Optimizer | None = None,
    weight_optimizer: torch.optim.Optimizer | None = None,
    lr_scheduler: LRScheduler | None = None,
    max_grad_norm: float | None = 5.0,
    limits: Sequence[Limit] = (),
    amp_dtype: torch.dtype | None = None,
    mask_inactive: bool = False,
    capture: bool = False,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> SearchResult:
    """Search the architecture of a model with decisions while training it; the model is left selected as found.

    Every epoch is one pass over `train_loader` (a list, a DataLoader). `valid_loader` goes on where the epoch before
    stopped and starts over at its end, so that all of its batches are used alike. By default the weights
    follow SGD from 0.025 to 0 on a cosine, with momentum 0.9 and decay 3e-4, as in the paper; that suits
    images, but is slow for small tabular problems, where
    `weight_optimizer=torch.optim.Adam(model.parameters(), lr=0.005)` is a better start. The lr_scheduler is stepped
    after every epoch.

    `capture` runs each step as one CUDA graph, several times as fast where the host's kernel launches are what takes
    the time; see `OneShot`.

    With a `checkpoint` the state is saved after every epoch and at Ctrl-C or SIGTERM, and the same call
    continues from there; on the CPU it ends with the same bits as without a pause. For that the batches may
    depend on torch's, NumPy's and Python's global random numbers and on a loader's own generator, and
    on nothing else that changes, such as workers that persist. The order of `valid_loader` may depend on these
    only as they are when a pass over it begins, as in DataLoaders, since a pass is resumed without `train_loader`.

    A second process with the same checkpoint is refused while the first one runs. So is the checkpoint of
    another search: of a model with other weights (names and shapes), another arch_optimizer (method, settings,
    population_size, seed) or weight_optimizer (class, hyper-parameters), lr_scheduler (class, numbers) or epochs
    of the default one, limits, max_grad_norm, amp_dtype, mask_inactive, seed, or data (class, length and batch size
    of `train_loader` and `valid_loader`, of a DataLoader also the class of its sampler and the class and length of
    its data set).
    The loss, the layers without weights and what the data hold are not compared.

    An error in a step or in loading is raised after the state has been saved as it was after the last
    complete step; a note on it says where. The same call repeats the step that failed, with the same
    batches and candidates: bit for bit where it failed in loading or training the weights (running
    statistics aside), and with weights that have moved already where it failed in judging. NumPy's
    and Python's random numbers are not taken back.

    `seed` decides the architectures drawn and the order of the batches: while batches are loaded,
    torch's generator is one of their own. In several processes all see the batches of the first.
    """
    epochs = check_int(epochs, "epochs", min=1)
    for name, batches in (("train_loader", train_loader), ("valid_loader", valid_loader)):
        _check_batches(name, batches, epochs)
    if lr_scheduler is not None and (weight_optimizer is None or lr_scheduler.optimizer is not weight_optimizer):
        raise ValueError("lr_scheduler belongs to another optimizer; pass the one it was made with as weight_optimizer")
    streams = np.random.SeedSequence(check_int(seed, "seed", min=0)).spawn(2)
    if arch_optimizer is None:
        space = space_of(model)
        # Without decisions OneShot complains.
        arch_optimizer = ASNG(space, seed=streams[0]) if space else ASNG({"none": Categorical([0])})
    if weight_optimizer is None:
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    options: dict[str, Any] = {
        "max_grad_norm": max_grad_norm,
        "limits": limits,
        "amp_dtype": amp_dtype,
        "mask_inactive": mask_inactive,
    }
    oneshot = OneShot(model, arch_optimizer, weight_optimizer, loss_fn, capture=capture, **options)
    scheduler = CosineAnnealingLR(weight_optimizer, epochs) if lr_scheduler is None else lr_scheduler
    loop = SearchLoop(oneshot, scheduler, train_loader, valid_loader, int(streams[1].generate_state(1)[0]))
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.is_dir():
        raise ValueError(f"the checkpoint {path} is a folder; give the path of a file, such as {path / 'search.pt'}")
    length = epochs if lr_scheduler is None else None  # a given lr_scheduler may be continued for more epochs
    identity: dict[str, Any] = {}
    if path is not None:
        identity = describe_search(
            arch_optimizer, weight_optimizer, scheduler, train_loader, valid_loader, seed=seed, epochs=length, **options
        )
    with (
        closing(loop),
        _checkpoints.delay_interrupts() as interrupted,
        _resume(loop, path, identity) as save,
        _bar(progress and _distributed.is_rank0(), epochs) as show,
    ):
        saved = loop.progress
        while loop.epoch < epochs:
            try:
                finished = loop.run_epoch(show, interrupted)
            except NoFiniteLoss as error:  # the state is not worth saving than that after the epoch before
                if path is not None and loop.epoch:
                    error.add_note(f"{path} is as it was after epoch {loop.epoch}, before these losses")
                raise
            except Exception as error:
                if path is not None and loop.progress != saved:
                    _save_after(error, save, _how_to_continue(loop, epochs, path))
                raise
            save()
            saved = loop.progress
            if not finished:
                raise KeyboardInterrupt(_how_to_continue(loop, epochs, path))
    _distributed.broadcast_tensors(oneshot.model.buffers())  # every process ran other candidates
    outcome = result(oneshot, loop.history)
    oneshot.supernet.choose(outcome.values)
    return outcome


def _check_batches(name: str, batches: Iterable[Batch], epochs: int) -> None:
    if not isinstance(batches, Iterable):
        raise ValueError(f"{name} must give batches when it is iterated, such as a DataLoader, got {batches!r}")
    if isinstance(batches, Iterator) and epochs > 1:
        raise ValueError(
            f"{name} is an iterator ({type(batches).__name__}), which ends after one epoch of {epochs}; pass what it "
            "is made from: a list, a DataLoader or an object whose __iter__ starts over"
        )
    if isinstance(getattr(batches, "sampler", None), DistributedSampler):
        raise ValueError(f"{name} has a DistributedSampler, but all processes need the same batches; leave it out")


def _how_to_continue(loop: SearchLoop, epochs: int, path: Path | None) -> str:
    where = f"stopped in epoch {min(loop.epoch + 1, epochs)} of {epochs} after step {loop.steps}"
    if path is None:
        return f"{where}; nothing was saved, since no checkpoint was given"
    return f"{where}; saved in {path}: the same call continues from there"


def _save_after(error: Exception, save: Callable[[], None], where: str) -> None:
    """Save the state after an error, and say so in a note on the error."""
    try:
        save()
    except Exception as another:  # such as a full disk; the first error is the one to show
        where = f"the state could not be saved ({_checkpoints.short_reason(another)})"
    if _distributed.is_rank0():
        error.add_note(where)


@contextmanager
def _resume(loop: SearchLoop, path: Path | None, identity: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """Load the checkpoint if there is one, and yield a function that saves it.

    Rank 0 locks the checkpoint, compares its identity and broadcasts the state, or the error that all raise.
    """
    lock: Lock | None = None
    loaded: Any = None
    try:
        if path is not None and _distributed.is_rank0():
            path = path.resolve() if path.is_symlink() else path  # the link stays; its target is locked
            try:
                lock = _checkpoints.lock(path)
                loaded = _load(path, identity) if path.exists() else None
            except (OSError, ValueError) as error:
                loaded = error
        loaded = _distributed.broadcast_object(loaded)
        if isinstance(loaded, Exception):
            raise loaded
        if loaded is not None:
            with _name_checkpoint(path):
                loop.load_state_dict(loaded["run"])

        def save() -> None:
            if path is not None and lock is not None:
                lock.renew()
                _checkpoints.save(path, {"identity": identity, "run": loop.state_dict()})

        yield save
    finally:
        if lock is not None:
            lock.release()


def _load(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    loaded = _checkpoints.load(path)
    with _name_checkpoint(path):
        if another := differences(loaded["identity"], identity):
            raise ValueError(another)
    return loaded


@contextmanager
def _name_checkpoint(path: Path | None) -> Iterator[None]:
    """Turn any error in reading a foreign state into a ValueError that names the checkpoint and the cure."""
    try:
        yield
    except Exception as error:
        cure = "use another path, or delete it to start over"
        raise ValueError(f"{path} is of another search ({_checkpoints.short_reason(error)}); {cure}") from None


@contextmanager
def _bar(wanted: bool, epochs: int) -> Iterator[OnStep]:
    """A progress bar on a terminal's stderr, with the newest loss; lines of text without rich; silent elsewhere."""
    if not wanted:
        yield lambda epoch, step, record: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError:
        yield _lines(epochs)
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (console.is_terminal or console.is_jupyter)) as bar:
        task = bar.add_task("search", total=epochs)
        steps_per_epoch = 0

        def show(epoch: int, step: int, record: Step) -> None:
            nonlocal steps_per_epoch
            steps_per_epoch = max(steps_per_epoch, step)
            within = step / steps_per_epoch if epoch else 0.0  # the first epoch tells how long they are
            bar.update(task, completed=epoch + within, description=_status(epoch, epochs, step, record))

        yield show
        bar.update(task, completed=epochs)


def _lines(epochs: int) -> OnStep:
    """A line on a terminal's stderr at the first step, then at most one in ten seconds."""
    next_line = -math.inf

    def show(epoch: int, step: int, record: Step) -> None:
        nonlocal next_line
        if sys.stderr.isatty() and time.monotonic() >= next_line:
            sys.stderr.write(_status(epoch, epochs, step, record) + "\n")
            next_line = time.monotonic() + SECONDS_PER_LINE

    return show


def _status(epoch: int, epochs: int, step: int, record: Step) -> str:
    return f"epoch {epoch + 1}/{epochs} step {step} loss {record.valid_loss:.3g}"
