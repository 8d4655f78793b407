"""The methods that ASNG is compared with: same family, same ask and tell, no adaptation of delta."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from asng._asktell import MAX_STEP_SIZE, Optimizer, Seed
from asng._checks import check_float
from asng._ragged import Array
from asng.families import Family
from asng.optimizer import Losses, natural_gradient, projected_step
from asng.space import Variable

MOMENT1, MOMENT2 = 0.9, 0.999  # Adam's usual
MAX_MOMENT = 1e300  # and its bias can be corrected


class SNGState(NamedTuple):
    """State of SNG: theta alone."""

    theta: Array


def sng_update(
    family: Family, state: SNGState, x: Array, losses: Losses, active: Array | None = None, *, delta: Any
) -> SNGState:
    """Equation 10 with a constant radius: theta <- Proj(theta + delta G / |v|)."""
    gradient, _, inv_norm = natural_gradient(family, state.theta, x, losses, active)
    return SNGState(projected_step(family, state.theta, gradient * (delta * inv_norm), inv_norm))


class AdamState(NamedTuple):
    """State of Adam: theta, first and second moments, number of updates."""

    theta: Array
    first: Array
    second: Array
    updates: Any  # a float, or (..., 1)


def adam_init(theta: Array) -> AdamState:
    """The state before the first update."""
    updates = np.zeros_like(theta[..., :1]) if theta.ndim > 1 else 0.0
    return AdamState(theta, np.zeros_like(theta), np.zeros_like(theta), updates)


def adam_update(
    family: Family, state: AdamState, x: Array, losses: Losses, active: Array | None = None, *, lr: Any
) -> AdamState:
    """Adam with the normalized natural gradient as its gradient (section 3.1), on all entries of theta."""
    gradient, _, inv_norm = natural_gradient(family, state.theta, x, losses, active)
    step, learns = gradient * inv_norm, inv_norm > 0
    updates = state.updates + learns
    first = np.where(learns, MOMENT1 * state.first + (1 - MOMENT1) * step, state.first)
    second = np.where(learns, MOMENT2 * state.second + (1 - MOMENT2) * step * step, state.second)
    started = np.maximum(updates, 1)
    unbiased = first / (1 - MOMENT1**started), second / (1 - MOMENT2**started)
    change = lr * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
    return AdamState(projected_step(family, state.theta, change, inv_norm), first, second, updates)


def _step_size(given: float | None, name: str, family: Family) -> float:
    """The given step size, or 1/n_theta."""
    return check_float(1 / max(family.dimension, 1) if given is None else given, name, max=MAX_STEP_SIZE)


class SNG(Optimizer):
    """Stochastic natural gradient with a constant trust-region radius.

    Args:
        space: Names and variables.
        delta: The radius; by default 1/n_theta.
        population_size, mirrored, initial, seed: As in `ASNG`.

    Raises:
        ValueError: An argument does not fit; the message names it.

    >>> import asng
    >>> optimizer = asng.SNG({"op": asng.Categorical(["add", "mul"])}, seed=0)
    >>> for _ in range(50):
    ...     candidates = optimizer.ask()
    ...     optimizer.tell(candidates, [float(c.values["op"] == "add") for c in candidates])
    >>> optimizer.best
    Best(values={'op': 'mul'}, loss=0.0)
    """

    _state: SNGState

    def __init__(
        self,
        space: Mapping[str, Variable],
        *,
        delta: float | None = None,
        population_size: int = 2,
        mirrored: bool = True,
        initial: Mapping[str, Any] | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(space, population_size=population_size, mirrored=mirrored, initial=initial, seed=seed)
        self._delta = _step_size(delta, "delta", self._family)
        self._settings |= {"delta": self._delta}

    def _initial_state(self, theta: Array) -> SNGState:
        return SNGState(theta)

    def _update(self, x: Array, losses: list[float], active: Array | None) -> SNGState:
        return sng_update(self._family, self._state, x, losses, active, delta=self._delta)


class Adam(Optimizer):
    """Adam on theta, with the usual moments.

    Args:
        space: Names and variables.
        lr: The step size; by default 1/n_theta.
        population_size, mirrored, initial, seed: As in `ASNG`.

    Raises:
        ValueError: An argument does not fit; the message names it.

    >>> import asng
    >>> optimizer = asng.Adam({"op": asng.Categorical(["add", "mul"])}, seed=0)
    >>> for _ in range(50):
    ...     candidates = optimizer.ask()
    ...     optimizer.tell(candidates, [float(c.values["op"] == "add") for c in candidates])
    >>> optimizer.best
    Best(values={'op': 'mul'}, loss=0.0)
    """

    _state: AdamState

    def __init__(
        self,
        space: Mapping[str, Variable],
        *,
        lr: float | None = None,
        population_size: int = 2,
        mirrored: bool = True,
        initial: Mapping[str, Any] | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(space, population_size=population_size, mirrored=mirrored, initial=initial, seed=seed)
        self._lr = _step_size(lr, "lr", self._family)
        self._settings |= {"lr": self._lr}

    def _initial_state(self, theta: Array) -> AdamState:
        return adam_init(theta)

    def _update(self, x: Array, losses: list[float], active: Array | None) -> AdamState:
        return adam_update(self._family, self._state, x, losses, active, lr=self._lr)

    def _impossible_part(self, state: AdamState) -> str | None:
        # A gradient weighs 0.1 * 0.9^k in the first moment and 0.001 * 0.999^k in the second: at most 100 times more.
        bound = 10.001 * np.sqrt(np.maximum(state.second, 0)) + 1e-150
        if not ((state.second >= 0) & (state.second <= MAX_MOMENT) & (np.abs(state.first) <= bound)).all():
            return "moments"
        return None if state.updates >= 0 and float(state.updates).is_integer() else "number of updates"


class RandomSearch(Optimizer):
    """Random search: draws from the initial distribution, which never changes.

    By default choices are uniform. Numbers are normal and clipped, so that a third of the reals, and of integers from a
    wide range, are at a bound. For a uniform draw of a `Real` use `variable.decode(rng.uniform(-1, 1))`.

    Args:
        space: Names and variables.
        population_size, mirrored, initial, seed: As in `ASNG`.

    Raises:
        ValueError: An argument does not fit; the message names it.

    >>> import asng
    >>> optimizer = asng.RandomSearch({"op": asng.Categorical(["add", "mul"])}, seed=0)
    >>> for _ in range(50):
    ...     candidates = optimizer.ask()
    ...     optimizer.tell(candidates, [float(c.values["op"] == "add") for c in candidates])
    >>> optimizer.best
    Best(values={'op': 'mul'}, loss=0.0)
    """

    _state: SNGState

    def _initial_state(self, theta: Array) -> SNGState:
        return SNGState(theta)

    def _update(self, x: Array, losses: list[float], active: Array | None) -> SNGState:
        self._family.statistics(x)  # raises ValueError for impossible draws
        return self._state
