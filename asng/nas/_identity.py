"""The identity of a search, so that only the same search continues from its checkpoint."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from asng._asktell import Optimizer
from asng.nas._measures import ForwardMeasure
from asng.nas.limits import Limit

CHANGED_BY_SEARCH = {"params", "lr", "initial_lr"}  # by the search and its schedule
CHANGED_BY_CYCLES = {"momentum", "betas"}  # by a schedule that cycles them, which leaves max_momentum as its mark
IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}  # may differ from machine to machine


def describe_search(
    model: nn.Module,
    train_loader: Iterable[Any],
    valid_loader: Iterable[Any],
    arch_optimizer: Optimizer,
    **settings: Any,
) -> dict[str, Any]:
    """The identity of a `nas.search`, as values that load with `weights_only=True`."""
    arch_settings = {**arch_optimizer.state_dict()["settings"], "population_size": arch_optimizer._population_size}
    return {
        **{name: _to_plain(value) for name, value in settings.items()},
        "arch_optimizer": {**arch_settings, **_to_plain(arch_optimizer._origin)},
        "frozen": {name: True for name, parameter in model.named_parameters() if not parameter.requires_grad},
        "train_loader": describe_batches(train_loader),
        "valid_loader": describe_batches(valid_loader),
    }


def describe_weight_optimizer(weight_optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Class and hyper-parameters as they were before the first step, also of an optimizer that is used again."""
    groups = {str(index): _hyper_parameters(group) for index, group in enumerate(weight_optimizer.param_groups)}
    return {"class": type(weight_optimizer).__name__, **groups}


def _hyper_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    ignored = CHANGED_BY_SEARCH | IMPLEMENTATION | (CHANGED_BY_CYCLES if "max_momentum" in group else set())
    settings = {"lr": group.get("initial_lr", group.get("lr")), **{k: v for k, v in group.items() if k not in ignored}}
    # Other versions of torch have other options, which are off by default.
    return {name: _to_plain(value) for name, value in settings.items() if value is not None and value is not False}


def describe_lr_scheduler(lr_scheduler: LRScheduler) -> dict[str, Any]:
    """Class and constructor arguments, as far as attributes of such names keep them; functions by their names."""
    arguments = inspect.signature(type(lr_scheduler).__init__).parameters.keys() - {"optimizer", "last_epoch"}
    names = {kept for name in arguments for kept in (name, f"{name}s", f"_{name}")}  # lr_lambdas, _schedulers
    names |= {"_schedule_phases", "total_size", "step_ratio"}  # of OneCycleLR and CyclicLR, made of several arguments
    settings = {name: _to_plain(value) for name, value in vars(lr_scheduler).items() if name in names}
    return {"class": type(lr_scheduler).__name__, **settings}


def describe_batches(batches: Iterable[Any]) -> dict[str, Any]:
    """Classes and lengths of data, without reading them; the number of workers is not compared."""
    dataset, sampler = getattr(batches, "dataset", None), getattr(batches, "sampler", None)
    return {
        "class": type(batches).__name__,
        "batches": length_of(batches),
        "batch_size": _to_plain(getattr(batches, "batch_size", None)),
        "drop_last": _to_plain(getattr(batches, "drop_last", None)),
        "sampler": None if sampler is None else type(sampler).__name__,
        "dataset": None if dataset is None else type(dataset).__name__,
        "examples": None if dataset is None else length_of(dataset),
    }


def length_of(data: Any) -> int | None:
    """The number of batches or examples, or None if unknown."""
    # Of a loader the sampler's: a loader that was asked for its own may complain later that a stream is longer.
    samplers = (getattr(data, name, None) for name in ("batch_sampler", "sampler"))
    try:
        return len(next((sampler for sampler in samplers if sampler is not None), data))
    except Exception:  # streams have none, and each says so in its own way
        return None


def _to_plain(value: Any) -> Any:
    """A value that loads with `weights_only=True`; of what has no such form, its name or class."""
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
            return describe_weight_optimizer(value)
        case LRScheduler():
            return describe_lr_scheduler(value)
        case Mapping():
            return {str(key): _to_plain(item) for key, item in value.items()}
        case tuple() | list():
            parts = [_to_plain(part) for part in value]
            return _to_plain(dict(enumerate(parts))) if any(isinstance(part, dict) for part in parts) else parts
        case _:
            return getattr(value, "__name__", type(value).__name__)
