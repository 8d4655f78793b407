"""The training loop of a one-shot search: epochs, lr_scheduler, checkpoints, result.

For another loop, write one around `OneShot`.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data.distributed import DistributedSampler

from asng._asktell import Optimizer
from asng._checks import check_bool, check_int
from asng._files import as_checkpoint_path
from asng._progress import Progress, no_progress, progress_bar
from asng.nas import _distributed
from asng.nas._candidates import Judge, LossFn, Step
from asng.nas._checkpoints import Checkpoint
from asng.nas._checks import check_arguments, check_batches, check_decisions
from asng.nas._loader_job import LoaderJob, Schedules, length_of
from asng.nas._loop import CONTINUES, run_job
from asng.nas._measures import ForwardMeasure
from asng.nas._training import IMPLEMENTATION
from asng.nas.limits import Limit
from asng.nas.oneshot import Batch, OneShot
from asng.nas.result import SearchResult, build_result, warn_if_short
from asng.nas.supernet import space_of
from asng.optimizer import ASNG

CHANGED_BY_SEARCH = {"params", "lr", "initial_lr"}  # by the search and its schedule
CHANGED_BY_CYCLES = {"momentum", "betas"}  # by a schedule that cycles them, which leaves max_momentum as its mark


def search(
    model: nn.Module,
    train_loader: Iterable[Batch],
    valid_loader: Iterable[Batch],
    loss_fn: LossFn,
    *,
    epochs: int,
    arch_optimizer: Optimizer | None = None,
    weight_optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    lr_scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
    scheduler_interval: Literal["epoch", "step"] = "epoch",
    judge: Judge | None = None,
    max_grad_norm: float | None = 5.0,
    limits: Sequence[Limit] = (),
    amp_dtype: torch.dtype | None = None,
    mask_inactive: bool = False,
    sync_batchnorm: bool = False,
    capture: bool = False,
    checkpoint: str | Path | None = None,
    callback: Callable[[Step | dict[str, Any]], Any] | None = None,
    progress: bool = True,
    seed: int = 0,
) -> SearchResult:
    """Search the architecture of a model with decisions while training it.

    The model itself is trained, and the architecture found is selected in it on return. Under torchrun the candidates
    are sharded over the processes, as in `OneShot`, and all of them are given the batches of rank 0.

    Ctrl-C, SIGTERM and SIGHUP end it by KeyboardInterrupt after the running step; a second one does not wait for that.

    With a `checkpoint` the state is saved after every epoch, within longer ones every five minutes (less often where
    that would take more than 1% of the time), and at such an interrupt. The same call continues from there, also with
    more epochs; on the CPU it ends with the same bits as without a pause. For that the batches may
    depend on torch's, NumPy's and Python's global random numbers and on a loader's own generator, and
    on nothing else that changes, such as workers that persist. The order of `valid_loader` may depend on these
    only as they are when a pass over it begins, as in DataLoaders, since a pass is resumed without `train_loader`.

    A second process with the same checkpoint is refused while the first one runs. So is the checkpoint of
    another search: of a model with other weights (names, shapes, which ones are frozen), another arch_optimizer
    (method, settings, population_size, seed, initial) or weight_optimizer (class, hyperparameters), lr_scheduler
    (class, numbers, names of functions, interval) or fewer epochs of the default one, limits (numbers, names of
    measures, example inputs), judge (its name), max_grad_norm, amp_dtype, mask_inactive, sync_batchnorm, seed, or data
    (class, length, batch size and drop_last of `train_loader` and `valid_loader`, of a DataLoader also the class of its
    sampler and the class and length of its data set). The loss, the layers without weights, what functions compute and
    what the data hold are not compared.

    With more epochs the default schedule ends as it was planned and then starts over, from the initial learning rate
    to 0 in the epochs that are added, so that a search that was interrupted ends as one that was finished first. An
    lr_scheduler of your own goes on as it is.

    An error in a step or in loading leaves the last save as it is, since the step may have moved weights, running
    statistics or RNG states already; a note on the error says where the same call continues. An error in the callback
    is raised after a save.

    Args:
        model: Any module with decisions, on the device where it is trained; wrappers as in `OneShot`.
        train_loader: Batches that train the weights, as `loss_fn` takes them: a list, a DataLoader, or any iterable
            that starts over. An epoch is one pass over it.
        valid_loader: Batches that move the distribution, other data than those of `train_loader`. An epoch continues
            where the one before stopped and starts over at the end, so that all batches are used alike.
        loss_fn: (model, batch) -> scalar tensor, or (loss, metrics) as in `OneShot`. The history holds their means
            over candidates and steps. It moves batches to the device itself.
        epochs: The number of passes over `train_loader`, at least 1.
        arch_optimizer: `ASNG`, or a baseline, over `space_of(model)`; by default `ASNG` with its default settings.
            `ASNG(space_of(model), population_size=4)` trains four candidates per step and judges four, not two.
        weight_optimizer: Any torch optimizer of the model's parameters; by default SGD with learning rate 0.025,
            momentum 0.9 and weight decay 3e-4, as in the paper. That suits images, but is slow for small tabular
            problems, where `torch.optim.Adam(model.parameters(), lr=0.005)` is a better start. A list of several, such
            as Muon for matrices and AdamW for the rest, that share the parameters out.
        lr_scheduler: A scheduler of `weight_optimizer`, or a list of those of several (`ReduceLROnPlateau` gets the
            mean score); by default a cosine to 0.
        scheduler_interval: After what schedulers are stepped: "epoch", or "step", as OneCycleLR needs it.
        judge: (model, batch) -> the number by which candidates are ranked, the lower the better, such as the share of
            errors, or (number, metrics), as in `OneShot`; by default the loss. The history then has the mean `score` in
            place of `valid_loss`.
        max_grad_norm: Largest norm of the gradient of the weights; None for no limit.
        limits: Hard limits on costs: infeasible candidates are never run, and rank behind all feasible ones.
        amp_dtype: torch.bfloat16 or torch.float16 for mixed precision; float16 with scaled gradients.
        mask_inactive: Leave variables without effect on a candidate out of its gradient (not the paper's way).
        sync_batchnorm: Where several processes run one candidate, let its batch norms have the statistics of the whole
            batch, as in `OneShot`.
        capture: Run each step as one CUDA graph, several times as fast where the host's kernel launches take most of
            the time; where that cannot be, a warning says why, and steps run as usual.
        checkpoint: The path of a file to save to and to resume from; by default nothing is saved. The one before the
            newest is kept beside `name.pt` as `name.asng-previous.pt`.
        callback: Called with the `Step` after each step, and with the record of each epoch, a dict, after it is in
            the history and before it is saved; of several processes in all. It ends the search by returning True,
            which saves, too. After a step the epoch is left unfinished, without a record.
        progress: Show a progress bar on stderr, on rank 0, and where the search continues; where that is no terminal, a
            line after every epoch.
        seed: An integer of at least 0 for what the default `arch_optimizer` draws and for the order of the batches:
            while batches are loaded, torch's global generator has an RNG state of their own.

    Returns:
        The most likely feasible architecture, its extracted network, and the history. A warning says so if there were
        too few steps to decide, or if NaN or infinity cost some of them or spoiled the statistics of batch norms.

    Raises:
        ValueError: An argument does not fit, the model cannot be searched, the checkpoint is of another search, in use
            or damaged, or all validation losses or scores of an epoch were NaN or infinite.
        OSError: The checkpoint cannot be written; before the first step, except for a disk that becomes full.
        RuntimeError: Every candidate of five steps in a row ran out of memory.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came.

    >>> from asng import nas
    >>> x = torch.linspace(-1, 1, 32)[:, None]
    >>> model = nn.Sequential(nas.OneOf("act", {"relu": nn.ReLU(), "zero": nn.Threshold(9.0, 0.0)}), nn.Linear(1, 1))
    >>> found = nas.search(
    ...     model,
    ...     [x] * 8,
    ...     [x] * 8,
    ...     lambda net, x: (net(x) - x.relu()).square().mean(),
    ...     epochs=5,
    ...     weight_optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    ...     progress=False,
    ... )
    >>> found.values, len(found.history)
    ({'act': 'relu'}, 5)
    """
    epochs, progress = check_int(epochs, "epochs", min=1, max=2**31 - 1), check_bool(progress, "progress")
    for name, batches in (("train_loader", train_loader), ("valid_loader", valid_loader)):
        _check_loader(name, batches, epochs)
    if train_loader is valid_loader:
        warnings.warn(
            "train_loader and valid_loader are the same object, so architectures are judged on the data that their "
            "weights are trained on; give valid_loader other data, such as the other half",
            stacklevel=2,
        )
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function of a step or a record, got {callback!r}")
    if callback is not None:
        check_arguments(callback, "callback", "record")
    streams = np.random.SeedSequence(check_int(seed, "seed", min=0)).spawn(2)
    if arch_optimizer is None:
        arch_optimizer = ASNG(check_decisions(space_of(model)), seed=streams[0])
    if weight_optimizer is None:
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    options: dict[str, Any] = {
        "judge": judge,
        "max_grad_norm": max_grad_norm,
        "limits": limits,
        "amp_dtype": amp_dtype,
        "mask_inactive": mask_inactive,
        "sync_batchnorm": sync_batchnorm,
    }
    oneshot = OneShot(model, arch_optimizer, weight_optimizer, loss_fn, **options, capture=capture)
    schedules = Schedules(weight_optimizer, epochs, lr_scheduler, scheduler_interval, train_loader)
    data_seed = int(streams[1].generate_state(1)[0])
    job = LoaderJob(oneshot, schedules, train_loader, valid_loader, data_seed, callback)
    saved = None
    if checkpoint is not None:
        identity = describe_search(
            oneshot,
            train_loader,
            valid_loader,
            seed=seed,
            epochs=epochs if lr_scheduler is None else None,  # a given one may be continued for more epochs
            lr_scheduler=lr_scheduler,
            weight_optimizer=weight_optimizer,
            scheduler_interval=scheduler_interval,
            **options,
        )
        saved = Checkpoint(as_checkpoint_path(checkpoint, "search.pt"), identity, may_extend=True)
    with closing(job), _search_progress(progress and _distributed.is_rank0()) as show:
        history = run_job(job, epochs=epochs, checkpoint=saved, progress=show)
    _distributed.broadcast_tensors(oneshot.model.buffers())  # every process ran other candidates
    oneshot.release_capture()  # the result holds the search on
    outcome = build_result(oneshot, history)
    oneshot.supernet.choose(outcome.values)
    steps = length_of(train_loader)
    if steps is not None and len(history) == epochs and _distributed.is_rank0():  # it was not ended by the callback
        warn_if_short(outcome, epochs * steps)
    return outcome


def _check_loader(name: str, batches: Iterable[Batch], epochs: int) -> None:
    check_batches(batches, name, may_be_endless=name == "valid_loader")
    if isinstance(batches, Iterator) and epochs > 1:
        raise ValueError(
            f"{name} is an iterator ({type(batches).__name__}), which ends after one epoch of {epochs}; pass what it "
            "is made from: a list, a DataLoader or an object whose __iter__ starts over"
        )
    if isinstance(getattr(batches, "sampler", None), DistributedSampler):
        raise ValueError(f"{name} has a DistributedSampler, but all processes need the same batches; leave it out")


@contextmanager
def _search_progress(wanted: bool) -> Iterator[Progress]:
    """A bar, without lines of epochs; where there is no terminal, only lines."""
    if not wanted:
        yield no_progress
        return
    with progress_bar("search") as bar:

        def show(fraction: float, text: str = "", *, line: bool = False) -> None:
            bar(fraction, text, line=line and text.startswith(CONTINUES))

        yield _log_lines if bar is no_progress else show


def _log_lines(fraction: float, text: str = "", *, line: bool = False) -> None:
    if line:
        sys.stderr.write(f"search: {text}\n")


def describe_search(
    oneshot: OneShot, train_loader: Iterable[Any], valid_loader: Iterable[Any], **settings: Any
) -> dict[str, Any]:
    """The identity of a `nas.search`, as values that load with `weights_only=True`."""
    arch_optimizer, parameters = oneshot.arch_optimizer, oneshot.model.named_parameters()
    arch_settings = {**arch_optimizer.state_dict()["settings"], "population_size": arch_optimizer._population_size}
    return {
        **{name: _to_comparable(value) for name, value in settings.items()},
        "arch_optimizer": {**arch_settings, **_to_comparable(arch_optimizer._origin)},
        "frozen": {name: True for name, parameter in parameters if not parameter.requires_grad},
        "train_loader": describe_batches(train_loader),
        "valid_loader": describe_batches(valid_loader),
    }


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a group of parameters before the first step, also where its optimizer is used again."""
    ignored = CHANGED_BY_SEARCH | IMPLEMENTATION | (CHANGED_BY_CYCLES if "max_momentum" in group else set())
    settings = {"lr": group.get("initial_lr", group.get("lr")), **{k: v for k, v in group.items() if k not in ignored}}
    # Other versions of torch have other options, which are off by default.
    return {name: _to_comparable(value) for name, value in settings.items() if value is not None and value is not False}


def _scheduler_arguments(lr_scheduler: LRScheduler) -> dict[str, Any]:
    """Those of the constructor, as far as attributes of such names keep them; functions by their names."""
    arguments = inspect.signature(type(lr_scheduler).__init__).parameters.keys() - {"optimizer", "last_epoch"}
    names = {kept for name in arguments for kept in (name, f"{name}s", f"_{name}")}  # lr_lambdas, _schedulers
    names |= {"_schedule_phases", "total_size", "step_ratio"}  # of OneCycleLR and CyclicLR, made of several arguments
    return {name: _to_comparable(value) for name, value in vars(lr_scheduler).items() if name in names}


def describe_batches(batches: Iterable[Any]) -> dict[str, Any]:
    """Classes and lengths of data, without reading them; the number of workers is not compared."""
    dataset, sampler = getattr(batches, "dataset", None), getattr(batches, "sampler", None)
    return {
        "class": type(batches).__name__,
        "batches": length_of(batches),
        "batch_size": _to_comparable(getattr(batches, "batch_size", None)),
        "drop_last": _to_comparable(getattr(batches, "drop_last", None)),
        "sampler": None if sampler is None else type(sampler).__name__,
        "dataset": None if dataset is None else type(dataset).__name__,
        "examples": None if dataset is None else length_of(dataset),
    }


def _to_comparable(value: Any) -> Any:
    """A value that loads with `weights_only=True`; for objects without such a form, their name or class."""
    match value:
        case Tensor() | np.ndarray() | np.generic():
            return value.tolist()
        case None | bool() | int() | float() | str():
            return value
        case torch.dtype():
            return str(value)
        case np.random.SeedSequence():
            return f"{value.entropy} {value.spawn_key}"
        case Limit():
            name = value.measure if isinstance(value.measure, ForwardMeasure) else value.name
            below = "" if value.at_least is None else f"{float(value.at_least)} <= "
            return f"{below}{name}" + ("" if value.at_most is None else f" <= {float(value.at_most)}")
        case torch.optim.Optimizer():
            groups = {str(index): _hyperparameters(group) for index, group in enumerate(value.param_groups)}
            return {"class": type(value).__name__, **groups}
        case LRScheduler():
            return {"class": type(value).__name__, **_scheduler_arguments(value)}
        case Mapping():
            return {str(key): _to_comparable(item) for key, item in value.items()}
        case tuple() | list():
            parts = [_to_comparable(part) for part in value]
            return _to_comparable(dict(enumerate(parts))) if any(isinstance(part, dict) for part in parts) else parts
        case _:
            return getattr(value, "__name__", type(value).__name__)
