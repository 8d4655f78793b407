"""The identity of a search, so that only the same search continues from its checkpoint."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from asng._asktell import Optimizer
from asng.nas._measures import ForwardMeasure
from asng.nas.limits import Limit

CHANGED_BY_SEARCH = {"params", "lr", "initial_lr"}  # by the search and its schedule
CHANGED_BY_CYCLES = {"momentum", "betas"}  # by a schedule that cycles them, which leaves max_momentum as its mark
IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}  # may differ from machine to machine


def describe_search(
    arch_optimizer: Optimizer,
    weight_optimizer: torch.optim.Optimizer,
    lr_scheduler: LRScheduler,
    train_loader: Iterable[Any],
    valid_loader: Iterable[Any],
    *,
    epochs: int | None,
    limits: Sequence[Limit],
    max_grad_norm: float | None,
    amp_dtype: torch.dtype | None,
    mask_inactive: bool,
    seed: int,
) -> dict[str, Any]:
    """The identity of a `nas.search`, as JSON-safe values; `epochs`: of the default lr_scheduler, else None."""
    return {
        "seed": int(seed),
        "epochs of the default lr_scheduler": epochs,
        "lr_scheduler": describe_lr_scheduler(lr_scheduler)
        if epochs is None
        else {"class": type(lr_scheduler).__name__},
        "arch_optimizer": {
            **arch_optimizer.state_dict()["settings"],
            "population_size": arch_optimizer._population_size,
            **_to_plain(arch_optimizer._origin),
        },
        "weight_optimizer": describe_weight_optimizer(weight_optimizer),
        "limits": [f"{_name_measure(limit)} <= {float(limit.at_most)}" for limit in limits],
        "max_grad_norm": None if max_grad_norm is None else float(max_grad_norm),
        "amp_dtype": None if amp_dtype is None else str(amp_dtype),
        "mask_inactive": bool(mask_inactive),
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
    settings = {name: _to_plain(value) for name, value in vars(lr_scheduler).items() if name in names}
    return {"class": type(lr_scheduler).__name__, **settings}


def describe_batches(batches: Iterable[Any]) -> dict[str, Any]:
    """Classes and lengths of data, without reading them; the number of workers is not compared."""
    dataset, sampler = getattr(batches, "dataset", None), getattr(batches, "sampler", None)
    # Of a loader the sampler's: a loader that was asked for its own may complain later that a stream is longer.
    counted = next(c for c in (getattr(batches, "batch_sampler", None), sampler, batches) if c is not None)
    return {
        "class": type(batches).__name__,
        "batches": length_of(counted),
        "batch_size": _to_plain(getattr(batches, "batch_size", None)),
        "drop_last": _to_plain(getattr(batches, "drop_last", None)),
        "sampler": None if sampler is None else type(sampler).__name__,
        "dataset": None if dataset is None else type(dataset).__name__,
        "examples": None if dataset is None else length_of(dataset),
    }


def length_of(data: Any) -> int | None:
    """The number of batches or examples, or None if unknown."""
    try:
        return len(data)
    except Exception:  # streams have none, and each says so in its own way
        return None


def _name_measure(limit: Limit) -> str:
    """The name of a measure; those that run the network are of other inputs, too."""
    return repr(limit.measure) if isinstance(limit.measure, ForwardMeasure) else limit.name


def _to_plain(value: Any) -> Any:
    """A value that loads with `weights_only=True`; of what has no such form, its name or class."""
    if isinstance(value, LRScheduler):
        return describe_lr_scheduler(value)
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_to_plain(part) for part in value]
        return _to_plain(dict(enumerate(parts))) if any(isinstance(part, dict) for part in parts) else parts
    plain = value is None or isinstance(value, (bool, int, float, str))
    return value if plain else getattr(value, "__name__", type(value).__name__)
