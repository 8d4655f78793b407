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

    The model itself is trained; on return the found architecture is selected in it. Under torchrun the candidates are
    sharded over the processes, as in `OneShot`, and all processes get the batches of rank 0.

    Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt after the running step; a second signal ends the step.

    With a `checkpoint` the state is saved after every epoch, every five minutes within longer epochs (less often if
    saving would take more than 1% of the time), and at such an interrupt. The same call continues from there, also with
    more epochs. On the CPU the result is bit-equal to that of an uninterrupted search, if the batches depend only on
    the global RNG states of torch, NumPy and Python and on a loader's own generator; persistent workers, for example,
    break this. The order of `valid_loader` may depend only on the RNG states at the start of a pass over it, as in
    DataLoaders.

    A second process with the same checkpoint is refused while the first one runs. The checkpoint of another search is
    also refused: another model (names and shapes of weights, frozen weights), arch_optimizer (method, settings,
    population_size, seed, initial), weight_optimizer (class, hyperparameters), lr_scheduler (class, numbers, names of
    functions, interval), fewer epochs of the default schedule, limits (numbers, names of measures, example inputs),
    judge (its name), max_grad_norm, amp_dtype, mask_inactive, sync_batchnorm, seed, or data (class, length, batch size
    and drop_last of `train_loader` and `valid_loader`; of a DataLoader also the class of its sampler and the class and
    length of its data set). The loss, layers without weights, the code of functions and the contents of the data are
    not compared.

    With more epochs the default schedule ends as planned and then starts again: over the added epochs it goes from the
    initial learning rate to 0. Interrupted and finished searches therefore continue equally. Your own lr_scheduler
    continues as it is.

    After an error in a step or in loading nothing is saved, because the step may have changed weights, running
    statistics or RNG states. A note on the error says where the same call continues. After an error in the callback the
    state is saved.

    Args:
        model: Any module with decisions, on its training device; wrappers as in `OneShot`.
        train_loader: Batches that train the weights, in the format of `loss_fn`: a list, a DataLoader, or any iterable
            that starts again when it is iterated. An epoch is one pass over it.
        valid_loader: Batches that score architectures, from other data than `train_loader`. An epoch continues where
            the previous one stopped and starts again at the end, so all batches are used equally often.
        loss_fn: (model, batch) -> scalar tensor, or (loss, metrics) as in `OneShot`. It moves batches to the device.
            The history has the means of losses and metrics over candidates and steps.
        epochs: The number of passes over `train_loader`, at least 1.
        arch_optimizer: `ASNG`, or a baseline, over `space_of(model)`; by default `ASNG` with its default settings.
            `ASNG(space_of(model), population_size=4)` trains four candidates per step and scores four, instead of two.
        weight_optimizer: Any torch optimizer of the model's parameters, or a list of several with disjoint parameters,
            such as Muon for matrices and AdamW for the rest. By default SGD with learning rate 0.025, momentum 0.9 and
            weight decay 3e-4, as in the paper. For small tabular problems that is slow; start with
            `torch.optim.Adam(model.parameters(), lr=0.005)`.
        lr_scheduler: A scheduler of `weight_optimizer`, or a list with those of several (`ReduceLROnPlateau` gets the
            mean score); by default a cosine schedule to 0.
        scheduler_interval: When schedulers are stepped: after each "epoch", or each "step", as OneCycleLR needs it.
        judge: (model, batch) -> the number that ranks candidates, lower is better, such as the error rate, or (number,
            metrics), as in `OneShot`; by default the loss. The history then has the mean `score` instead of
            `valid_loss`.
        max_grad_norm: Maximum norm of the gradient of the weights; None for no clipping.
        limits: Hard limits on costs: infeasible candidates are never run, and rank behind all feasible ones.
        amp_dtype: torch.bfloat16 or torch.float16 for mixed precision; float16 with scaled gradients.
        mask_inactive: Exclude variables without effect on a candidate from its update (an addition to the paper).
        sync_batchnorm: If several processes run one candidate, compute its batch-norm statistics over the whole batch,
            as in `OneShot`.
        capture: Run each step as one CUDA graph, which is several times as fast if kernel launches dominate. If a step
            cannot be captured, it runs as usual, after a warning with the reason.
        checkpoint: Path of a file to save to and resume from; by default nothing is saved. The previous version of
            `name.pt` is kept as `name.asng-previous.pt`.
        callback: Called, in all processes, with the `Step` after each step, and with the record of each epoch, a dict,
            before the state is saved. It stops the search, and saves, by returning True. After a step, the unfinished
            epoch then has no record.
        progress: On rank 0, show a progress bar on stderr if it is a terminal, otherwise a line after every epoch; and
            print where a checkpoint continues.
        seed: An integer of at least 0, for the draws of the default `arch_optimizer` and for the order of the batches:
            batches are loaded with a separate state of torch's global generator.

    Returns:
        The most likely feasible architecture, its extracted network, and the history. A warning says if there were too
        few steps to decide, or if NaN or infinity affected steps or batch-norm statistics.

    Raises:
        ValueError: An argument does not fit, the model cannot be searched, the checkpoint belongs to another search, is
            in use or damaged, or all validation losses or scores of an epoch were NaN or infinite.
        OSError: The checkpoint cannot be written. Raised before the first step, unless the disk becomes full.
        RuntimeError: Every candidate of five consecutive steps failed, by running out of memory or by `failures`.
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
