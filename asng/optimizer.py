"""Adaptive stochastic natural gradient (Algorithm 1 of the paper) behind ask and tell.

The functions are the algorithm, on arrays whose leading axes are independent runs. The classes hold one run and
validate arguments.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from asng._asktell import MAX_STEP_SIZE, Optimizer, Seed, read_only_view
from asng._checks import check_float
from asng._ragged import Array
from asng.families import Family
from asng.space import Variable

Losses = Array | Sequence[float]

MAX_PATH = 1e9  # each update makes it longer by 1 at most
MAX_GROWTH = 1000.0  # of an adapted population, which noise alone would let grow forever


@lru_cache(maxsize=64)
def _slot_sums(n: int) -> Array:
    """Entry k: the utilities of the k best slots of n, summed; integers, so that ties cancel exactly."""
    quarter = -(-n // 4)  # ceil(lambda / 4), section 2.4
    slots = np.zeros(n)
    slots[:quarter] += 1
    slots[n - quarter :] -= 1
    return np.concatenate([[0.0], np.cumsum(slots)])


def rank_utilities(losses: Losses) -> Array:
    """Utilities of losses: 1 for the best quarter, -1 for the worst, 0 otherwise.

    Args:
        losses: Losses (..., lambda), lower is better. Losses that are not finite are worst, and equal.

    Returns:
        Utilities u (..., lambda); equal losses share the mean of their slots.

    Raises:
        ValueError: There are fewer than two losses.

    >>> rank_utilities([0.3, 0.1, math.nan, 0.2, 0.2])
    array([-1. ,  1. , -1. ,  0.5,  0.5])
    """
    try:
        finite = np.where(np.isfinite(losses), losses, np.inf)
        n = finite.shape[-1]
    except Exception:  # no numbers, or a single one
        n = 0
    if n < 2:
        raise ValueError(f"a ranking needs at least two losses, got {losses!r}")
    return share_by_rank(_slot_sums(n), finite)


def share_by_rank(sums: Array, losses: Array) -> Array:
    """The mean of the slots of each loss (..., lambda), which equal losses share; sums[k] is that of the k best slots.

    >>> share_by_rank(np.array([0.0, 4.0, 6.0, 7.0]), np.array([0.2, 0.1, 0.2]))
    array([1.5, 4. , 1.5])
    """
    if losses.ndim == 1:
        ranked = np.sort(losses)
        first, last = ranked.searchsorted(losses, "left"), ranked.searchsorted(losses, "right")
    else:  # of many runs at once
        others = losses[..., None, :]
        first, last = (others < losses[..., None]).sum(-1), (others <= losses[..., None]).sum(-1)
    shared: Array = (sums[last] - sums[first]) / (last - first)
    return shared


def natural_gradient(
    family: Family, theta: Array, x: Array, losses: Losses, active: Array | None = None
) -> tuple[Array, Array, Any]:
    """The natural gradient estimated (equation 12) from draws x (..., lambda, variables) and their losses.

    Where `active` (..., lambda, variables) is 0, a variable is left out of the term of that draw.

    Returns G, the caller's to overwrite, and v = A^T G, where A A^T = F, both (..., size), and
    1 / |v|, which is 0 where there is nothing to learn: a float for one run, (..., 1) for many. The
    factor 1 / lambda of G is left out: it cancels when the length is normalized. One run whose |v| is not
    finite raises ValueError.
    """
    statistics = family.statistics(x)
    if active is not None:
        gradient = _active_gradient(theta, statistics, rank_utilities(losses), active.take(family.owner, -1))
    elif x.shape[-2] == 2:
        gradient = _gradient_of_two(statistics[..., 0, :], statistics[..., 1, :], losses)
    else:
        # The utilities sum to zero, so theta cancels, as does any constant: with the first draw as
        # that constant, identical draws give exactly zero.
        gradient = np.vecmat(rank_utilities(losses), statistics - statistics[..., :1, :])
        gradient[np.abs(gradient) < 1e-12] = 0.0  # rounding of shared utilities
    white = family.whiten(theta, gradient)
    if theta.ndim == 1:
        squared = float(white.dot(white))
        if not squared < math.inf:
            raise ValueError(f"the natural gradient is not finite: {gradient}, or {white} when whitened")
        return gradient, white, 1 / math.sqrt(squared) if squared > 0 else 0.0
    length = np.sqrt(np.vecdot(white, white))[..., None]
    return gradient, white, np.divide(1, length, out=np.zeros_like(length), where=length > 0)


def _gradient_of_two(one: Array, other: Array, losses: Any) -> Array:
    """Statistics of the better draw less those of the other (..., size), or 0 where both losses (..., 2) are equal.

    The default, written out: NumPy's general operations would cost several times the arithmetic.
    """
    if one.ndim == 1:
        first, second = losses
        first = first if math.isfinite(first) else math.inf
        second = second if math.isfinite(second) else math.inf
        return one - other if first < second else other - one if second < first else one - one
    finite = np.where(np.isfinite(losses), losses, np.inf)
    first, second = finite[..., :1], finite[..., 1:]
    sign: Array = np.subtract(first < second, second < first, dtype=float)
    return sign * (one - other)


def _active_gradient(theta: Array, statistics: Array, utilities: Array, active: Array) -> Array:
    """The sum of u (T - theta) over the draws in which an entry is active (..., lambda, size)."""
    weights = utilities[..., None] * active
    rest = weights.sum(-2)  # zero where all are active, up to rounding; only elsewhere theta does not cancel
    rest[np.abs(rest) < 1e-12] = 0.0
    first = statistics[..., 0, :]
    gradient: Array = (weights * (statistics - first[..., None, :])).sum(-2) + rest * (first - theta)
    gradient[np.abs(gradient) < 1e-12] = 0.0
    return gradient


def projected_step(family: Family, theta: Array, change: Array, inv_norm: Any) -> Array:
    """Proj(theta + change), or theta unchanged for runs with nothing to learn (inv_norm = 0)."""
    change += theta
    projected = family.project(change)
    if isinstance(inv_norm, float):
        return projected if inv_norm else theta
    return np.where(inv_norm > 0, projected, theta)


class ASNGState(NamedTuple):
    """State of ASNG, besides its random generator."""

    theta: Array  # (..., size)
    path: Array  # s, (..., size)
    gamma: Any  # a float, or (..., 1)
    divisor: Any  # Delta, a float or (..., 1): delta = delta_init / divisor, or lambda = population_size * divisor


def asng_init(family: Family, theta: Array, delta_init: Any, max_beta: float = 1.0) -> ASNGState:
    """The state before the first update."""
    min_divisor = delta_init / (family.root_dimension * max_beta)
    if theta.ndim == 1:  # Python floats are quicker, and equal after saving and loading
        return ASNGState(theta, np.zeros_like(theta), 0.0, max(1.0, min_divisor))
    zero = np.zeros_like(theta[..., :1])
    return ASNGState(theta, np.zeros_like(theta), zero, zero + np.maximum(1.0, min_divisor))


def asng_update(
    family: Family,
    state: ASNGState,
    x: Array,
    losses: Losses,
    alpha: Any,
    delta_init: Any,
    delta_max: Any,
    active: Array | None = None,
    max_beta: float = 1.0,
    fixed_delta: bool = False,
) -> ASNGState:
    """One update of Algorithm 1, lines 3 and 5 to 8; runs with nothing to learn stay as they are.

    With `fixed_delta` the divisor, 1 or more, is left to the caller, who multiplies the population size by it.
    """
    gradient, white, inv_norm = natural_gradient(family, state.theta, x, losses, active)
    max_delta = family.root_dimension * max_beta
    delta = np.minimum(delta_init, max_delta) if fixed_delta else delta_init / state.divisor
    beta = delta / family.root_dimension * (inv_norm > 0)
    gain = beta * (2 - beta)
    path = state.path * (1 - beta)
    path += white * (gain**0.5 * inv_norm)
    gamma = (1 - beta) ** 2 * state.gamma + gain
    gradient *= delta * inv_norm
    theta = projected_step(family, state.theta, gradient, inv_norm)
    # Beyond the paper: beta <= max_beta = 1, without which the step size runs away for small delta_init.
    min_divisor = 1.0 if fixed_delta else delta_init / max_delta
    if theta.ndim == 1:
        divisor = state.divisor * math.exp(beta * (gamma - float(path.dot(path)) / alpha))
        return ASNGState(theta, path, gamma, min(max(divisor, min_divisor), delta_max))
    divisor = state.divisor * np.exp(beta * (gamma - np.vecdot(path, path)[..., None] / alpha))
    return ASNGState(theta, path, gamma, np.minimum(np.maximum(divisor, min_divisor), delta_max))


class ASNG(Optimizer):
    """Adaptive stochastic natural gradient: minimizes over any mixture of variables.

    Args:
        space: Names and variables.
        population_size: Candidates per ask (lambda).
        alpha: Target of the ratio |path|^2 / gamma, to which the step size is adapted.
        delta_init: Initial trust-region radius.
        delta_max: Largest divisor Delta of delta_init; infinity in the paper's experiments.
        max_beta: Largest delta / sqrt(n_theta), the share of theta that an update replaces; an addition to the paper.
        adapt: "delta", or "population_size" (section 2.4): delta stays delta_init, and the population becomes
            population_size * Delta, with Delta between 1 and delta_max or 1000.
        mirrored: Draw numbers in pairs mean + d, mean - d; a single pair can only narrow their spread.
        initial: Priors by name: {"op": [0.7, 0.3], "n": (4, 2)}, probabilities or (mean, std). A prior out of bounds is
            projected, with a warning.
        seed: An integer or a SeedSequence; None for a random one.

    Raises:
        ValueError: An argument does not fit; the message names it.

    >>> import asng
    >>> optimizer = asng.ASNG({"op": asng.Categorical(["add", "mul"]), "n": asng.Integer(1, 9)}, seed=1)
    >>> for _ in range(200):
    ...     candidates = optimizer.ask()
    ...     optimizer.tell(candidates, [abs(c.values["n"] - 7) + (c.values["op"] == "add") for c in candidates])
    >>> optimizer.mode()
    {'op': 'mul', 'n': 7}
    """

    _state: ASNGState

    def __init__(
        self,
        space: Mapping[str, Variable],
        *,
        population_size: int = 2,
        alpha: float = 1.5,
        delta_init: float = 1.0,
        delta_max: float = math.inf,
        max_beta: float = 1.0,
        adapt: Literal["delta", "population_size"] = "delta",
        mirrored: bool = True,
        initial: Mapping[str, Any] | None = None,
        seed: Seed = None,
    ) -> None:
        if adapt not in ("delta", "population_size"):
            raise ValueError(f'adapt must be "delta" or "population_size", got {adapt!r}')
        self._fixed_delta = adapt == "population_size"
        self._max_beta = check_float(max_beta, "max_beta", max=1.0)
        self._alpha = check_float(alpha, "alpha", gt=1.0, max=1e9)
        self._delta_init = check_float(delta_init, "delta_init", max=MAX_STEP_SIZE)
        self._delta_max = check_float(delta_max, "delta_max")
        super().__init__(space, population_size=population_size, mirrored=mirrored, initial=initial, seed=seed)
        largest = None if math.isinf(self._delta_max) else self._delta_max  # JSON has no infinity
        self._settings |= {"alpha": self._alpha, "delta_init": self._delta_init, "delta_max": largest}
        if self._max_beta < 1.0:
            self._settings["max_beta"] = self._max_beta
        if self._fixed_delta:
            self._settings |= {"adapt": adapt, "population_size": self._population_size}  # what the state multiplies
            self._delta_max = min(self._delta_max, MAX_GROWTH)
        if self._delta_max < self._state.divisor:
            raise ValueError(f"delta_max must be at least {self._state.divisor:g} here, got {delta_max}; leave it out")

    def _initial_state(self, theta: Array) -> ASNGState:
        if self._fixed_delta:
            return asng_init(self._family, theta, 1.0)
        return asng_init(self._family, theta, self._delta_init, self._max_beta)

    def _update(self, x: Array, losses: list[float], active: Array | None) -> ASNGState:
        settings = self._delta_init, self._delta_max, active, self._max_beta, self._fixed_delta
        return asng_update(self._family, self._state, x, losses, self._alpha, *settings)

    def _impossible_part(self, state: ASNGState) -> str | None:
        min_divisor = 1.0 if self._fixed_delta else self._delta_init / (self._family.root_dimension * self._max_beta)
        parts = {
            "path": np.abs(state.path).max() <= MAX_PATH,
            "gamma": 0 <= state.gamma <= 1 + 1e-9,
            "divisor": min_divisor <= state.divisor <= self._delta_max,
        }
        return next((name for name, is_possible in parts.items() if not is_possible), None)

    @property
    def population_size(self) -> int:
        """The number of candidates that the next ask returns."""
        return round(self._population_size * self._state.divisor) if self._fixed_delta else self._population_size

    @property
    def delta(self) -> float:
        """The trust-region radius of the next update."""
        if self._fixed_delta:
            return min(self._delta_init, self._family.root_dimension * self._max_beta)
        return float(self._delta_init / self._state.divisor)

    @property
    def gamma(self) -> float:
        """The expected |path|^2 of a random walk; tends to 1."""
        return float(self._state.gamma)

    @property
    def path(self) -> Array:
        """The accumulated direction s (size,), read-only."""
        return read_only_view(self._state.path)
