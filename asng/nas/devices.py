"""Where a model is, and what it is given there."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """That of its first tensor; the CPU if it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors in tuples, lists and dicts on a device."""
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
