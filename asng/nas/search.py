"""The loop of a one-shot search, written for the user: epochs, schedule, checkpoints, what was found.

In the background it is only `OneShot`; whoever wants another loop writes one around that.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data.distributed import DistributedSampler

from asng import checkpoints
from asng._files import Lock, differences
from asng.asktell import AskTell
from asng.checks import count
from asng.nas import processes
from asng.nas._identity import describe_search
from asng.nas.cost import Limit
from asng.nas.oneshot import Batch, Loss, OneShot, Step
from asng.nas.position import NoFiniteLoss, Position, Show
from asng.nas.result import Found, found
from asng.nas.selection import space_of
from asng.optimizer import ASNG
from asng.space import Categorical


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
    capture: bool = False,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> Found:
    """Search the architecture of a model with decisions while training it; the model is left selected as found.

    Every epoch is one pass over `train` (a list, a DataLoader). `valid` goes on where the epoch before
    stopped and starts over at its end, so that all of its batches are used alike. By default the weights
    follow SGD from 0.025 to 0 on a cosine, with momentum 0.9 and decay 3e-4, as in the paper; that suits
    images, but is slow for small tabular problems, where
    `weights=torch.optim.Adam(model.parameters(), lr=0.005)` is a better start. A schedule is stepped
    after every epoch.

    `capture` runs each step as one CUDA graph, several times as fast where the host's kernel launches are what takes
    the time; see `OneShot`.

    With a `checkpoint` the state is saved after every epoch and at Ctrl-C or SIGTERM, and the same call
    continues from there; on the CPU it ends with the same bits as without a pause. For that the batches may
    depend on torch's, NumPy's and Python's global random numbers and on a loader's own generator, and
    on nothing else that changes, such as workers that persist. The order of `valid` may depend on these
    only as they are when a pass over it begins, as in DataLoaders, since a pass is resumed without `train`.

    A second process with the same checkpoint is refused while the first one runs. So is the checkpoint of
    another search: of a model with other weights (names and shapes), another optimizer (method, settings,
    samples, seed) or weight optimizer (class, hyper-parameters), schedule (class, numbers) or epochs of the
    default one, limits, clip_norm, amp, leave_out, seed, or data (class, length and batch size of `train`
    and `valid`, of a DataLoader also the class of its sampler and the class and length of its data set).
    The loss, the layers without weights and what the data hold are not compared.

    An error in a step or in loading is raised after the state has been saved as it was after the last
    complete step; a note on it says where. The same call repeats the step that failed, with the same
    batches and candidates: bit for bit where it failed in loading or training the weights (running
    statistics aside), and with weights that have moved already where it failed in judging. NumPy's
    and Python's random numbers are not taken back.

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
    options: dict[str, Any] = {"clip_norm": clip_norm, "limits": limits, "amp": amp, "leave_out": leave_out}
    oneshot = OneShot(model, optimizer, weights, loss, capture=capture, **options)
    plan = CosineAnnealingLR(weights, epochs) if schedule is None else schedule
    position = Position(oneshot, plan, train, valid, int(streams[1].generate_state(1)[0]))
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.is_dir():
        raise ValueError(f"the checkpoint {path} is a folder; give the path of a file, such as {path / 'search.pt'}")
    length = epochs if schedule is None else None  # a given schedule may go on for longer than was planned
    identity: dict[str, Any] = {}
    if path is not None:
        identity = describe_search(optimizer, weights, plan, train, valid, seed=seed, epochs=length, **options)
    with (
        closing(position),
        checkpoints.interrupts() as interrupted,
        _resumed(position, path, identity) as save,
        _bar(progress and processes.is_first(), epochs) as show,
    ):
        saved = position.progress
        while position.epoch < epochs:
            try:
                finished = position.one_epoch(show, interrupted)
            except NoFiniteLoss as error:  # no later state is worth keeping than that after the epoch before
                if path is not None and position.epoch:
                    error.add_note(f"{path} is as it was after epoch {position.epoch}, before these losses")
                raise
            except Exception as error:
                if path is not None and position.progress != saved:
                    _save_after(error, save, _how_to_continue(position, epochs, path))
                raise
            save()
            saved = position.progress
            if not finished:
                raise KeyboardInterrupt(_how_to_continue(position, epochs, path))
    processes.take_first_ones(oneshot.model.buffers())  # every process ran other candidates
    result = found(oneshot, position.history)
    oneshot.decisions.choose(result.values)
    return result


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


def _how_to_continue(position: Position, epochs: int, path: Path | None) -> str:
    where = f"stopped in epoch {min(position.epoch + 1, epochs)} of {epochs} after step {position.steps}"
    if path is None:
        return f"{where}; nothing was saved, since no checkpoint was given"
    return f"{where}; saved in {path}: the same call continues from there"


def _save_after(error: Exception, save: Callable[[], None], where: str) -> None:
    """Save what an error would lose, and say so in a note on it."""
    try:
        save()
    except Exception as another:  # such as a full disk; the first error is the one to show
        where = f"the state could not be saved ({checkpoints.reason(another)})"
    if processes.is_first():
        error.add_note(where)


@contextmanager
def _resumed(position: Position, path: Path | None, identity: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """Continue from the checkpoint if there is one, all processes from the first one's; gives what saves it.

    The first process locks the checkpoint, and compares its identity; what it is refused is raised in all.
    """
    lock: Lock | None = None
    loaded: Any = None
    try:
        if path is not None and processes.is_first():
            path = path.resolve() if path.is_symlink() else path  # the link stays, and what it leads to is locked
            try:
                lock = checkpoints.lock(path)
                loaded = _load(path, identity) if path.exists() else None
            except (OSError, ValueError) as error:
                loaded = error
        loaded = processes.first_ones(loaded)
        if isinstance(loaded, Exception):
            raise loaded
        if loaded is not None:
            with _naming(path):
                position.load_state_dict(loaded["run"])

        def save() -> None:
            if path is not None and lock is not None:
                lock.renew()
                checkpoints.save(path, {"identity": identity, "run": position.state_dict()})

        yield save
    finally:
        if lock is not None:
            lock.release()


def _load(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    loaded = checkpoints.load(path)
    with _naming(path):
        if another := differences(loaded["identity"], identity):
            raise ValueError(another)
    return loaded


@contextmanager
def _naming(path: Path | None) -> Iterator[None]:
    """Errors of what reads a foreign state, whatever they are, become one that names the checkpoint and the cure."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{path} is of another search ({checkpoints.reason(error)}); use another path, or delete it to start anew"
        ) from None


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
            text = f"epoch {epoch + 1}/{epochs} step {step} loss {record.valid_loss:.3g}"
            bar.update(task, completed=epoch + within, description=text)

        yield show
        bar.update(task, completed=epochs)
