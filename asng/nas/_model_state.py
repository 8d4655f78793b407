"""The tensors that a search saves: the state dict of its model, and what that lacks."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas._checks import check_shapes


def save_tensors(model: nn.Module, other_weights: Sequence[Tensor]) -> dict[str, Any]:
    """The state of a model, and of weights outside of it, such as those of a loss."""
    state = model.state_dict()
    return {"model": state, "other_tensors": _other_tensors(model, other_weights, state)}


def _other_tensors(model: nn.Module, other_weights: Sequence[Tensor], state: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a state dict lacks: buffers that are not persistent, weights that it leaves out or that are elsewhere."""
    others = ((f"other_weights.{index}", weight) for index, weight in enumerate(other_weights))
    named = chain(model.named_parameters(), model.named_buffers(), others)
    return {name: tensor.detach() for name, tensor in named if name not in state}


def prepare_tensors(model: nn.Module, other_weights: Sequence[Tensor], saved: Mapping[str, Any]) -> Callable[[], None]:
    """Check what `save_tensors` returned, and return a function that loads it; raises where it does not fit."""
    state, buffers = model.state_dict(), dict(model.named_buffers())
    mine, there = _other_tensors(model, other_weights, state), saved["other_tensors"]
    weights = {name: tensor for name, tensor in mine.items() if name not in buffers}
    given = {name: there[name] for name in weights if name in there}
    check_shapes({**saved["model"], **given}, {**state, **weights})
    copies = {name: torch.empty_like(weight).copy_(given[name]) for name, weight in weights.items()}
    # Buffers may have another shape or dtype by now, as caches that grow, or not have been there at the start.
    others = {name: tensor for name, tensor in there.items() if name not in weights}
    made = {name: tensor.clone().to(buffers.get(name, tensor).device) for name, tensor in others.items()}
    owners = {name: model.get_submodule(name.rpartition(".")[0]) for name in made}  # raises for another model's
    takes_strict = "strict" in signature(model.load_state_dict).parameters  # a model's own one may not
    options = {"strict": False} if takes_strict else {}  # what is left out is loaded below, and the rest is checked

    def load() -> None:
        model.load_state_dict(saved["model"], **options)
        with torch.no_grad():
            for name, tensor in copies.items():
                mine[name].copy_(tensor)
        for name, tensor in made.items():
            _set_buffer(model, buffers.get(name), owners[name], name.rpartition(".")[2], tensor)

    return load


def _set_buffer(model: nn.Module, before: Tensor | None, owner: nn.Module, key: str, tensor: Tensor) -> None:
    """Set a buffer in all modules that share it; in its own memory, if it fits there."""
    if before is None:
        owner.register_buffer(key, tensor, persistent=False)
    elif before.shape == tensor.shape and before.dtype == tensor.dtype and before.is_contiguous():
        with torch.no_grad():
            before.copy_(tensor)
    else:
        for module in model.modules():
            module._buffers.update({name: tensor for name, buffer in module._buffers.items() if buffer is before})
