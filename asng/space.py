"""The kinds of variables of a search space, and the family that a space is drawn from.

A variable is immutable, checked when it is made, and decodes raw draws. A raw draw is one number per variable: the
index of a choice, an integer before rounding (less the center of a range far from 0), or a number on the scale where
its range is [-1, 1]: a real (after the logarithm, where asked for), or an integer of a wide range. A kind of variable
is one class here; nothing outside asks which kind a variable is.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from asng._checks import as_finite_array, as_float, as_int, check_bool, check_bounds, take_list
from asng._ragged import Array
from asng._values import are_equal, check_distinct, find_value, to_json_text
from asng._variable import Variable as Variable
from asng._variable import check_space, range_error
from asng.families import Bounds, CategoricalFamily, Choices, Family, Joint, Normal, NormalFamily

MAX_EXACT_INT = 2**53  # the largest integers that float64 holds without gaps
STD_MIN_INTEGER = 0.25  # supplement C
MAX_PRECISION = 1e6  # the bounds over the smallest std: float64 holds E[x^2] beside mean^2 well enough up to here
MAX_PLAIN = round(MAX_PRECISION * STD_MIN_INTEGER)  # the largest integers whose raw draws are in their own units
MAX_STEP_STD = 2**26  # beyond it, the density gives more digits of an integer's probability than a difference does
STD_MIN_REAL = 1e-3  # of the range
DRAW = "a raw draw must be a number"


@dataclass(frozen=True, eq=False)
class Categorical(Variable):
    """One of several unordered choices.

    Args:
        choices: Names, layers, sizes, any distinct objects (1 and True are equal), at most 100,000.

    Raises:
        ValueError: There are no choices, too many, two are equal, or they are not a list.

    >>> Categorical(["conv", "pool"])
    Categorical(choices=('conv', 'pool'))
    """

    choices: Sequence[Any]

    def __post_init__(self) -> None:
        given = self.choices
        if isinstance(given, (Set, Mapping, Iterator)):
            why = "ends after one use" if isinstance(given, Iterator) else "has no order to go by"
            raise ValueError(f"choices must be a list, got {given!r}, which {why}; make a list of it")
        listed = isinstance(given, Sequence) or (isinstance(given, np.ndarray) and given.ndim > 0)
        if isinstance(given, (str, bytes)) or not listed:
            raise ValueError(f"choices must be a list, got {given!r}; write [{given!r}, ...]")
        taken = take_list(given, "choices")
        choices = tuple(choice.item() if isinstance(choice, np.generic) else choice for choice in taken)
        if not choices:
            raise ValueError("choices is empty; a categorical variable needs at least one choice")
        check_distinct(choices)
        object.__setattr__(self, "choices", choices)

    def __eq__(self, other: Any) -> bool:
        """Choices may be arrays, which tuples cannot compare."""
        if not isinstance(other, Categorical) or len(self.choices) != len(other.choices):
            return False
        return all(map(are_equal, self.choices, other.choices))

    def __hash__(self) -> int:
        return hash(len(self.choices))  # choices may be anything

    def marginal(self) -> Choices:
        return Choices(len(self.choices))

    def decode(self, x: float) -> Any:
        number = as_float(x, DRAW)
        if not 0 <= number < len(self.choices):
            raise ValueError(f"{DRAW}, here from 0 to below {len(self.choices)}, got {x!r}")
        return self.choices[int(number)]

    def contains(self, value: Any) -> bool:
        return find_value(self.choices, value) is not None

    def values(self) -> Sequence[Any]:
        return self.choices

    def log_prob(self, params: Any, value: Any) -> float:
        position = self.index(value)
        try:
            return math.log(params[position])
        except Exception:
            raise ValueError(f"{self} has one probability above 0 for each choice, got {params!r}") from None

    def from_json(self, data: Any) -> Any:
        written = to_json_text(data)
        fitting = [choice for choice in self.choices if to_json_text(choice) == written]
        if written is None or not fitting:
            raise range_error(self, data)
        if len(fitting) > 1:
            raise ValueError(f"{data!r} may be any of {fitting}, which JSON cannot tell apart")
        return fitting[0]

    def to_internal(self, prior: Any) -> Array:
        n = len(self.choices)
        is_short = not isinstance(prior, Sequence) or len(prior) <= n  # a long one would be copied
        probabilities = as_finite_array(prior, "probabilities") if is_short else np.empty(0)
        if probabilities.shape != (n,):
            raise ValueError(f"{prior!r} has to hold one probability for each of the {n} choices")
        if not (probabilities >= 0).all() or not math.isclose(probabilities.sum(), 1, abs_tol=1e-6):
            raise ValueError(f"probabilities {prior!r} must be >= 0 and sum to 1, not {probabilities.sum():g}")
        return probabilities

    def to_external(self, params: Any) -> Array:
        return as_finite_array(params, "probabilities")


@dataclass(frozen=True)
class Integer(Variable):
    """An integer in a range: a Gaussian draw, clipped and rounded.

    Args:
        low, high: Bounds, both included, at most 2**53 in absolute value. Of more than 500,000 values, the result is
            located to about a millionth of the range.

    Raises:
        ValueError: The bounds are not integers, not in order, or not distinct in float64.

    >>> Integer(64, 256).decode(100.5)
    100
    """

    low: int
    high: int
    _center: int = field(default=0, init=False, repr=False, compare=False)  # of a range far from 0, or wide
    _unit: float = field(default=1, init=False, repr=False, compare=False)  # of raw draws

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if as_int(value) is None:
                raise ValueError(f"{name} must be an integer, got {value!r}; for real numbers use Real")
            object.__setattr__(self, name, as_int(value))
        largest = max(abs(self.low), abs(self.high))
        if largest > MAX_EXACT_INT:
            raise ValueError(f"bounds beyond 2**53 are not exact in float64, got low={self.low} and high={self.high}")
        check_bounds(self.low, self.high)
        if largest > MAX_PLAIN:
            # The nearest even number: .5 is rounded to even, before and after the center is added.
            object.__setattr__(self, "_center", (self.low + self.high + 2) // 4 * 2)
            half = max(self.high - self._center, self._center - self.low)
            object.__setattr__(self, "_unit", half if half > MAX_PLAIN else 1)
            object.__setattr__(self, "_units", f", drawn as (n - {self._center}) / {self._unit}")

    def marginal(self) -> Bounds:
        if self._unit > 1:
            return Bounds(-1.0, 1.0, 1 / MAX_PRECISION)
        return Bounds(self.low - self._center, self.high - self._center, STD_MIN_INTEGER)

    def decode(self, x: float) -> int:
        if type(x) is not float:
            x = as_float(x, DRAW)
        return round(self._clip(x))  # half to even

    def contains(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def values(self) -> Sequence[int]:
        return range(self.low, self.high + 1)

    def range(self) -> tuple[int, int]:
        return self.low, self.high

    def log_prob(self, params: Any, value: Any) -> float:
        # Of the normal numbers that are clipped and rounded to the value.
        if not self.contains(value):
            raise range_error(self, value)
        mean, std = _as_normal(params)
        normal, place = NormalDist(mean - self._center, std), value - self._center  # beyond 2**52 there are no halves
        if std > MAX_STEP_STD and self.low < value < self.high:
            return math.log(max(normal.pdf(place), 1e-300))
        below = 0.0 if value == self.low else normal.cdf(place - 0.5)
        above = 1.0 if value == self.high else normal.cdf(place + 0.5)
        return math.log(max(above - below, 1e-300))

    def to_internal(self, prior: Any) -> Normal:
        mean, std = _to_normal(prior, self.low, self.high)
        return Normal(self._to_draw(mean), std / self._unit)

    def to_external(self, params: Any) -> Normal:
        mean, std = _as_normal(params)
        return Normal(float(self._clip(mean)), std * self._unit)

    def _clip(self, x: float) -> float:
        return min(max(self._center + self._unit * x, self.low), self.high)

    def _to_draw(self, value: float) -> float:
        return (value - self._center) / self._unit


@dataclass(frozen=True)
class Real(Variable):
    """A real number in a range: a Gaussian draw, clipped. At first about a third of the draws are at the bounds.

    The standard deviation stays above a thousandth of the range, on the scale searched, so the mode is located to about
    that; `minimize`, unless it is `noisy`, locates it to a ten-thousandth or better.

    Args:
        low, high: Bounds, both included.
        log: Search on a logarithmic scale; needs low > 0. The std of a prior or of the distribution is then that of the
            natural logarithm.

    Raises:
        ValueError: The bounds do not fit.

    >>> round(Real(1e-4, 1e-2, log=True).decode(0.0), 9)
    0.001
    """

    low: float
    high: float
    log: bool = False
    _center: float = field(init=False, repr=False, compare=False)  # of the range, on the scale searched
    _half: float = field(init=False, repr=False, compare=False)  # its half width there

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, as_float(getattr(self, name), f"{name} must be a number"))
        check_bounds(self.low, self.high)
        check_bool(self.log, "log")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be above 0 on a logarithmic scale, got {self.low}; raise it or drop log=True")
        low, high = self._to_scale(self.low), self._to_scale(self.high)
        if not math.isfinite(high - low) or not low < low + (high - low) / 2 < high:
            raise ValueError(f"the range from {self.low} to {self.high} is too wide or too narrow for float64")
        object.__setattr__(self, "_center", low + (high - low) / 2)
        object.__setattr__(self, "_half", (high - low) / 2)

    def decode(self, x: float) -> float:
        if type(x) is not float:
            x = as_float(x, DRAW)
        if not -1 < x < 1:
            if math.isnan(x):
                raise ValueError(f"{DRAW}, got {x}")
            return self.low if x < 0 else self.high
        scaled = min(self._center + self._half * x, self._to_scale(self.high))  # so that exp cannot overflow
        return min(max(math.exp(scaled) if self.log else scaled, self.low), self.high)

    def marginal(self) -> Bounds:
        return Bounds(-1.0, 1.0, 2 * STD_MIN_REAL, is_real=True)

    def contains(self, value: Any) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def range(self) -> tuple[float, float]:
        return self.low, self.high

    def to_json(self, value: Any) -> float:
        return float(super().to_json(value))

    def to_internal(self, prior: Any) -> Normal:
        mean, std = _to_normal(prior, self.low, self.high)
        return Normal((self._to_scale(mean) - self._center) / self._half, std / self._half)

    def to_external(self, params: Any) -> Normal:
        mean, std = _as_normal(params)
        return Normal(self.decode(mean), std * self._half)

    def _to_scale(self, value: float) -> float:
        return math.log(value) if self.log else value


@dataclass(frozen=True)
class Custom(Variable):
    """A variable of a family of your own.

    Args:
        family: A family that draws one number.
        value: (raw draw) -> the value to evaluate.

    Raises:
        ValueError: `family` is not a family of one variable, or `value` is not callable.

    >>> import asng
    >>> asng.Custom(asng.NormalFamily([0.0], [10.0], [0.5], mirrored=True), value=round).decode(6.8)
    7
    """

    family: Family
    value: Callable[[float], Any] = float

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family) or self.family.variables != 1:
            raise ValueError(f"Custom takes a Family that draws one number, got {self.family!r}")
        if not callable(self.value):
            raise ValueError(f"value must be a function of a raw draw, such as int, got {self.value!r}")

    def marginal(self) -> Family:
        return self.family

    def decode(self, x: float) -> Any:
        return self.value(x)

    def contains(self, value: Any) -> bool:
        return True  # only the user knows

    def to_json(self, value: Any) -> Any:
        data = super().to_json(value)
        if not are_equal(data, value):
            raise ValueError(f"{value!r} would be read from JSON as {data!r}")
        return data

    def to_internal(self, prior: Any) -> Any:
        self.family.encode([prior])  # raises where the family cannot take it
        return prior

    def to_external(self, params: Any) -> Any:
        return params


def family_of(
    space: Mapping[str, Variable],
    *,
    mirrored: bool = True,
    mode_prob: float | None = None,
    real_std_factor: float = 1.0,
) -> Family:
    """The family of a space: one for all choices, one for all numbers, and the variables' own families.

    Args:
        space: Names and variables.
        mirrored: Draw numbers in pairs mean + d, mean - d.
        mode_prob: As in `CategoricalFamily`.
        real_std_factor: Factor of the smallest standard deviations of reals.

    Returns:
        A family whose draws x (..., variables) have one column for each variable, in order.

    Raises:
        ValueError: The space is empty, or not a dict of names and variables.

    >>> family_of({"op": Categorical("ab".split() + ["c"]), "n": Integer(1, 9)}).variables
    2
    """
    check_space(space)
    marginals = dict(enumerate(variable.marginal() for variable in space.values()))
    choices = {column: part for column, part in marginals.items() if isinstance(part, Choices)}
    numbers = {column: part for column, part in marginals.items() if isinstance(part, Bounds)}
    parts: list[tuple[Family, Sequence[int]]] = []
    if choices:
        parts.append((CategoricalFamily([part.n for part in choices.values()], mode_prob=mode_prob), list(choices)))
    if numbers:
        low, high = zip(*((part.low, part.high) for part in numbers.values()), strict=True)
        std_min = [smallest_std(part, real_std_factor) for part in numbers.values()]
        parts.append((NormalFamily(low, high, std_min, mirrored=mirrored), list(numbers)))
    parts += [(part, [column]) for column, part in marginals.items() if isinstance(part, Family)]
    return parts[0][0] if len(parts) == 1 else Joint(parts)


def smallest_std(bounds: Bounds, real_std_factor: float) -> float:
    return bounds.std_min * real_std_factor if bounds.is_real else bounds.std_min


def _as_normal(params: Any) -> Normal:
    """Mean and standard deviation as floats."""
    try:
        mean, std = params
        return Normal(float(mean), float(std))
    except Exception:
        raise ValueError(f"the parameters of a number are (mean, std), got {params!r}") from None


def _to_normal(prior: Any, low: float, high: float) -> Normal:
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
