"""The device of a model, and what batches hold."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn


def find_device(model: nn.Module) -> torch.device:
    """The device of its first tensor; the CPU if it has none."""
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to what tuples, lists and mappings hold, at any depth; a list of texts is given as a whole."""
    match value:
        case tuple() | list() if not all(isinstance(item, str) for item in value):
            items = [map_leaves(function, item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        case Mapping():
            return {key: map_leaves(function, item) for key, item in value.items()}
    return function(value)


def to_device(value: Any, device: torch.device) -> Any:
    """Move the tensors of a batch to a device."""
    return map_leaves(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, value)
