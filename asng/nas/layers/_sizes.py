"""Sizes of elastic layers: of the input, of all that may follow decisions, and the slices of tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from asng._checks import check_int
from asng.nas._decision import Decision, SizeLike
from asng.nas._size import MAX_SIZE, Size, to_size


class AnySize:
    """As many channels as the input has: for inputs whose size is itself searched.

    The module that holds such a layer gives the number in its own `build_static()`:
    `layer.build_static(in_channels=64)`.

    Args:
        max: The largest number of channels.

    Raises:
        ValueError: This is no positive integer.

    >>> import torch
    >>> from asng.nas import Linear
    >>> linear = Linear(AnySize(64), 8)
    >>> linear(torch.zeros(1, 20)).shape
    torch.Size([1, 8])
    >>> linear.build_static(in_channels=20)
    Linear(in_features=20, out_features=8, bias=True)
    """

    decisions: tuple[Decision, ...] = ()

    def __init__(self, max: int) -> None:
        self.max: int = check_int(max, "the largest number of channels", min=1, max=MAX_SIZE)
        self.last_seen: int = self.max  # channels of the last input

    def __call__(self) -> int:
        return self.last_seen

    def __repr__(self) -> str:
        return f"AnySize({self.max})"


InputSize = SizeLike | AnySize


def to_sizes(argument: Any, name: str, is_input: bool, is_single: bool = False) -> Any:
    """An argument as a size, or several as a tuple of sizes; that of an input may be `AnySize`."""
    if isinstance(argument, AnySize) and is_input:
        return AnySize(argument.max)
    if is_single and isinstance(argument, Sequence):
        raise ValueError(f"{name} is an integer or follows a decision, got {argument!r}")
    return map_sizes(lambda size: to_size(size, name), tuple(argument) if isinstance(argument, Sequence) else argument)


def map_sizes(function: Callable[[Any], Any], sizes: Any) -> Any:
    """Apply a function to a size, or to each of a tuple."""
    return tuple(map(function, sizes)) if isinstance(sizes, tuple) else function(sizes)


def check_fixed(elastic: Sequence[str], **settings: Any) -> None:
    """Raise ValueError for settings, single or in pairs, that are decisions."""
    for name, setting in settings.items():
        for part in setting if isinstance(setting, (tuple, list)) else (setting,):
            if isinstance(part, (Decision, Size)):
                cure = f"Choose among layers instead: OneOf(name, [one layer for each {name}])"
                if name == "padding":
                    cure = "Give the number for the largest kernel: it shrinks with the kernel"
                raise ValueError(f"{name} cannot be a decision, got {part!r}; only {', '.join(elastic)} can. {cure}")


def refuse_any_size(sizes: Mapping[str, Any]) -> None:
    """Raise ValueError for `AnySize`, and for several sizes, in layers whose size does not follow from one input."""
    for name, size in sizes.items():
        if isinstance(size, (AnySize, tuple)):
            raise ValueError(f"{name} is an integer or follows a decision, got {size}")


def first(tensor: Tensor | None, *sizes: int) -> Tensor | None:
    """A view of the first entries on each axis; None for a tensor that a layer does not have."""
    return None if tensor is None else tensor[tuple(map(slice, sizes))]


def first_of_groups(tensor: Tensor, all_groups: int, groups: int, channels: int) -> Tensor:
    """The first channels of each of the first groups, on the first axis; a copy, unless there is one group."""
    if all_groups == 1:
        return tensor[:channels]
    by_group: Tensor = tensor.unflatten(0, (all_groups, -1))  # type: ignore[no-untyped-call]
    return by_group[:groups, :channels].flatten(0, 1)
