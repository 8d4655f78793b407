"""Base class of variables, and checks of spaces and values that hold for variables of any kind."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from asng._untrusted import shorten
from asng._values import find_value, to_plain
from asng.families import Bounds, Choices, Family


class Variable(ABC):
    """Base class of variables: maps one number of a raw draw to a value.

    Derive to write a new kind of variable. For a new distribution, `Custom` suffices.

    >>> import asng
    >>> width = asng.Integer(1, 3)
    >>> isinstance(width, asng.Variable), list(width.values()), width.contains(1.0)
    (True, [1, 2, 3], False)
    """

    log: bool = False  # whether numbers are searched on the scale of their logarithm
    _units: str = ""  # of raw draws, as text for states, where not all versions have the same

    @abstractmethod
    def marginal(self) -> Choices | Bounds | Family:
        """Return the variable's part of the joint family of a space.

        Returns:
            A number of choices, bounds of a Gaussian, or a family of its own.
        """

    @abstractmethod
    def decode(self, x: float) -> Any:
        """Convert a raw draw to a value.

        Args:
            x: One number, as the family draws it.

        Returns:
            The value to evaluate.

        Raises:
            ValueError: The family does not draw this number.
        """

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """Tell whether a value belongs to the variable.

        Args:
            value: Any object.

        Returns:
            True for values of the variable. Types count: 1, 1.0 and True are three values.
        """

    def values(self) -> Sequence[Any] | None:
        """List all values.

        Returns:
            The values in order, or None, the default, if they cannot be listed.
        """
        return None

    def range(self) -> tuple[float, float] | None:
        """Return the bounds of a number.

        Returns:
            The smallest and the largest value, or None, the default, if values are not numbers.
        """
        return None

    def log_prob(self, params: Any, value: Any) -> float:
        """Compute the log-probability of a value.

        Args:
            params: The distribution of the variable, as `to_external` returns it.
            value: One of the values.

        Returns:
            The natural logarithm of the probability; 0, the default, for real numbers, which have densities instead.

        Raises:
            ValueError: The variable does not contain the value, or `params` are not those of its distribution.
        """
        return 0.0

    def to_json(self, value: Any) -> Any:
        """Convert a value to JSON-safe data.

        Args:
            value: One of the values.

        Returns:
            Numbers, strings, and lists of them.

        Raises:
            ValueError: The variable does not contain the value, or JSON cannot hold it.
        """
        if not self.contains(value):
            raise range_error(self, value)
        return to_plain(value)

    def from_json(self, data: Any) -> Any:
        """Invert `to_json`.

        Args:
            data: Data from `to_json`.

        Returns:
            The value.

        Raises:
            ValueError: No value of the variable has this form, or several have.
        """
        return self.to_json(data)  # where values are written as they are

    @abstractmethod
    def to_internal(self, prior: Any) -> Any:
        """Convert a prior to the parameters of the family.

        Args:
            prior: Probabilities of the choices (choices,), or (mean, std) in the user's units.

        Returns:
            The parameters, as `Family.encode` takes them.

        Raises:
            ValueError: The prior does not fit the variable.
        """

    @abstractmethod
    def to_external(self, params: Any) -> Any:
        """Convert the parameters of the family to the user's units.

        Args:
            params: The entry of `Family.describe` for this variable.

        Returns:
            Probabilities of the choices (choices,), or `Normal(mean, std)`.

        Raises:
            ValueError: These are not such parameters.
        """

    def index(self, value: Any) -> int:
        """Find a value among `values()`.

        Args:
            value: One of the values.

        Returns:
            Its position, from 0.

        Raises:
            ValueError: The variable does not contain the value, or its values cannot be listed.
        """
        values = self.values()
        if values is None:
            raise ValueError(f"the values of {self} have no positions")
        if isinstance(values, range):  # may be too long to look through
            position = values.index(value) if self.contains(value) else None
        else:
            position = find_value(values, value)
        if position is None:
            raise range_error(self, value)
        return position


def range_error(variable: Variable, value: Any) -> ValueError:
    return ValueError(f"{value!r} is outside of {variable}")


def check_space(space: Mapping[str, Variable]) -> None:
    """Raise ValueError unless this is a dict of names and variables."""
    if not isinstance(space, Mapping):
        raise ValueError(f"a space is a dict of names and variables, got {space!r}")
    if not space:
        raise ValueError('the space is empty; give it at least one variable, as in {"op": Categorical([...])}')
    for name, variable in space.items():
        if not isinstance(name, str):
            raise ValueError(f"names of variables must be strings, got {name!r}")
        if not isinstance(variable, Variable):
            raise ValueError(f"variable {name!r} must be a Categorical, Integer, Real or Custom, got {variable!r}")


def check_names(names: Iterable[str], space: Mapping[str, Variable]) -> None:
    """Raise ValueError unless these are the names of a space."""
    given = list(names)
    unknown = [name for name in given if name not in space]  # first: a misspelled one is missing, too
    if unknown:
        known = f"it has {', '.join([*space][:9])}" if space else "it is empty, as that of an extracted network"
        raise ValueError(f"the space has no {', '.join(map(repr, unknown[:5]))}; {known}")
    missing = [name for name in space if name not in given]
    if missing:
        raise ValueError(f"no value for {', '.join(map(repr, missing[:5]))}; the space needs one for each of its names")


def check_values(values: Mapping[str, Any], space: Mapping[str, Variable]) -> None:
    """Raise ValueError unless these are values of a space, one for each name."""
    if not isinstance(values, Mapping):
        raise ValueError(f"values must be a dict, with one for each name of the space, got {shorten(values)}")
    check_names(values, space)
    for name, variable in space.items():
        if not variable.contains(values[name]):
            raise ValueError(f"{values[name]!r} is outside of {variable} of {name!r}")


def stable_repr(thing: Any) -> str:
    """A variable as text that is equal for equal ones, also in another process.

    Like repr, but without addresses, in one order for sets, and whole for arrays.
    """
    match thing:
        case Variable() if is_dataclass(thing):
            values = ", ".join(stable_repr(getattr(thing, each.name)) for each in fields(thing) if each.init)
            return f"{type(thing).__name__}({values})"
        case tuple() | list():
            try:
                return f"[{', '.join(map(stable_repr, thing))}]"
            except RecursionError:
                raise ValueError("a choice holds itself, or is nested too deeply; give a flat one") from None
        case Set():
            return f"{{{', '.join(sorted(map(stable_repr, thing)))}}}"
        case np.ndarray():
            return f"array({thing.tolist()})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))
