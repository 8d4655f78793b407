"""Adaptive stochastic natural gradient (Algorithm 1 of the paper) behind ask and tell.

The functions are the algorithm: they take and return arrays whose leading axes are independent
runs. The classes hold one run and check what comes from outside.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from asng.asktell import AskTell, Candidate, Seed, count, positive, read_only
from asng.families import Family
from asng.space import Array, Variable


@cache
def _slot_sums(n: int) -> Array:
    """Entry k: the utilities of the k best slots of n, summed; integers, so that ties cancel exactly."""
    quarter = -(-n // 4)  # ceil(lambda / 4), section 2.4
    slots = np.zeros(n)
    slots[:quarter] += 1
    slots[n - quarter :] -= 1
    return np.concatenate([[0.0], np.cumsum(slots)])


def rank_utilities(losses: Array) -> Array:
    """Utilities u of losses (..., lambda): 1 for the best quarter, -1 for the worst, 0 between.

    Equal losses share the mean of their slots. Losses that are not finite are worst, and equal.

    >>> rank_utilities(np.array([0.3, 0.1, np.nan, 0.2, 0.2]))
    array([-0.5,  1. , -1. ,  0.5,  0. ])
    """
    if losses.shape == (2,):  # the default; most of the time of a small problem would go here
        first, second = (loss if math.isfinite(loss) else math.inf for loss in losses.tolist())
        better = float((first < second) - (first > second))
        return np.array([better, -better])
    losses = np.where(np.isfinite(losses), losses, np.inf)
    mine, others = losses[..., :, None], losses[..., None, :]
    ahead, up_to_equal = (others < mine).sum(-1), (others <= mine).sum(-1)
    sums = _slot_sums(losses.shape[-1])
    return (sums.take(up_to_equal) - sums.take(ahead)) / (up_to_equal - ahead)


class Direction(NamedTuple):
    """The natural gradient estimate and what normalises it."""

    gradient: Array  # lambda G (..., size)
    white: Array  # v = A^T gradient (..., size), where F = A A^T
    scale: Any  # 1 / |v| (...,), and 0 where there is nothing to learn


def natural_gradient(family: Family, theta: Array, x: Array, losses: Array) -> Direction:
    """Estimate the direction (equation 9) from draws x (..., lambda, variables) and their losses.

    The factor 1 / lambda is left out: it cancels when the length is normalised.
    """
    statistics = family.statistics(x)
    utilities = rank_utilities(losses)
    if x.shape[-2] == 2:  # one draw less the other: identical draws cancel exactly
        gradient = _combined(utilities, statistics)
    else:
        # The utilities sum to zero, so theta cancels, as does any constant: with the first draw as
        # that constant, identical draws give zero, and rounded shares of ties next to zero.
        gradient = _combined(utilities, statistics - statistics[..., :1, :])
        gradient[np.abs(gradient) < 1e-12] = 0.0
    white = family.whiten(theta, gradient)
    return Direction(gradient, white, _inverse_root(_squared(white)))


def moved(family: Family, theta: Array, change: Array, scale: Any) -> Array:
    """Proj(theta + change) where a run learns, and the same theta to the bit where it does not."""
    projected = family.project(theta + change)
    if isinstance(scale, np.ndarray):
        return np.where(scale[..., None] > 0, projected, theta)
    return projected if scale else theta


# One run holds plain floats, stacked runs arrays (...,). NumPy's general operations cost one small
# run several times its arithmetic, so each of these has a quick way for it.


def column(value: Any) -> Any:
    """One number per run (...,), ready to multiply (..., size)."""
    return value[..., None] if isinstance(value, np.ndarray) else value


def _combined(weights: Array, rows: Array) -> Array:
    return weights.dot(rows) if rows.ndim == 2 else np.vecmat(weights, rows)


def _squared(vector: Array) -> Any:
    return vector.dot(vector) if vector.ndim == 1 else np.vecdot(vector, vector)


def _inverse_root(squared: Any) -> Any:
    if isinstance(squared, np.ndarray):
        return np.divide(1, np.sqrt(squared), out=np.zeros_like(squared), where=squared > 0)
    return 1 / math.sqrt(squared) if squared > 0 else 0.0


def _clipped(value: Any, low: Any, high: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.minimum(np.maximum(value, low), high)
    return min(max(value, low), high)


class AdaptiveState(NamedTuple):
    """What ASNG remembers besides its generator."""

    theta: Array  # (..., size)
    path: Array  # s, (..., size)
    gamma: Any  # (...,)
    divisor: Any  # Delta, (...,): the step size delta is delta_init / divisor


def adaptive_start(theta: Array, dimension: int, delta_init: Any) -> AdaptiveState:
    """The state before the first update."""
    zero = np.zeros(theta.shape[:-1])[()]
    divisor = zero + np.maximum(1.0, delta_init / math.sqrt(max(dimension, 1)))
    return AdaptiveState(theta, np.zeros_like(theta), zero, divisor)


def adaptive_update(
    family: Family, state: AdaptiveState, x: Array, losses: Array, *, alpha: Any, delta_init: Any, delta_max: Any
) -> AdaptiveState:
    """One update of Algorithm 1, lines 3 and 5 to 8; runs with nothing to learn stay as they are."""
    gradient, white, scale = natural_gradient(family, state.theta, x, losses)
    delta = delta_init / state.divisor
    theta = moved(family, state.theta, gradient * column(delta * scale), scale)
    root = math.sqrt(max(family.dimension, 1))
    beta = delta / root * (scale > 0)
    gain = beta * (2 - beta)
    path = state.path * column(1 - beta) + white * column(gain**0.5 * scale)
    gamma = (1 - beta) ** 2 * state.gamma + gain
    divisor = state.divisor * np.exp(beta * (gamma - _squared(path) / alpha))
    # Beyond the paper: beta <= 1, without which the step size runs away for small delta_init.
    divisor = _clipped(divisor, delta_init / root, delta_max)
    return AdaptiveState(theta, path, gamma, divisor)


class ASNG(AskTell):
    """Adaptive stochastic natural gradient: minimises over any mixture of variables, untuned.

    >>> import asng
    >>> optimizer = asng.ASNG({"op": asng.Categorical(["add", "mul"]), "n": asng.Integer(1, 9)}, seed=1)
    >>> for _ in range(200):
    ...     candidates = optimizer.ask()
    ...     optimizer.tell(candidates, [abs(c.values["n"] - 7) + (c.values["op"] == "add") for c in candidates])
    >>> optimizer.mode()
    {'op': 'mul', 'n': 7}

    alpha        target of the ratio |path|^2 / gamma that the step size is adapted to
    delta_init   the initial trust-region radius
    delta_max    the largest divisor Delta of delta_init; infinity in the paper's experiments
    samples      candidates per ask (lambda)
    mirrored     draw numbers in pairs mean + d, mean - d
    initial      prior knowledge: {"op": [0.7, 0.3], "n": (4, 2)}, probabilities or (mean, std)
    """

    _state: AdaptiveState

    def __init__(
        self,
        space: Mapping[str, Variable],
        *,
        alpha: float = 1.5,
        delta_init: float = 1.0,
        delta_max: float = math.inf,
        samples: int = 2,
        mirrored: bool = True,
        initial: Mapping[str, Any] | None = None,
        seed: Seed = None,
    ) -> None:
        self._alpha = positive(alpha, "alpha", above=1.0)
        self._delta_init = positive(delta_init, "delta_init", above=0.0)
        self._delta_max = positive(delta_max, "delta_max", above=0.0, finite=False)
        super().__init__(space, samples=samples, mirrored=mirrored, initial=initial, seed=seed)
        largest = None if math.isinf(self._delta_max) else self._delta_max  # JSON has no infinity
        self._settings |= {"alpha": self._alpha, "delta_init": self._delta_init, "delta_max": largest}
        self._state = adaptive_start(self._start, self._family.dimension, self._delta_init)
        if self._delta_max < self._state.divisor:
            raise ValueError(f"delta_max must be at least {self._state.divisor:g} here, got {delta_max}; leave it out")

    def _update(self, x: Array, losses: Array) -> AdaptiveState:
        return adaptive_update(
            self._family,
            self._state,
            x,
            losses,
            alpha=self._alpha,
            delta_init=self._delta_init,
            delta_max=self._delta_max,
        )

    @property
    def delta(self) -> float:
        """The trust-region radius of the next update."""
        return float(self._delta_init / self._state.divisor)

    @property
    def gamma(self) -> float:
        """How much of |path|^2 would be there by chance; tends to 1."""
        return float(self._state.gamma)

    @property
    def path(self) -> Array:
        """The accumulated direction s (size,), read-only."""
        return read_only(self._state.path)


class Result(NamedTuple):
    """What `minimize` found."""

    values: dict[str, Any]  # with the lowest loss
    loss: float
    mode: dict[str, Any]  # the most likely values at the end
    evaluations: int  # fewer than asked for only after Ctrl-C
    optimizer: ASNG  # to look at, or to go on from


def minimize(
    f: Callable[[dict[str, Any]], Any],
    space: Mapping[str, Variable],
    *,
    evaluations: int,
    samples: int | None = None,
    executor: Executor | None = None,
    seed: Seed = None,
    initial: Mapping[str, Any] | None = None,
) -> Result:
    """Minimise f over a space in a given number of evaluations; an executor evaluates side by side.

    Ctrl-C ends it early with the result so far.

    >>> import asng
    >>> asng.minimize(lambda v: (v["x"] - 2) ** 2, {"x": asng.Integer(-50, 50)}, evaluations=200, seed=0).mode
    {'x': 2}
    """
    left = count(evaluations, "evaluations", least=2)
    size = 2 if samples is None else samples
    optimizer = ASNG(space, samples=size, initial=initial, seed=seed)
    evaluate = map if executor is None else executor.map
    try:
        while left:
            n = left if left <= size + 1 else size  # a ranking needs two, so none is left alone
            candidates = optimizer.ask(n)
            optimizer.tell(candidates, list(evaluate(f, [c.values for c in candidates])))
            left -= n
    except KeyboardInterrupt:
        if optimizer.best is None:
            raise
    if optimizer.best is None:
        raise ValueError("every loss was NaN or infinite; f has to return a finite number somewhere in the space")
    return Result(optimizer.best.values, optimizer.best.loss, optimizer.mode(), evaluations - left, optimizer)
