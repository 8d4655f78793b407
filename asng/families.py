"""Exponential families in expectation parameters: the distributions that ASNG moves.

Every family is chosen such that E[statistics(x)] = theta. The natural gradient of the
log-likelihood is then statistics(x) - theta for all of them (paper, section 2.1), and an update
needs four things: draws, statistics, a root of the Fisher information, and the projection into the
allowed set. Families have no state: every method takes theta, and every array may have leading batch
axes, written `...` below.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asng._checks import MAX_ITEMS, as_finite_array, check_bool, check_float
from asng._ragged import Array, Ragged

MAX_DISTANCE = 1e9  # times the bounds: far beyond any draw, and its square is exact enough in float64
TINY = 1e-300  # too small to change a sum of probabilities


class Normal(NamedTuple):
    """The distribution of an integer or real variable, in the user's units.

    Attributes:
        mean: The mean; for a log-scaled real the median.
        std: The standard deviation; for a log-scaled real that of the natural logarithm.

    >>> import asng
    >>> asng.ASNG({"n": asng.Integer(1, 9)}).distribution()
    {'n': Normal(mean=5.0, std=4.0)}
    """

    mean: float
    std: float


class Choices(NamedTuple):
    """The part of one variable in a `CategoricalFamily`; raw draws are 0 to n - 1.

    Attributes:
        n: The number of choices.

    >>> import asng
    >>> asng.Categorical(["conv", "pool"]).marginal()
    Choices(n=2)
    """

    n: int

    @property
    def low(self) -> int:
        """The smallest raw draw."""
        return 0


class Bounds(NamedTuple):
    """The part of one variable in a `NormalFamily`.

    Attributes:
        low, high: Bounds of the mean, in the units of raw draws.
        std_min: The smallest standard deviation, in the same units.
        is_real: Whether every draw is another value; in `minimize`, unless it is `noisy`, std_min is then a thousandth.

    >>> import asng
    >>> asng.Integer(1, 9).marginal()
    Bounds(low=1, high=9, std_min=0.25, is_real=False)
    """

    low: float
    high: float
    std_min: float
    is_real: bool = False


class Family(ABC):
    """Base class of exponential families in expectation parameters; `Custom` puts one of your own into a space.

    A subclass sets the attributes and implements the abstract methods such that E[statistics(x)] = theta. It has no
    state: theta is an argument. All arrays may have leading batch axes, written `...`.

    Attributes:
        size: Length of theta, of statistics and of gradients.
        dimension: Number of free parameters (n_theta), smaller than `size` if theta is redundant.
        variables: Numbers in one draw.

    >>> import numpy as np
    >>> class Exponential(Family):  # its only parameter is the mean
    ...     size = dimension = variables = 1
    ...     def initial(self):
    ...         return np.array([1.0])
    ...     def sample(self, theta, n, generator):
    ...         return theta[..., None, :] * generator.standard_exponential((*theta.shape[:-1], n, 1))
    ...     def statistics(self, x):
    ...         return x
    ...     def whiten(self, theta, gradient):  # F = 1 / mean^2
    ...         return gradient / theta
    ...     def project(self, theta):
    ...         return np.clip(theta, 0.01, 100.0)
    ...     def mode(self, theta):  # the mean: the density is highest at 0, whatever the mean is
    ...         return theta
    ...     def describe(self, theta):
    ...         return [float(theta[0])]
    ...     def encode(self, parameters):
    ...         return np.array(parameters, dtype=float)
    >>> import asng
    >>> result = asng.minimize(
    ...     lambda v: abs(v["delay"] - 3), {"delay": asng.Custom(Exponential())}, evaluations=400, seed=0
    ... )
    >>> round(result.values["delay"], 1)
    3.0
    """

    size: int
    dimension: int
    variables: int

    def __repr__(self) -> str:
        """The class and its public attributes."""
        known = ("size", "dimension", "variables", "owner", "root_dimension")
        settings = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in known}
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

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
        """Return the initial parameters.

        Returns:
            Theta (size,) of maximal entropy in the allowed set.
        """

    @abstractmethod
    def sample(self, theta: Array, n: int, generator: np.random.Generator) -> Array:
        """Draw raw samples.

        Args:
            theta: Parameters (..., size).
            n: Number of samples.
            generator: The source of random numbers.

        Returns:
            Samples x (..., n, variables).
        """

    @abstractmethod
    def statistics(self, x: Array) -> Array:
        """Compute the sufficient statistics T, whose expectation is theta.

        Args:
            x: Raw draws (..., variables).

        Returns:
            Statistics (..., size).

        Raises:
            ValueError: The family cannot draw one of the numbers.
        """

    @abstractmethod
    def whiten(self, theta: Array, gradient: Array) -> Array:
        """Multiply by a root of the Fisher information, so that lengths do not depend on the parametrization.

        Args:
            theta: Parameters (..., size).
            gradient: A natural gradient (..., size).

        Returns:
            A^T gradient (..., size), where A A^T = F(theta).
        """

    @abstractmethod
    def project(self, theta: Array) -> Array:
        """Project into the allowed set.

        Args:
            theta: Any parameters (..., size).

        Returns:
            The nearest allowed theta (..., size); the family defines nearest.
        """

    @abstractmethod
    def mode(self, theta: Array) -> Array:
        """Return the most likely raw draw.

        Args:
            theta: Parameters (..., size).

        Returns:
            A raw draw x (..., variables).
        """

    @abstractmethod
    def describe(self, theta: Array) -> list[Any]:
        """List the parameters of each variable in readable form.

        Args:
            theta: Parameters (size,).

        Returns:
            One entry for each variable, such as an array of probabilities or a `Normal`.
        """

    @abstractmethod
    def encode(self, parameters: Sequence[Any]) -> Array:
        """Invert `describe`.

        Args:
            parameters: One entry for each variable, as `describe` returns it.

        Returns:
            Theta (size,), not yet projected.

        Raises:
            ValueError: These are not such parameters.
        """


class CategoricalFamily(Family):
    """Independent categorical variables with counts[i] choices each (supplement B).

    theta holds all probabilities, one variable after another. The last probability of each variable is redundant;
    vectors that the paper defines for j < m_i are zero there.

    Args:
        counts: The number of choices of each variable, from 1 to 100,000.
        mode_prob: The joint probability, up to 0.99, that the likeliest choices of all variables must be able to reach.
            By default the lower bound of each probability is the paper's theta_min.

    Raises:
        ValueError: `counts` is not such a list, or `mode_prob` not such a number.

    >>> family = CategoricalFamily([2, 3])
    >>> family.size, family.dimension, family.variables
    (5, 3, 2)
    >>> family.statistics(np.array([1.0, 0.0]))
    array([0., 1., 1., 0., 0.])
    """

    def __init__(self, counts: Sequence[int], *, mode_prob: float | None = None) -> None:
        try:
            m = np.array(counts)
        except Exception:  # rows of several lengths, tensors that NumPy does not take
            m = np.empty(0)
        if m.ndim != 1 or not m.size or m.dtype.kind not in "iu" or m.min() < 1 or m.max() > MAX_ITEMS:
            raise ValueError(f"counts must be a list of numbers of choices from 1 to {MAX_ITEMS:,}, got {counts!r}")
        m = m.astype(np.intp)  # smaller integers overflow below
        self._rows = Ragged(m)
        self.variables: int = len(m)
        self.size: int = int(m.sum())
        self.dimension: int = int((m - 1).sum())
        self.owner, self._last = self._rows.owner, self._rows.last
        self._free = np.where(self._last == np.arange(self.size), 0.0, 1.0)
        # theta_min: the paper's 1/(n_c (m_i - 1)) where that leaves room to move.
        others = (m > 1).sum() * (m - 1)
        theta_min = np.where(others > m, 1 / np.maximum(others, 1), 1 / (2 * m))
        if mode_prob is not None:
            each = check_float(mode_prob, "mode_prob", max=0.99) ** (1 / max(1, (m > 1).sum()))
            theta_min = np.minimum(theta_min, (1 - each) / np.maximum(m - 1, 1))
        theta_min[m == 1] = 0.0
        self._theta_min = theta_min[self.owner]
        self._room, self._tiny = (1 - m * theta_min)[self.owner], np.full(self.size, TINY)

    def initial(self) -> Array:
        return 1 / self._rows.lengths[self.owner]

    def sample(self, theta: Array, n: int, generator: np.random.Generator) -> Array:
        shape = (n, self.variables) if theta.ndim == 1 else (*theta.shape[:-1], n, self.variables)
        return self._rows.draw(theta, generator.random(shape))

    def statistics(self, x: Array) -> Array:
        return self._rows.one_hot(x)

    def whiten(self, theta: Array, gradient: Array) -> Array:
        # v_ij = G_ij / sqrt(th_ij) + sqrt(th_ij) sum_{k<m} G_ik / (th_im + sqrt(th_im)), where the
        # sum over k < m is -G_im because the entries of a variable sum to zero.
        root = np.sqrt(theta)
        ratio = (gradient / (theta + root)).take(self._last, -1)
        ratio *= root
        white = gradient / root
        white -= ratio
        white *= self._free
        return white

    def project(self, theta: Array) -> Array:
        # Supplement C in terms of the excess over theta_min, which sums to 1 - m theta_min. Where no entry
        # exceeds theta_min, all become equal.
        excess: Array = np.maximum(theta - self._theta_min, self._tiny)
        excess *= self._room / self._rows.totals(excess)
        excess += self._theta_min
        return excess

    def mode(self, theta: Array) -> Array:
        return self._rows.argmax(theta)

    def describe(self, theta: Array) -> list[Any]:
        return self._rows.split(theta)

    def encode(self, parameters: Sequence[Any]) -> Array:
        return np.concatenate([np.asarray(p, dtype=float) for p in parameters])


class NormalFamily(Family):
    """Independent Gaussians with means in [low, high] and bounded deviations (supplements B and C).

    theta holds all means, then all mean^2 + std^2. Standard deviations stay between `std_min` and half the range.

    Args:
        low, high: Bounds of the mean of each variable.
        std_min: The smallest standard deviation of each variable.
        mirrored: Draw in pairs mean + d, mean - d.

    Raises:
        ValueError: The lists differ in length, or 0 < std_min <= (high - low) / 2 does not hold.

    >>> family = NormalFamily([0.0], [10.0], [0.5], mirrored=True)
    >>> family.initial()
    array([ 5., 50.])
    >>> x = family.sample(family.initial(), 2, np.random.default_rng(0))
    >>> x.sum(axis=0)  # a mirrored pair
    array([10.])
    """

    def __init__(
        self, low: Sequence[float], high: Sequence[float], std_min: Sequence[float], *, mirrored: bool
    ) -> None:
        bounds = [as_finite_array(numbers, "bounds and std_min") for numbers in (low, high, std_min)]
        self._low, self._high, smallest_std = bounds
        if not (self._low.ndim == 1 and self._low.size and self._low.shape == self._high.shape == smallest_std.shape):
            raise ValueError(f"bounds and std_min must be lists of one length, got {low!r}, {high!r} and {std_min!r}")
        half = (self._high - self._low) / 2
        if not ((smallest_std > 0) & (smallest_std <= half) & np.isfinite(half)).all():
            raise ValueError(f"0 < std_min <= (high - low) / 2 must hold, got {low!r}, {high!r} and {std_min!r}")
        self._var_min, self._var_max = np.square(smallest_std), np.square(half)
        self._max_squares = MAX_DISTANCE**2 * np.square(np.maximum(np.abs(self._low), np.abs(self._high))).sum()
        self._mirrored, n = check_bool(mirrored, "mirrored"), len(half)
        self.variables: int = n
        self.size: int = 2 * n
        self.dimension: int = 2 * n
        self.owner = np.tile(np.arange(n), 2)
        self._one, self._root2 = np.ones(n), np.full(n, math.sqrt(2))  # arrays: quicker than numbers

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
        rows = (n + 1) // 2 if self._mirrored else n
        offset = std[..., None, :] * generator.standard_normal((*theta.shape[:-1], rows, self.variables))
        mean = mean[..., None, :]
        if not self._mirrored:
            return mean + offset
        pairs = np.empty((*theta.shape[:-1], 2 * rows, self.variables))
        np.add(mean, offset, out=pairs[..., ::2, :])
        np.subtract(mean, offset, out=pairs[..., 1::2, :])
        return pairs[..., :n, :]

    def statistics(self, x: Array) -> Array:
        if not np.vdot(x, x) <= self._max_squares:  # NaN is not, either
            raise ValueError(f"not finite, or too far from the bounds to be drawn: {x}")
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
        first, second = along * first - twice * second, twice * first + along * second
        return np.concatenate((first / length, second / length), -1)

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
        given = as_finite_array(parameters, "means and standard deviations")
        if given.shape != (self.variables, 2):
            raise ValueError(f"numbers have {self.variables} pairs of (mean, std), got {parameters!r}")
        mean, std = given.T
        return np.concatenate((mean, mean * mean + std * std))


def _is_part(part: Any) -> bool:
    is_pair = isinstance(part, Sequence) and len(part) == 2
    return is_pair and isinstance(part[0], Family) and isinstance(part[1], Sized)


class Joint(Family):
    """Independent families; theta is the concatenation of their thetas.

    Args:
        parts: Pairs of a family and its columns of x.

    Raises:
        ValueError: There are no parts, one is not such a pair, or the columns do not cover 0, 1, 2, ... once each.

    >>> joint = Joint([(CategoricalFamily([2]), [1]), (NormalFamily([0.0], [4.0], [0.5], mirrored=True), [0])])
    >>> joint.initial()
    array([0.5, 0.5, 2. , 8. ])
    >>> joint.mode(joint.initial())
    array([2., 0.])
    """

    def __init__(self, parts: Sequence[tuple[Family, Sequence[int]]]) -> None:
        if not isinstance(parts, Sequence) or not parts or not all(map(_is_part, parts)):
            raise ValueError(f"a joint distribution is made of a list of pairs (family, columns), got {parts!r}")
        self._parts: list[tuple[Family, NDArray[np.intp], slice]] = []
        self.size: int = 0
        for family, columns in parts:
            if len(columns) != family.variables:
                raise ValueError(f"{family!r} draws {family.variables} numbers, got the columns {list(columns)}")
            own = slice(self.size, self.size + family.size)
            self._parts.append((family, np.array(columns, dtype=np.intp), own))
            self.size = own.stop
        all_columns = [column for _, columns in parts for column in columns]
        if sorted(all_columns) != list(range(len(all_columns))):
            raise ValueError("the columns of the parts must cover 0, 1, 2, ... once each")
        self._order = np.argsort(all_columns)  # from the order of the parts to that of the columns
        self.variables: int = len(all_columns)
        self.dimension: int = sum(family.dimension for family, _ in parts)
        self.owner = np.concatenate([columns[family.owner] for family, columns, _ in self._parts])

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
        parameters = [each for family, _, own in self._parts for each in family.describe(theta[own])]
        return [parameters[position] for position in self._order]

    def encode(self, parameters: Sequence[Any]) -> Array:
        return np.concatenate([f.encode([parameters[c] for c in columns]) for f, columns, _ in self._parts])
