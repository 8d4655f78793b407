"""The variables of a search space: immutable, checked when they are made, decoded from raw draws.

A raw draw is one number per variable: the index of a choice, an integer before rounding, or a
real on the scale where its range is [-1, 1] (after the logarithm, where asked for).
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asng.checks import as_finite_array, as_int, check_bool, check_bounds

Array = NDArray[np.float64]

MAX_EXACT_INT = 2**53  # the largest integers that float64 holds without gaps
MAX_TABLE_RANGE = 4096  # the widest range of integers that is looked up


class Normal(NamedTuple):
    """The distribution of an integer or real variable, in the user's units.

    For a log-scaled real, `mean` is the median and `std` that of the natural logarithm.
    """

    mean: float
    std: float


class Variable(ABC):
    """Base class of variables."""

    @abstractmethod
    def decode(self, x: float) -> Any:
        """The value of a raw draw."""

    @abstractmethod
    def to_internal(self, prior: Any) -> Any:
        """Convert a user's prior to the family's parameters; raises ValueError."""

    @abstractmethod
    def to_external(self, parameters: Any) -> Any:
        """Convert the family's parameters to the user's units."""


@dataclass(frozen=True)
class Categorical(Variable):
    """One of several choices without order: names, layers, sizes, any objects that are not equal (as 1 and True are).

    >>> Categorical(["conv", "pool"])
    Categorical(choices=('conv', 'pool'))
    """

    choices: Sequence[Any]

    def __post_init__(self) -> None:
        given = self.choices
        if isinstance(given, (Set, Mapping)):
            raise ValueError(f"choices must be a list, got {given!r}, which has no order to go by; make a list of it")
        listed = isinstance(given, Sequence) or (isinstance(given, np.ndarray) and given.ndim > 0)
        if isinstance(given, (str, bytes)) or not listed:
            raise ValueError(f"choices must be a list, got {given!r}; write [{given!r}, ...]")
        choices = tuple(choice.item() if isinstance(choice, np.generic) else choice for choice in given)
        if not choices:
            raise ValueError("choices is empty; a categorical variable needs at least one choice")
        _check_distinct(choices)
        object.__setattr__(self, "choices", choices)

    def decode(self, x: float) -> Any:
        return self.choices[int(x)]

    def to_internal(self, prior: Any) -> Array:
        probabilities = as_finite_array(prior, "probabilities")
        if probabilities.shape != (len(self.choices),):
            raise ValueError(f"{prior!r} has to hold one probability for each of the {len(self.choices)} choices")
        if not (probabilities >= 0).all() or not math.isclose(probabilities.sum(), 1, abs_tol=1e-6):
            raise ValueError(f"probabilities {prior!r} must be >= 0 and sum to 1, not {probabilities.sum():g}")
        return probabilities

    def to_external(self, parameters: Any) -> Array:
        return np.array(parameters)


@dataclass(frozen=True)
class Integer(Variable):
    """An integer from `low` to `high`, both included.

    >>> Integer(64, 256).decode(100.5)
    100
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if as_int(value) is None:
                raise ValueError(f"{name} must be an integer, got {value!r}; for real numbers use Real")
            object.__setattr__(self, name, as_int(value))
        largest, width = max(abs(self.low), abs(self.high)), self.high - self.low
        if largest > MAX_EXACT_INT:
            raise ValueError(f"bounds beyond 2**53 are not exact in float64, got low={self.low} and high={self.high}")
        check_bounds(self.low, self.high)
        # E[x^2] is kept to 53 bits, so deviations far below 2**-20 of the bounds drown in rounding.
        if largest * 2**-20 > max(0.25, width / 1000):
            raise ValueError(
                f"the range from {self.low} to {self.high} is too narrow for its distance from 0; "
                f"search Integer(0, {width}) and add {self.low}"
            )

    def decode(self, x: float) -> int:
        return round(min(max(x, self.low), self.high))  # half to even

    def to_internal(self, prior: Any) -> Normal:
        return _normal(prior, self.low, self.high)

    def to_external(self, parameters: Any) -> Normal:
        return Normal(*map(float, parameters))


@dataclass(frozen=True)
class Real(Variable):
    """A real number from `low` to `high`; with `log=True` searched on the logarithm's scale.

    >>> round(Real(1e-4, 1e-2, log=True).decode(0.0), 9)
    0.001
    """

    low: float
    high: float
    log: bool = False
    center: float = field(init=False, repr=False, compare=False)  # of the range, on the scale searched
    half: float = field(init=False, repr=False, compare=False)  # its half width there

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:
                raise ValueError(f"bounds must be finite in float64, got {name}={str(value)[:20]}...") from None
            except (TypeError, ValueError):
                raise ValueError(f"{name} must be a number, got {value!r}") from None
        check_bounds(self.low, self.high)
        check_bool(self.log, "log")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be above 0 on a logarithmic scale, got {self.low}; raise it or drop log=True")
        low, high = self._to_scale(self.low), self._to_scale(self.high)
        if not math.isfinite(high - low) or not low < low + (high - low) / 2 < high:
            raise ValueError(f"the range from {self.low} to {self.high} is too wide or too narrow for float64")
        object.__setattr__(self, "center", low + (high - low) / 2)
        object.__setattr__(self, "half", (high - low) / 2)

    def decode(self, x: float) -> float:
        if not -1 < x < 1:
            return self.low if x < 0 else self.high
        scaled = min(self.center + self.half * x, self._to_scale(self.high))  # so that exp cannot overflow
        return min(max(math.exp(scaled) if self.log else scaled, self.low), self.high)

    def to_internal(self, prior: Any) -> Normal:
        mean, std = _normal(prior, self.low, self.high)
        return Normal((self._to_scale(mean) - self.center) / self.half, std / self.half)

    def to_external(self, parameters: Any) -> Normal:
        mean, std = parameters
        return Normal(self.decode(float(mean)), float(std) * self.half)

    def _to_scale(self, value: float) -> float:
        return math.log(value) if self.log else value


class Space:
    """Names and variables in order, compiled to decode many draws at once."""

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        if not isinstance(variables, Mapping):
            raise ValueError(f"a space is a dict of names and variables, got {variables!r}")
        if not variables:
            raise ValueError('the space is empty; give it at least one variable, as in {"op": Categorical([...])}')
        for name, variable in variables.items():
            if not isinstance(name, str):
                raise ValueError(f"names of variables must be strings, got {name!r}")
            if not isinstance(variable, Variable):
                raise ValueError(f"variable {name!r} must be a Categorical, Integer, Real or Custom, got {variable!r}")
        self.names, self.variables = tuple(variables), tuple(variables.values())
        self._template: dict[str, Any] = dict.fromkeys(self.names)
        self._compile()

    def _compile(self) -> None:
        """Build one lookup table for choices and small integers; other variables decode themselves."""
        table: list[Any] = []
        bounds = []  # of the raw draw, and the position in the table that belongs to 0
        self._others = []
        for column, variable in enumerate(self.variables):
            match variable:
                case Categorical():
                    values, low = variable.choices, 0
                case Integer() if variable.high - variable.low < MAX_TABLE_RANGE and len(table) < 100 * MAX_TABLE_RANGE:
                    values, low = range(variable.low, variable.high + 1), variable.low
                case _:
                    self._others.append(column)
                    values, low = (None,), 0
            bounds.append((low, low + len(values) - 1, len(table) - low))
            table.extend(values)
        self._table = np.fromiter(table, dtype=object, count=len(table))  # leaves arrays and tensors as they are
        one = np.array(bounds, dtype=float).T[:, None]
        two = one.repeat(2, axis=1)  # NumPy takes longer to broadcast a small array than to compute with it
        (self._low, self._high, self._start), (self._low_of_two, self._high_of_two, self._start_of_two) = one, two
        self._choices_only = all(isinstance(variable, Categorical) for variable in self.variables)

    def decode(self, x: Array) -> list[dict[str, Any]]:
        """Decode raw draws (n, variables) to n dicts of values, in the order of the space."""
        two = len(x) == 2
        index = x
        if not self._choices_only:
            low, high = (self._low_of_two, self._high_of_two) if two else (self._low, self._high)
            index = np.rint(np.minimum(np.maximum(x, low), high))  # half to even
        positions = (index + (self._start_of_two if two else self._start)).astype(np.intp)
        rows = self._table[positions].tolist()
        for column in self._others:
            decode = self.variables[column].decode
            for row, number in zip(rows, x[:, column].tolist(), strict=True):
                row[column] = decode(number)
        decoded, names, template = [], self.names, self._template
        for row in rows:
            values = template.copy()  # has its size already, so that it need not grow
            values.update(zip(names, row))  # noqa: B905 (strict costs time in every ask)
            decoded.append(values)
        return decoded

    def describe(self) -> list[list[str]]:
        """Names and variables in order, as text; equal for equal spaces, also across processes."""
        return [[name, _text(variable)] for name, variable in zip(self.names, self.variables, strict=True)]


def _text(thing: Any) -> str:
    """repr without addresses, with sorted sets and untruncated arrays."""
    match thing:
        case Categorical():
            return f"Categorical({_text(thing.choices)})"
        case tuple() | list():
            return f"[{', '.join(map(_text, thing))}]"
        case Set():
            return f"{{{', '.join(sorted(map(_text, thing)))}}}"
        case np.ndarray():
            return f"array({thing.tolist()})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def _check_distinct(choices: tuple[Any, ...]) -> None:
    """Raise ValueError for repeated choices."""
    with suppress(Exception):  # unhashable choices, such as lists
        if len(set(choices)) == len(choices):
            return
    for position, choice in enumerate(choices):
        if any(_equal(choice, other) for other in choices[:position]):
            raise ValueError(f"choice {choice!r} is repeated in {choices!r}; name each choice once")


def _equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    try:
        return bool(np.array_equal(first, second)) if hasattr(first, "shape") else bool(first == second)
    except Exception:  # they cannot be compared, so they are not the same
        return False


def _normal(prior: Any, low: float, high: float) -> Normal:
    """Validate a prior (mean, std) of a number between two bounds."""
    numbers = as_finite_array(prior, "mean and standard deviation")
    if numbers.shape != (2,):
        raise ValueError(f"a prior for a number is (mean, std), got {prior!r}")
    mean, std = numbers.tolist()
    if not low <= mean <= high:
        raise ValueError(f"mean {mean:g} lies outside [{low:g}, {high:g}]")
    if not std > 0:
        raise ValueError(f"std must be above 0, got {std:g}")
    return Normal(mean, std)
