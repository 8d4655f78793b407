"""Checks of a model and its two optimizers before the first step."""

import inspect
from collections.abc import Sized
from typing import Any

import torch
from torch import nn

from asng.asktell import Optimizer
from asng.nas.selection import Supernet


def check_search(supernet: Supernet, arch_optimizer: Optimizer, weight_optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError for a model or optimizers that cannot be searched."""
    if not isinstance(arch_optimizer, Optimizer):
        raise ValueError(
            "arch_optimizer moves the architecture, such as ASNG(space_of(model)), got "
            f"{type(arch_optimizer).__name__}; pass the torch optimizer of the weights as weight_optimizer"
        )
    if not supernet.space:
        raise ValueError("the model has no decisions to search; put some in, such as asng.nas.OneOf")
    _check_space(supernet, arch_optimizer)
    _check_parameters(supernet.model, weight_optimizer)
    for module, path in supernet.paths.items():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ValueError(
                f"{path or 'the model'} has sparse gradients, whose norm torch cannot take; make it with sparse=False"
            )


def check_weight_optimizer(weight_optimizer: Any) -> None:
    """Raise ValueError unless this is one torch optimizer."""
    if not hasattr(weight_optimizer, "param_groups"):
        got = (
            f"a {type(weight_optimizer).__name__} of {len(weight_optimizer)}"
            if isinstance(weight_optimizer, Sized)
            else repr(weight_optimizer)
        )
        raise ValueError(
            f"weight_optimizer must be one torch optimizer, got {got}; give one optimizer several parameter groups, or "
            "write a torch.optim.Optimizer over all parameters whose step() calls the others'"
        )


def _check_space(supernet: Supernet, arch_optimizer: Optimizer) -> None:
    model_space, optimizer_space = supernet.space, arch_optimizer.space
    equal = {name for name in model_space if name in optimizer_space and model_space[name] == optimizer_space[name]}
    differing = sorted({*model_space, *optimizer_space} - equal)
    if differing or list(model_space) != list(optimizer_space):
        what = f"they differ in {', '.join(map(repr, differing[:5]))}" if differing else "by its order"
        raise ValueError(
            f"arch_optimizer searches another space than the model's ({what}); make it with space_of(model)"
        )


def _check_parameters(model: nn.Module, weight_optimizer: torch.optim.Optimizer) -> None:
    optimized = {id(parameter) for group in weight_optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in optimized]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"weight_optimizer does not hold the model's parameters {', '.join(missing[:3])}{more}; make it with "
            "model.parameters(), or call requires_grad_(False) on those that stay as they are"
        )
    try:
        # Of the class: schedulers wrap that of the object.
        inspect.signature(type(weight_optimizer).step).bind(weight_optimizer)
    except TypeError:
        raise ValueError(
            f"{type(weight_optimizer).__name__} asks for a closure to evaluate the loss again, but every step here has "
            "candidates of its own; use a torch optimizer that steps without one, such as SGD or Adam"
        ) from None
