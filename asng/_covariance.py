"""ASNG for choices, and CMA-ES for numbers, as in CatCMA (Hamano et al., GECCO 2024): numbers with covariances."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from asng._asktell import Optimizer, Seed
from asng._ragged import Array
from asng.families import CategoricalFamily, Joint, NormalFamily
from asng.optimizer import ASNGState, asng_init, asng_update
from asng.space import Variable

DELTA_INIT = 1.0  # of ASNG
INITIAL_SPREAD = 0.3  # standard deviations to start with, as shares of half the range
BEYOND = 0.5  # standard deviations that draws lie beyond a bound at most
MIN_EIGENVALUE = 1e-12  # of correlations


class CovarianceState(NamedTuple):
    """The state besides the random generator; the diagonal of the covariance is also in theta."""

    theta: Array  # of choices and numbers
    path: Array  # of choices, as in ASNGState
    gamma: float
    divisor: float
    covariance: Array  # of numbers (n, n)
    sigma_path: Array  # of steps of the mean, whitened (n,)
    covariance_path: Array  # of steps of the mean (n,)


class Rates(NamedTuple):
    """The settings of CMA-ES for n numbers and a population: weights by rank, and learning rates (Hansen, 2016)."""

    weights: Array
    mu_eff: float
    sigma: float
    damping: float
    path: float
    rank_one: float
    rank_mu: float


@lru_cache(maxsize=64)
def rates_of(n: int, population_size: int) -> Rates:
    raw = math.log((population_size + 1) / 2) - np.log(np.arange(1, population_size + 1))
    good, bad = raw[raw > 0], raw[raw < 0]
    mu_eff, mu_eff_bad = good.sum() ** 2 / (good**2).sum(), bad.sum() ** 2 / (bad**2).sum()
    rank_one = 2 / ((n + 1.3) ** 2 + mu_eff)
    rank_mu = min(1 - rank_one, 2 * (mu_eff - 2 + 1 / mu_eff) / ((n + 2) ** 2 + mu_eff))
    bad_sum = 0.0
    if rank_mu > 0:
        bad_sum = min(1 + rank_one / rank_mu, 1 + 2 * mu_eff_bad / (mu_eff + 2), (1 - rank_one - rank_mu) / n / rank_mu)
    sigma = (mu_eff + 2) / (n + mu_eff + 5)
    return Rates(
        weights=np.where(raw > 0, raw / good.sum(), raw * bad_sum / -bad.sum()),
        mu_eff=mu_eff,
        sigma=sigma,
        damping=1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + sigma,
        path=(4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n),
        rank_one=rank_one,
        rank_mu=rank_mu,
    )


def rank_weights(weights: Array, losses: Array) -> Array:
    """The weight of each loss by its rank; equal losses share the mean of their weights."""
    ranked = np.sort(losses)
    first, last = ranked.searchsorted(losses, "left"), ranked.searchsorted(losses, "right")
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    shared: Array = (sums[last] - sums[first]) / (last - first)
    return shared


class Moments(NamedTuple):
    """The covariance of numbers (n, n), and the paths of the steps of their mean (n,), one of them whitened."""

    covariance: Array
    sigma_path: Array
    covariance_path: Array


def cma_update(state: Moments, step: Array, y: Array, weights: Array, rates: Rates) -> Moments:
    """The moments after a step of the mean, from draws y (population, n), less the mean, with their weights.

    The covariance includes the step size, whose changes multiply it and its path.
    """
    n = len(state.covariance)
    values, vectors = eigen(state.covariance)
    white_step, white = (each @ vectors / np.sqrt(values) @ vectors.T for each in (step, y))
    sigma_path = (1 - rates.sigma) * state.sigma_path
    sigma_path += math.sqrt(rates.sigma * (2 - rates.sigma) * rates.mu_eff) * white_step
    expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))  # length of a standard normal vector
    length = float(np.linalg.norm(sigma_path)) / expected
    is_steady = length < 1.4 + 2 / (n + 1)  # no rank-one update while the step size grows quickly
    path = (1 - rates.path) * state.covariance_path
    if is_steady:
        path += math.sqrt(rates.path * (2 - rates.path) * rates.mu_eff) * step
    lost = 0.0 if is_steady else rates.path * (2 - rates.path)
    scaled = np.where(weights >= 0, weights, weights * n / (np.square(white).sum(-1) + 1e-8))
    covariance = (1 - rates.rank_one * (1 - lost) - rates.rank_mu * weights.sum()) * state.covariance
    covariance += rates.rank_one * np.outer(path, path) + rates.rank_mu * (scaled[:, None] * y).T @ y
    growth = math.exp(min(1.0, rates.sigma / rates.damping * (length - 1)))
    return Moments(covariance * growth**2, sigma_path, path * growth)


class CovarianceASNG(Optimizer):
    """Choices move as in ASNG, numbers by CMA-ES; both are ranked by the same losses.

    `active` is for choices; numbers learn from all candidates.

    For populations of several candidates. A population of 15 costs about twice the time of plain ASNG up to 50 numbers
    (4 ms), four times that of 100 (7 ms), and with more numbers the third power of their number shows.
    """

    _state: CovarianceState

    def __init__(
        self,
        space: Mapping[str, Variable],
        *,
        population_size: int,
        alpha: float = 1.5,
        initial: Mapping[str, Any] | None = None,
        seed: Seed = None,
    ) -> None:
        self._alpha = alpha  # of choices
        super().__init__(space, population_size=population_size, mirrored=True, initial=initial, seed=seed)

    def _initial_state(self, theta: Array) -> CovarianceState:
        family = self._family
        parts = family._parts if isinstance(family, Joint) else [(family, np.arange(family.variables), slice(None))]
        self._choices = next((part for part in parts if isinstance(part[0], CategoricalFamily)), None)
        normal, self._columns, self._own = next(part for part in parts if isinstance(part[0], NormalFamily))
        assert isinstance(normal, NormalFamily)
        self._normal = normal
        mean, var = normal._mean_and_var(theta[self._own])
        initial: Any = self._origin["initial"]
        is_given = np.array([self._space.names[column] in initial for column in self._columns])
        var = np.where(is_given, var, np.maximum(INITIAL_SPREAD**2 * var, normal._var_min))
        theta = theta.copy()
        theta[self._own] = np.concatenate((mean, mean * mean + var))
        path, gamma, divisor = np.zeros(0), 0.0, 1.0
        if self._choices is not None:
            _, path, gamma, divisor = asng_init(self._choices[0], theta[self._choices[2]], DELTA_INIT)
        n = len(mean)
        return CovarianceState(theta, path, gamma, divisor, np.diag(var), np.zeros(n), np.zeros(n))

    def _sample(self, n: int) -> Array:
        x = super()._sample(n)
        mean, var = self._normal._mean_and_var(self._state.theta[self._own])
        white = (x[:, self._columns] - mean) / np.sqrt(var)
        x[:, self._columns] = mean + white @ _root(self._state.covariance)
        return x

    def _update(self, x: Array, losses: list[float], active: Array | None) -> CovarianceState:
        state, theta = self._state, self._state.theta.copy()
        finite = np.where(np.isfinite(losses), losses, np.inf)
        choices = ASNGState(theta, state.path, state.gamma, state.divisor)
        if self._choices is not None:
            family, columns, own = self._choices
            choices, mask = choices._replace(theta=theta[own]), None if active is None else active[:, columns]
            choices = asng_update(family, choices, x[:, columns], losses, self._alpha, DELTA_INIT, math.inf, mask)
            theta[own] = choices.theta
        if finite.min() == finite.max():  # nothing to learn
            return state
        mean, var = self._normal._mean_and_var(theta[self._own])
        low, high = self._normal._low - mean, self._normal._high - mean
        # What lies beyond a bound has the value at the bound, and would make the distribution ever wider; without any
        # of it the mean would not get there.
        y = np.clip(x[:, self._columns] - mean, low - BEYOND * np.sqrt(var), high + BEYOND * np.sqrt(var))
        rates = rates_of(len(mean), len(losses))
        weights = rank_weights(rates.weights, finite)
        step = np.clip(np.maximum(weights, 0) @ y, low, high)
        moments = cma_update(Moments(*state[4:]), step, y, weights, rates)
        mean, var = mean + step, np.diagonal(moments.covariance)
        theta[self._own] = self._normal.project(np.concatenate((mean, mean * mean + var)))
        scale = np.sqrt(self._normal._mean_and_var(theta[self._own])[1] / var)  # the bounds of standard deviations
        moments = moments._replace(covariance=moments.covariance * scale * scale[:, None])
        return CovarianceState(theta, choices.path, choices.gamma, choices.divisor, *moments)

    def _impossible_part(self, state: CovarianceState) -> str | None:
        _, var = self._normal._mean_and_var(state.theta[self._own])
        is_covariance = np.allclose(state.covariance, state.covariance.T) and np.allclose(
            np.diagonal(state.covariance), var, rtol=1e-6
        )
        return None if is_covariance else "covariance"


def eigen(covariance: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors; of correlations too close to one, nearby ones."""
    std = np.sqrt(np.diagonal(covariance))
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.maximum(values, MIN_EIGENVALUE * float(std.max()) ** 2), vectors


def _root(covariance: Array) -> Array:
    values, vectors = eigen(covariance)
    root: Array = (vectors * np.sqrt(values)) @ vectors.T
    return root
