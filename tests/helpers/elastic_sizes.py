"""What the tests of elastic layers share: sizes that follow decisions, and when two outputs are equal."""

from typing import Any

import torch

from asng.nas import Value, Width
from asng.space import Integer


def width(name: str = "a", low: int = 1, high: int = 8) -> Width:
    return Width(name, low, high)


def odd(name: str = "k", high: int = 3) -> Any:
    return Value(name, Integer(1, high)) * 2 - 1


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-5)
