"""Static modules of extracted networks for which torch has no equivalent."""

from collections.abc import Sequence
from typing import Any

from torch import nn


class Item(nn.Module):
    """One input among several, fixed."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, inputs: Sequence[Any]) -> Any:
        return inputs[self.index]

    def extra_repr(self) -> str:
        return str(self.index)


class Constant(nn.Module):
    """A value that used to be a decision, still read as `.value`."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def extra_repr(self) -> str:
        return repr(self.value)
