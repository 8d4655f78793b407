"""Memory that a caller has for results: kernels write or add to it, so that nothing is copied or added later."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor

from asng.fused._dispatch import empty_rows


class Placement(AbstractContextManager["Placement"]):
    """Places results of the fused functions that run inside of a with statement.

    A first run without tensors tells by `find` which of the results is a certain tensor; the same functions run again
    put it where it belongs.

    Args:
        tensors: By the number of a result, in the order in which they are allocated: where to put it. It stays
            unused if it does not fit. None in a first run, which keeps all results.
        adds: Whether results are added to what the tensors hold.
    """

    _current: ClassVar["Placement | None"] = None

    def __init__(self, tensors: Mapping[int, Tensor] | None = None, *, adds: bool = False) -> None:
        self._tensors, self._adds, self._number = tensors, adds, 0
        self._results: list[Tensor] = []  # of a first run: kept, so that no other tensor gets their memory
        self._placed: set[int] = set()  # addresses

    def __enter__(self) -> "Placement":
        self._before, Placement._current = Placement._current, self
        return self

    def __exit__(self, *_: object) -> None:
        Placement._current = self._before

    def find(self, tensor: Tensor) -> int | None:
        """The number of the result that is a tensor, after a first run; None if there is none."""
        key = tensor.data_ptr(), layout(tensor)
        return next((n for n, result in enumerate(self._results) if (result.data_ptr(), layout(result)) == key), None)

    def leave_out_placed(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Tensors of which those that are placed results become None; raises RuntimeError if one is missing there."""
        rest = [None if t is not None and t.data_ptr() in self._placed else t for t in tensors]
        if sum(t is not None for t in tensors) - sum(t is not None for t in rest) < len(self._placed):
            raise RuntimeError("a result was placed that is none of these tensors")
        return rest

    def place(self, result: Tensor) -> tuple[Tensor, bool]:
        if self._tensors is None:
            self._results.append(result)
            return result, False
        target = self._tensors.get(self._number)
        self._number += 1
        if target is None or layout(target) != layout(result):
            return result, False
        self._placed.add(target.data_ptr())
        return target.data, self._adds  # not detach(): autograd refuses views of what others write to


class PlacingFunction(torch.autograd.Function):
    """A function that places results: no two are the same tensor, and it returns none that it was given."""

    @classmethod
    def is_behind(cls, node: Any) -> bool:
        """Whether a node of an autograd graph is of such a function."""
        return issubclass(getattr(type(node), "_forward_cls", object), cls)


def find_added_gradients(tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """The gradients of tensors whose users add to them, instead of returning their part; None if there are others.

    Such a tensor comes from a function that keeps its gradient as `added_gradient`, zero until the backward pass.
    """
    gradients = [getattr(tensor.grad_fn, "added_gradient", None) for tensor in tensors]
    found = [g for g, x in zip(gradients, tensors, strict=True) if g is not None and layout(g) == layout(x)]
    return found if len({g.data_ptr() for g in found}) == len(tensors) else None  # all, and none twice


def layout(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def place(result: Tensor) -> tuple[Tensor, bool]:
    """The memory for a result, by default that of the given empty tensor, and whether it is to be added there."""
    return (result, False) if Placement._current is None else Placement._current.place(result)


def place_rows(shape: tuple[int, ...], like: Tensor, row: int | None = None) -> tuple[Tensor, bool]:
    """`place` for what `empty_rows` gives."""
    return place(empty_rows(shape, like, row))


def place_like(tensor: Tensor) -> tuple[Tensor, bool]:
    """`place` for what `torch.empty_like` gives."""
    return place(torch.empty_like(tensor))
