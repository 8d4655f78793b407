"""Searchable modules, decisions, and sizes that follow decisions."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from asng.space import Variable


class Searchable(nn.Module, ABC):
    """Base class of modules that say which of their children run, and what their static equivalent is.

    Decisions and elastic layers are such modules. Derive your own module from it if it holds decisions and does
    not simply run all its children. Other modules are extracted child by child; none of their methods is called.

    >>> from asng import Integer, nas
    >>> class Body(nas.Searchable):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.depth = nas.Value("depth", Integer(1, 3))
    ...         self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    ...     def forward(self, x, mask):
    ...         for block in self.blocks[: self.depth.value]:
    ...             x = block(x) * mask
    ...         return x
    ...     def active_modules(self):
    ...         return [self.depth, *self.blocks[: self.depth.value]]
    ...     def build_static(self):
    ...         static = Static()
    ...         static.blocks = self.blocks[: self.depth.value]
    ...         return static
    >>> class Static(nn.Module):
    ...     def forward(self, x, mask):
    ...         for block in self.blocks:
    ...             x = block(x) * mask
    ...         return x
    >>> len(nas.extract(Body(), {"depth": 2}).blocks)
    2
    """

    def active_modules(self) -> Iterable[nn.Module]:
        """List what has an effect under the selected values; the model must stay unchanged, as the first call shows.

        Returns:
            The children that run, and the decisions that are read; by default all children. Decisions that are
            attributes of this module count as read even if they are not returned.
        """
        return [child for child in self._modules.values() if child is not None]

    @abstractmethod
    def build_static(self) -> nn.Module:
        """Build the static equivalent of this module under the selected values; the model must stay unchanged.

        A change of it is undone and raises ValueError.

        Returns:
            A module that computes the same. It may hold modules of this one, also modules with decisions: they are
            replaced next.
        """


class _Arithmetic:
    """Products and sums of a decision or a size with integers, which are sizes."""

    def __mul__(self: Any, factor: int) -> "Size":
        if isinstance(factor, float):
            raise _no_fraction(f"{Size(self)} * {factor}")
        return Size(self, scale=self._constant(factor, "product"))

    def __add__(self: Any, shift: int) -> "Size":
        return Size(self, shift=self._constant(shift, "sum"))

    def __sub__(self: Any, shift: int) -> "Size":
        return Size(self, shift=-self._constant(shift, "difference"))

    def __floordiv__(self: Any, divisor: int) -> "Size":
        raise _no_fraction(f"{Size(self)} / {self._constant(divisor, 'quotient')}")

    def __mod__(self: Any, divisor: int) -> Any:  # as torch's convolutions compute
        size = Size(self)
        raise ValueError(f"{size} is no number that a layer of torch takes; use an elastic one, such as nas.Conv2d")

    __rmul__ = __mul__
    __radd__ = __add__
    __truediv__ = __floordiv__

    def _constant(self: Any, number: Any, what: str) -> int:
        if isinstance(number, (Decision, Size)):
            raise ValueError(
                f"a {what} of two decisions ({Size(self)} and {Size(number)}) is not supported as a size; make one "
                f"decision of it, such as Width(name, [8, 12, 16]) with the {what}s to choose from"
            )
        return require_int(number)


def _no_fraction(what: str) -> ValueError:
    return ValueError(
        f"a size is an integer multiple of a decision, not {what}; let the decision be the smaller size, and "
        "multiply it where the larger one is wanted"
    )


class Decision(_Arithmetic, Searchable):
    """Base class of decisions: a named variable inside a network, whose selected value is `value`.

    Arithmetic with integers gives a `Size` that follows the decision, such as `width * 2`.

    Args:
        name: Identifies the decision: equal names share one variable anywhere in the model.
        variable: What there is to choose from.

    Raises:
        ValueError: The name is empty or no string, or this is no variable.

    >>> from asng import nas
    >>> isinstance(nas.Width("units", 8, 32), nas.Decision)
    True
    """

    def __init__(self, name: str, variable: Variable) -> None:
        super().__init__()
        if not isinstance(name, str) or not name:
            raise ValueError(f"a decision needs a name, got {name!r}")
        if not isinstance(variable, Variable):
            raise ValueError(f"decision {name!r} needs a variable, such as asng.Integer(1, 3), got {variable!r}")
        self.name = name
        self.variable = variable
        self.selected: tuple[Any, ...] = ()  # the value, once there is one

    def choose(self, value: Any) -> None:
        """Select a value without checking it; `asng.nas.select` checks.

        Args:
            value: One of the variable's values.
        """
        attributes = self.__dict__  # past nn.Module's bookkeeping, which is slow
        before = attributes["selected"]
        # The second is the record of a search that watches which decisions are read.
        attributes["selected"] = (value,) if len(before) < 2 else (value, before[1])

    @property
    def value(self) -> Any:
        """The selected value.

        Raises:
            RuntimeError: No value is selected yet.
        """
        selected = self.selected
        if len(selected) != 1:
            if not selected:
                raise RuntimeError(
                    f"decision {self.name!r} has no value yet; call asng.nas.select(model, values) first, on a model "
                    "that holds it as an attribute or in an nn.ModuleList"
                )
            if not torch.compiler.is_compiling():
                selected[1].add(self.name)  # the search records which decisions are read
        return selected[0]

    @property
    def index(self) -> Any:
        """The position of the selected value among all values, from 0.

        An int; a tensor on the device, int32 of no axes, while a captured step leaves the value open.
        """
        selected: Any = self.selected
        if hasattr(selected, "index_tensor"):
            return selected.index_tensor()
        return self.variable.index(self.value)

    def extra_repr(self) -> str:
        return f"{self.name!r}, {self.variable}"


class Size(_Arithmetic):
    """An integer that follows a decision, scale * value + shift; or a constant.

    Calling it gives the size under the selected value. Products and sums with integers are sizes, too.

    Args:
        of: A decision among integers, another size, or a number.
        scale: A factor.
        shift: A summand.

    Raises:
        ValueError: The decision is not among integers, or a number is no integer.

    >>> from asng.nas import Width
    >>> size = Width("channels", 4, 6) * 2 + 1
    >>> size, size.all()
    (2 * 'channels' + 1, [9, 11, 13])
    >>> size.decision.choose(5)
    >>> size()
    11
    """

    def __init__(self, of: "Decision | Size | int", scale: int = 1, shift: int = 0) -> None:
        self.decision: Decision | None = None
        factor = constant = 0
        if isinstance(of, Size):
            self.decision, factor, constant = of.decision, of.scale, of.shift
        elif isinstance(of, Decision):
            self.decision, factor = of, 1
            if not all(isinstance(value, int) for value in of.variable.values() or (None,)):
                raise ValueError(f"a size follows integers, but {of.name!r} is {of.variable}")
        else:
            constant = require_int(of)
        self.scale: int = factor * require_int(scale)
        self.shift: int = constant * require_int(scale) + require_int(shift)

    def __call__(self) -> int:
        """The size under the selected value."""
        return self.shift if self.decision is None else int(self.scale * self.decision.value + self.shift)

    def all(self) -> list[int]:
        """List every size there can be.

        Returns:
            The sizes in the order of the decision's values; the number alone for a constant.
        """
        if self.decision is None:
            return [self.shift]
        return [self.scale * value + self.shift for value in self.decision.variable.values() or ()]

    @property
    def max(self) -> int:
        """The largest size there can be."""
        return max(self.all())

    def __repr__(self) -> str:
        if self.decision is None:
            return str(self.shift)
        factor = "" if self.scale == 1 else f"{self.scale} * "
        shift = "" if not self.shift else f" {'+' if self.shift > 0 else '-'} {abs(self.shift)}"
        return f"{factor}{self.decision.name!r}{shift}"


SizeLike = Decision | Size | int
"""A size of a layer: a number, a decision among integers, or arithmetic with one."""


def to_size(of: SizeLike, what: str) -> Size:
    """A size; raises ValueError if it follows a decision and can be less than 1."""
    size = Size(of)
    if size.decision is not None and min(size.all()) < 1:
        raise ValueError(f"{what} must be at least 1, but {size} can be {min(size.all())}")
    return size


def require_int(number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ValueError(f"a size is an integer or follows a decision, got {number!r}") from None
