"""Exponential families in expectation parameters: the distributions that ASNG moves.

Every family is chosen such that E[statistics(x)] = theta. The natural gradient of the
log-likelihood is then statistics(x) - theta for all of them (paper, section 2.1), and an update
needs four things: draws, statistics, a root of the Fisher information, and the projection into the
allowed set. Families have no state: every method takes
theta, and every array may have leading batch axes, written `...` below.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asng.space import Array, Categorical, Integer, Normal, Real, Variable

SQRT2 = math.sqrt(2)
STD_MIN_INTEGER = 0.25  # supplement C
STD_MIN_REAL = 1e-3  # of the range


class Family(ABC):
    """An exponential family. Bring your own by writing these methods; `Custom` puts it into a space.

    size        length of theta, of statistics and of gradients
    dimension   free parameters among them (n_theta): smaller where theta is redundant
    variables   numbers in one draw
    """

    size: int
    dimension: int
    variables: int

    def __repr__(self) -> str:
        """The class and what it was made with, as far as it keeps that in public attributes."""
        known = ("size", "dimension", "variables", "owner", "root_dimension")
        kept = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in known}
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in kept.items())})"

    @cached_property
    def root_dimension(self) -> float:
        """sqrt(n_theta), and 1 where nothing is free."""
        return math.sqrt(max(self.dimension, 1))

    @cached_property
    def owner(self) -> NDArray[np.intp]:
        """The variable that each entry of theta belongs to (size,); families of several variables set it."""
        assert self.variables == 1, "a family of several variables says which entries of theta are whose"
        return np.zeros(self.size, dtype=np.intp)

    @abstractmethod
    def initial(self) -> Array:
        """Theta (size,) of maximal entropy in the allowed set."""

    @abstractmethod
    def sample(self, theta: Array, n: int, generator: np.random.Generator) -> Array:
        """Draw n raw samples: theta (..., size) to x (..., n, variables)."""

    @abstractmethod
    def statistics(self, x: Array) -> Array:
        """Sufficient statistics T: x (..., variables) to (..., size), with expectation theta."""

    @abstractmethod
    def whiten(self, theta: Array, gradient: Array) -> Array:
        """A^T gradient, where A A^T = F(theta) is the Fisher information; (..., size) each."""

    @abstractmethod
    def project(self, theta: Array) -> Array:
        """The nearest allowed theta, on the family's own terms; (..., size)."""

    @abstractmethod
    def mode(self, theta: Array) -> Array:
        """The most likely raw draw: theta (..., size) to x (..., variables)."""

    @abstractmethod
    def describe(self, theta: Array) -> list[Any]:
        """Per variable, what a person would call its parameters; theta (size,)."""

    @abstractmethod
    def encode(self, parameters: Sequence[Any]) -> Array:
        """The opposite of `describe`: theta (size,), not yet projected."""


class CategoricalFamily(Family):
    """Independent categorical variables with counts[i] choices each (supplement B).

    theta holds all probabilities, one variable after another. The last one of each variable is
    redundant, and what the paper computes for j < m_i is kept at zero there.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        m = np.array(counts)
        if m.ndim != 1 or not m.size or m.dtype.kind not in "iu" or m.min() < 1:
            raise ValueError(f"counts must be a list of whole numbers of choices >= 1, got {counts!r}")
        free = m[m > 1]
        self.variables, self.size, self.dimension = len(m), int(m.sum()), int((free - 1).sum())
        self._counts = m
        self._starts = np.cumsum(m) - m
        self.owner = np.repeat(np.arange(len(m)), m)  # the variable that an entry of theta belongs to
        self._last_of_owner = (np.cumsum(m) - 1)[self.owner]
        self._category = (np.arange(self.size) - self._starts[self.owner]).astype(float)
        self._category_of_two = np.tile(self._category, (2, 1))  # broadcasting would cost more than comparing
        # Where all variables are alike and small, matrix products are quicker than anything else.
        self._alike = bool((m == m[0]).all() and m[0] <= 32)
        self._ones = np.ones((m[0], m[0]) if self._alike else (1, 1))
        self._up_to = np.triu(self._ones)
        self._up_to[:, -1] = 2.0
        last = self._last_of_owner == np.arange(self.size)
        self._free = np.where(last, 0.0, 1.0)
        self._before = np.where(last, -np.inf, self.owner)  # sum of theta over the variables before
        smallest = self._smallest(m, len(free))
        self._smallest_entry = smallest[self.owner]
        self._room = (1 - m * smallest)[self.owner]

    @staticmethod
    def _smallest(m: NDArray[np.intp], n: int) -> Array:
        """theta_min per variable: the paper's 1/(n_c (m_i - 1)) where that leaves room to move."""
        paper = 1 / np.maximum(n * (m - 1), 1)
        smallest = np.where(n * (m - 1) > m, paper, 1 / (2 * m))
        return np.where(m > 1, smallest, 0.0)

    def _products(self, entries: Array, matrix: Array) -> Array:
        """The entries of each variable (..., m) times a matrix (m, m); for variables that are alike."""
        result: Array = entries.reshape(-1, len(matrix)).dot(matrix).reshape(entries.shape)
        return result

    def _totals(self, entries: Array) -> Array:
        """The sum over the entries of its variable, for each entry."""
        if self._alike:
            return self._products(entries, self._ones)
        return np.add.reduceat(entries, self._starts, -1).take(self.owner, -1)

    def _cumulative(self, theta: Array) -> Array:
        """The cumulative sums of each variable, the last of them beyond any draw."""
        if self._alike:
            return self._products(theta, self._up_to)
        sums = np.add.accumulate(theta, -1)
        sums -= self._before
        return sums

    def initial(self) -> Array:
        return 1 / self._counts[self.owner]

    def sample(self, theta: Array, n: int, generator: np.random.Generator) -> Array:
        one_run = theta.ndim == 1
        uniform = generator.random((n, self.variables) if one_run else (*theta.shape[:-1], n, self.variables))
        # The number of cumulative sums <= r, without the last, so at most m_i - 1.
        if self._alike and not one_run:
            return self._counted(theta, uniform)
        sums = self._cumulative(theta)
        below = uniform.take(self.owner, -1) >= (sums if one_run else sums[..., None, :])
        counts: Array
        if self._alike:
            counts = below.astype(float).reshape(-1, len(self._ones)).dot(self._ones[0]).reshape(n, -1)
        else:
            counts = np.add.reduceat(below, self._starts, -1, dtype=float)
        return counts

    def _counted(self, theta: Array, uniform: Array) -> Array:
        """The same for many runs of variables that are alike, category by category."""
        x, sums = np.zeros(uniform.shape), np.zeros((*theta.shape[:-1], self.variables))
        choices = int(self._counts[0])
        for category in range(choices - 1):
            sums += theta[..., category::choices]
            x += uniform >= sums[..., None, :]
        return x

    def statistics(self, x: Array) -> Array:
        category = self._category_of_two if x.ndim == 2 and len(x) == 2 else self._category
        chosen: NDArray[np.bool_] = x.take(self.owner, -1) == category
        return chosen.astype(float)

    def whiten(self, theta: Array, gradient: Array) -> Array:
        # v_ij = G_ij / sqrt(th_ij) + sqrt(th_ij) sum_{k<m} G_ik / (th_im + sqrt(th_im)), where the
        # sum over k < m is -G_im because the entries of a variable sum to zero.
        root = np.sqrt(theta)
        ratio = (gradient / (theta + root)).take(self._last_of_owner, -1)
        ratio *= root
        white = gradient / root
        white -= ratio
        white *= self._free
        return white

    def project(self, theta: Array) -> Array:
        # Supplement C in terms of the excess over theta_min, which sums to 1 - m theta_min.
        excess = np.maximum(theta, self._smallest_entry)
        excess -= self._smallest_entry
        excess *= self._room / self._totals(excess)
        excess += self._smallest_entry
        return excess

    def mode(self, theta: Array) -> Array:
        largest = np.maximum.reduceat(theta, self._starts, -1).take(self.owner, -1)
        first = np.where(theta == largest, self._category, np.inf)
        return np.minimum.reduceat(first, self._starts, -1)

    def describe(self, theta: Array) -> list[Any]:
        return [row.copy() for row in np.split(theta, self._starts[1:])]

    def encode(self, parameters: Sequence[Any]) -> Array:
        return np.concatenate([np.asarray(p, dtype=float) for p in parameters])


class NormalFamily(Family):
    """Independent Gaussians with means in [low, high] and bounded deviations (supplements B and C).

    theta holds all means, then all mean^2 + std^2. With `mirrored`, draws come in pairs mean + d,
    mean - d.
    """

    def __init__(
        self, low: Sequence[float], high: Sequence[float], std_min: Sequence[float], *, mirrored: bool
    ) -> None:
        self._low, self._high, least = (np.array(numbers, dtype=float) for numbers in (low, high, std_min))
        if not (self._low.ndim == 1 and self._low.size and self._low.shape == self._high.shape == least.shape):
            raise ValueError(f"bounds and std_min must be lists of one length, got {low!r}, {high!r} and {std_min!r}")
        half = (self._high - self._low) / 2
        if not (np.isfinite(half).all() and (half > 0).all() and (least > 0).all() and (least <= half).all()):
            raise ValueError(f"0 < std_min <= (high - low) / 2 must hold, got {low!r}, {high!r} and {std_min!r}")
        self._var_min, self._var_max = np.square(least), np.square(half)
        self.variables, self.size, self.dimension = len(self._low), 2 * len(self._low), 2 * len(self._low)
        self._mirrored = mirrored
        self._one, self._root2 = np.ones(self.variables), np.full(self.variables, SQRT2)  # arrays: quicker than numbers
        self.owner = np.tile(np.arange(self.variables), 2)

    def initial(self) -> Array:
        mean = (self._low + self._high) / 2
        return np.concatenate((mean, mean * mean + self._var_max))

    def _mean_and_var(self, theta: Array) -> tuple[Array, Array]:
        mean = theta[..., : self.variables]
        # The bound holds already; it guards against cancellation where the mean is huge.
        return mean, np.maximum(theta[..., self.variables :] - mean * mean, self._var_min)

    def sample(self, theta: Array, n: int, generator: np.random.Generator) -> Array:
        mean, var = self._mean_and_var(theta)
        std = np.sqrt(var)
        if theta.ndim == 1 and n == 2 and self._mirrored:  # the default, without a detour over stacked runs
            offset = std * generator.standard_normal(self.variables)
            return np.array((mean + offset, mean - offset))
        mean, std = mean[..., None, :], std[..., None, :]
        rows = (n + 1) // 2 if self._mirrored else n
        offset = std * generator.standard_normal((*theta.shape[:-1], rows, self.variables))
        if not self._mirrored:
            return mean + offset
        x = np.empty((*theta.shape[:-1], n, self.variables))
        x[..., 0::2, :] = mean + offset
        x[..., 1::2, :] = mean - offset[..., : n // 2, :]
        return x

    def statistics(self, x: Array) -> Array:
        return np.concatenate((x, x * x), -1)

    def whiten(self, theta: Array, gradient: Array) -> Array:
        # (a, q) is the gradient in terms of mean and variance; (a/std, q/(sqrt2 var)) is a root of F
        # times the gradient. Turned by the angle atan2(2 mean, 1 + sqrt2 std) it is the symmetric root.
        mean, var = self._mean_and_var(theta)
        a, b = gradient[..., : self.variables], gradient[..., self.variables :]
        std, twice = np.sqrt(var), mean + mean
        along = std * self._root2
        first, second = a / std, (b - twice * a) / (along * std)
        along += self._one
        length = np.hypot(twice, along)
        return np.concatenate(
            ((along * first - twice * second) / length, (twice * first + along * second) / length), -1
        )

    def project(self, theta: Array) -> Array:
        mean = np.minimum(np.maximum(theta[..., : self.variables], self._low), self._high)
        square = mean * mean
        second = np.maximum(theta[..., self.variables :], square + self._var_min)
        return np.concatenate((mean, np.minimum(second, square + self._var_max)), -1)

    def mode(self, theta: Array) -> Array:
        return theta[..., : self.variables].copy()

    def describe(self, theta: Array) -> list[Any]:
        mean, var = self._mean_and_var(theta)
        return [Normal(m, s) for m, s in zip(mean.tolist(), np.sqrt(var).tolist(), strict=True)]

    def encode(self, parameters: Sequence[Any]) -> Array:
        mean, std = np.array(parameters, dtype=float).T
        return np.concatenate((mean, mean * mean + std * std))


class Joint(Family):
    """Independent families side by side: `parts` pairs each with its columns of x.

    theta is the concatenation of the parts' thetas.
    """

    def __init__(self, parts: Sequence[tuple[Family, Sequence[int]]]) -> None:
        if not parts:
            raise ValueError("a joint distribution needs at least one family")
        self._parts: list[tuple[Family, NDArray[np.intp], slice]] = []
        end = 0
        for family, columns in parts:
            if len(columns) != family.variables:
                raise ValueError(f"{family!r} draws {family.variables} numbers, got the columns {list(columns)}")
            start, end = end, end + family.size
            self._parts.append((family, np.array(columns, dtype=np.intp), slice(start, end)))
        self.size = end
        self.owner = np.concatenate([columns[family.owner] for family, columns, _ in self._parts])
        self.dimension = sum(family.dimension for family, _ in parts)
        self.variables = sum(family.variables for family, _ in parts)
        every = [column for _, columns in parts for column in columns]
        self._order = np.argsort(every)  # where the number of each column stands behind the others' parts
        if sorted(every) != list(range(self.variables)):
            raise ValueError("the columns of the parts must cover 0, 1, 2, ... once each")

    def initial(self) -> Array:
        return np.concatenate([family.initial() for family, _, _ in self._parts])

    def sample(self, theta: Array, n: int, generator: np.random.Generator) -> Array:
        draws = [family.sample(theta[..., own], n, generator) for family, _, own in self._parts]
        return np.concatenate(draws, -1).take(self._order, -1)

    def statistics(self, x: Array) -> Array:
        return np.concatenate([family.statistics(x.take(columns, -1)) for family, columns, _ in self._parts], -1)

    def whiten(self, theta: Array, gradient: Array) -> Array:
        return np.concatenate([f.whiten(theta[..., own], gradient[..., own]) for f, _, own in self._parts], -1)

    def project(self, theta: Array) -> Array:
        return np.concatenate([family.project(theta[..., own]) for family, _, own in self._parts], -1)

    def mode(self, theta: Array) -> Array:
        modes = [family.mode(theta[..., own]) for family, _, own in self._parts]
        return np.concatenate(modes, -1).take(self._order, -1)

    def describe(self, theta: Array) -> list[Any]:
        parameters: list[Any] = [None] * self.variables
        for family, columns, own in self._parts:
            for column, value in zip(columns.tolist(), family.describe(theta[own]), strict=True):
                parameters[column] = value
        return parameters

    def encode(self, parameters: Sequence[Any]) -> Array:
        return np.concatenate([f.encode([parameters[c] for c in columns]) for f, columns, _ in self._parts])


@dataclass(frozen=True)
class Custom(Variable):
    """A variable of a family of your own that draws one number; `value` makes what is evaluated of it."""

    family: Family
    value: Callable[[float], Any] = float

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family) or self.family.variables != 1:
            raise ValueError(f"Custom takes a Family that draws one number, got {self.family!r}")

    def decode(self, x: float) -> Any:
        return self.value(x)

    def raw_prior(self, prior: Any) -> Any:
        self.family.encode([prior])  # raises where the family cannot take it
        return prior

    def readable(self, parameters: Any) -> Any:
        return parameters


def family_of(space: Mapping[str, Variable], *, mirrored: bool = True) -> Family:
    """The family for a space: one for all categoricals, one for all numbers, one for each Custom."""
    categorical: dict[int, int] = {}
    numeric: dict[int, tuple[float, float, float]] = {}
    parts: list[tuple[Family, Sequence[int]]] = []
    for column, variable in enumerate(space.values()):
        match variable:
            case Categorical():
                categorical[column] = len(variable.choices)
            case Integer():
                numeric[column] = (variable.low, variable.high, STD_MIN_INTEGER)
            case Real():
                numeric[column] = (-1.0, 1.0, 2 * STD_MIN_REAL)
            case Custom():
                parts.append((variable.family, [column]))
            case _:
                raise ValueError(f"no family for {variable!r}; wrap your own in asng.Custom")
    if numeric:
        low, high, std_min = zip(*numeric.values(), strict=True)
        parts.insert(0, (NormalFamily(low, high, std_min, mirrored=mirrored), list(numeric)))
    if categorical:
        parts.insert(0, (CategoricalFamily(list(categorical.values())), list(categorical)))
    if len(parts) == 1:
        return parts[0][0]
    return Joint(parts)
