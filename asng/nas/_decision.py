"""Searchable modules, decisions, and sizes that follow decisions."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from asng.nas._size import Arithmetic, Size
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


class Decision(Arithmetic, Searchable):
    """Base class of decisions: a named variable inside a network, whose selected value is `value`.

    Arithmetic with numbers and other decisions gives a `Size` that follows them, such as `width * 2`.

    Args:
        name: Identifies the decision: equal names share one variable anywhere in the model.
        variable: What there is to choose from.

    Raises:
        ValueError: The name is empty or no string, or this is no variable.

    >>> from asng import nas
    >>> isinstance(nas.Width("units", 8, 32), nas.Decision)
    True
    """

    is_number: ClassVar[bool] = True  # sizes may follow it, if its values are numbers

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


SizeLike = Decision | Size | int
"""A size of a layer: a number, a decision among integers, or arithmetic with decisions."""
