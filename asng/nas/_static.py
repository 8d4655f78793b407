"""Static modules of extracted networks for which torch has no equivalent."""

from collections.abc import Sequence
from typing import Any

from torch import nn


class Chain(nn.Sequential):
    """The static form of a `Repeat`: an `nn.Sequential` that passes further arguments on to each of its modules.

    Args:
        modules: Modules, each of which takes the output of the previous one.

    >>> import torch
    >>> Chain(nn.Bilinear(2, 3, 2), nn.Bilinear(2, 3, 2))(torch.zeros(4, 2), torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the modules, each with the output of the previous one and with all further arguments."""
        for module in self:
            input = module(input, *args, **kwargs)
        return input


class Item(nn.Module):
    """The static form of a `Pick`: called with a sequence, it returns the item at a fixed position.

    Args:
        index: The position, from 0.

    Raises:
        ValueError: It is not such an integer.

    >>> Item(1)(["x", "y", "z"])
    'y'
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        # Without the package's own check: exports copy this class, and import nothing of it.
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise ValueError(f"index must be an integer of at least 0, got {index!r}")
        self.index = index

    def forward(self, inputs: Sequence[Any]) -> Any:
        """Return the chosen input."""
        return inputs[self.index]

    def extra_repr(self) -> str:
        return str(self.index)


class Constant(nn.Module):
    """The static form of a `Value` or a `Width`: a fixed value, still read as `.value` or `.index`.

    Args:
        value: The selected value.
        index: Its position among all values, from 0; None if they cannot be listed.

    >>> Constant(0.25).value
    0.25
    """

    def __init__(self, value: Any, index: int | None = None) -> None:
        super().__init__()
        self.value = value
        self.index = index

    def extra_repr(self) -> str:
        return repr(self.value)
