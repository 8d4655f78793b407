"""The device of a model, and tensors moved to it."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn


def find_device(model: nn.Module) -> torch.device:
    """The device of its first tensor; the CPU if it has none."""
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def to_device(value: Any, device: torch.device) -> Any:
    """Move tensors in tuples, lists and dicts to a device."""
    match value:
        case torch.Tensor():
            return value.to(device)
        case tuple() | list():
            items = [to_device(item, device) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        case Mapping():
            return {key: to_device(item, device) for key, item in value.items()}
        case _:
            return value
