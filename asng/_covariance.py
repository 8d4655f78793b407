"""The optimizers of black boxes: ASNG for choices, CMA-ES for numbers, as in CatCMA (Hamano et al., GECCO 2024)."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from asng._asktell import Optimizer
from asng._ragged import Array
from asng.families import Bounds, CategoricalFamily, Family, Joint, NormalFamily
from asng.optimizer import ASNG, ASNGState, asng_init, asng_update, share_by_rank
from asng.space import MAX_PRECISION, Variable, family_of, smallest_std

DELTA_INIT = 1.0  # of ASNG
ALPHA, NOISY_ALPHA = 1.1, 1.5  # of ASNG: steps of choices are longer where no noise would drive them back and forth
INITIAL_SPREAD, NOISY_SPREAD = 0.3, 0.2  # standard deviations to start with, as shares of half the range
MEAN_RATE, NOISY_MEAN_RATE = 1.0, 0.5  # of CMA-ES: shorter steps of the mean average noise over more populations
BEYOND = 0.5  # standard deviations that draws lie beyond a bound at most
SHIFT = 0.5  # standard deviations from a mean at a bound to the middle of its draws, beyond the bound
EXACT_STD_FACTOR = 1e-3  # of the smallest standard deviations of reals, where losses have no noise
MIN_EIGENVALUE = 1e-14  # of the largest variance
MAX_SKEW = 1e-9  # of correlations, which are stored twice: how far both may drift apart by rounding
MAX_BETA = 1 / 6  # where there are numbers
MODE_PROB = 0.73  # of all choices together, as in CatCMA: numbers learn little from candidates with other choices
MAX_NUMBERS = 100  # with covariances, which then take four times as long as independent numbers
NOISY_SHARE, MAX_NOISY_SIZE = 40, 1000  # a population of noisy losses is this share of the evaluations, or more


class CovarianceState(NamedTuple):
    """The state besides the random generator; the diagonal of the covariance is also in theta.

    The covariance is in units of half the ranges: in those of raw draws, as in theta, an integer of a wide range would
    vary so much more than a real that float64 could not hold both in one matrix.
    """

    theta: Array  # of choices and numbers
    path: Array  # of choices, as in ASNGState
    gamma: float
    divisor: float
    covariance: Array  # of numbers, in units of half their range (n, n)
    sigma_path: Array  # of steps of the mean, whitened (n,)
    covariance_path: Array  # of steps of the mean, in units of half the range (n,)


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
    return share_by_rank(np.concatenate(([0.0], np.cumsum(weights))), losses)


def cma_update(state: CovarianceState, step: Array, y: Array, weights: Array, rates: Rates) -> CovarianceState:
    """The moments after a step of the mean, from draws y (population, n), less the mean, with their weights.

    The covariance includes the step size, whose changes multiply it and its path.
    """
    n = len(state.covariance)
    values, vectors = decompose(state.covariance)
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
    return state._replace(covariance=covariance * growth**2, sigma_path=sigma_path, covariance_path=path * growth)


class CovarianceASNG(Optimizer):
    """Choices move as in ASNG, numbers by CMA-ES; both are ranked by the same losses, which may be `noisy`.

    Choices ignore candidates in which they were not active. Numbers count as drawn at their mean there, as a covariance
    needs a number from every candidate: the mean stays, but the standard deviation shrinks, as the shorter steps lower
    the step size of all numbers. A losing candidate narrows its active numbers as much as n numbers would together: by
    their own share instead, they stay wider, but conditional black boxes are minimized less exactly (docs/results.md).

    For populations of several candidates. A population of 15 costs about twice the time of plain ASNG up to 50 numbers
    (4 ms), four times that of 100 (7 ms), and with more numbers the third power of their number shows.
    """

    _state: CovarianceState
    _mode_prob: ClassVar[float | None] = MODE_PROB

    def __init__(self, space: Mapping[str, Variable], *, noisy: bool = False, **settings: Any) -> None:
        self._alpha, self._initial_spread, self._mean_rate = ALPHA, INITIAL_SPREAD, MEAN_RATE
        self._real_std_factor = real_std_factor_of(noisy=noisy)
        if noisy:
            self._alpha, self._initial_spread, self._mean_rate = NOISY_ALPHA, NOISY_SPREAD, NOISY_MEAN_RATE
        super().__init__(space, **settings)

    def _initial_state(self, theta: Array) -> CovarianceState:
        family = self._family
        parts = family._parts if isinstance(family, Joint) else [(family, np.arange(family.variables), slice(None))]
        self._choices = next((part for part in parts if isinstance(part[0], CategoricalFamily)), None)
        normal, self._columns, self._own = next(part for part in parts if isinstance(part[0], NormalFamily))
        assert isinstance(normal, NormalFamily)
        self._normal, self._half = normal, np.sqrt(normal._var_max)
        mean, var = normal._mean_and_var(theta[self._own])
        initial: Any = self._origin["initial"]
        is_given = np.array([self._space.names[column] in initial for column in self._columns])
        var = np.where(is_given, var, np.maximum(self._initial_spread**2 * var, normal._var_min))
        theta = theta.copy()
        theta[self._own] = np.concatenate((mean, mean * mean + var))
        path, gamma, divisor = np.zeros(0), 0.0, 1.0
        if self._choices is not None:
            _, path, gamma, divisor = asng_init(self._choices[0], theta[self._choices[2]], DELTA_INIT)
        n = len(mean)
        return CovarianceState(theta, path, gamma, divisor, np.diag(var / normal._var_max), np.zeros(n), np.zeros(n))

    def _sample(self, n: int, generator: np.random.Generator) -> Array:
        x, normal = super()._sample(n, generator), self._normal
        mean, var = normal._mean_and_var(self._state.theta[self._own])
        std = np.sqrt(var)
        white = (x[:, self._columns] - mean) / std
        values, vectors = decompose(self._state.covariance)
        # A mean at a bound draws around a point beyond it. Else half of the values would be off the bound in each such
        # number, and with several of them almost all candidates would lose by that, whatever their other values are.
        # Not at the smallest spread, where the next integer has to be drawn, too. (Under noise means only near bounds.)
        side = 1.0 * (mean >= normal._high) - (mean <= normal._low)
        shift = SHIFT * side * (std - np.sqrt(normal._var_min))
        x[:, self._columns] = mean + shift + white @ ((vectors * np.sqrt(values)) @ vectors.T) * self._half
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
        if active is not None:
            y *= active[:, self._columns]
        rates = rates_of(len(mean), len(losses))
        weights = rank_weights(rates.weights, finite)
        step = np.clip(np.maximum(weights, 0) @ y, low, high)
        state = cma_update(state, step / self._half, y / self._half, weights, rates)
        mean, var = mean + self._mean_rate * step, np.diagonal(state.covariance) * self._normal._var_max
        theta[self._own] = self._normal.project(np.concatenate((mean, mean * mean + var)))
        scale = np.sqrt(self._normal._mean_and_var(theta[self._own])[1] / var)  # the bounds of standard deviations
        covariance = state.covariance * scale * scale[:, None]
        if skew_of(covariance) > MAX_SKEW:  # the difference grows for as long as standard deviations are at a bound
            covariance = (covariance + covariance.T) / 2
        state = state._replace(theta=theta, covariance=covariance)
        return state._replace(path=choices.path, gamma=choices.gamma, divisor=choices.divisor)

    def _impossible_part(self, state: CovarianceState) -> str | None:
        mean, var = self._normal._mean_and_var(state.theta[self._own])
        rounding = 1e-15 * mean * mean  # of E[x^2] in theta
        diagonal = np.diagonal(state.covariance)
        if not (np.abs(diagonal * self._normal._var_max - var) <= 1e-6 * var + rounding).all():
            return "covariance"
        std = np.sqrt(diagonal)
        is_bounded = (np.abs(state.covariance) <= (1 + 1e-6) * std * std[:, None]).all()
        return None if is_bounded and skew_of(state.covariance) < 1e-3 else "covariance"


def skew_of(covariance: Array) -> float:
    """The largest difference between the correlations above and below the diagonal."""
    std = np.sqrt(np.diagonal(covariance))
    return float((np.abs(covariance - covariance.T) / (std * std[:, None])).max())


def decompose(covariance: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors; of correlations too close to one, nearby ones."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.maximum(values, MIN_EIGENVALUE * float(np.diagonal(covariance).max())), vectors


def black_box_optimizer(space: Mapping[str, Variable], *, noisy: bool = False, **settings: Any) -> Optimizer:
    """ASNG for choices alone; with covariances for up to MAX_NUMBERS numbers, and independent numbers beyond that.

    Independent are also those beside a family of the user's own, or a variable of the user's own with bounds for which
    float64 does not hold mean and covariance together.
    """
    marginals = [variable.marginal() for variable in space.values()]
    numbers = [part for part in marginals if isinstance(part, Bounds)]
    factor = real_std_factor_of(noisy=noisy)
    is_wide = any(max(abs(p.low), abs(p.high)) > MAX_PRECISION * smallest_std(p, factor) for p in numbers)
    if not 0 < len(numbers) <= MAX_NUMBERS or is_wide or any(isinstance(part, Family) for part in marginals):
        return capped_asng(space, alpha=NOISY_ALPHA if noisy else ALPHA, **settings)
    return CovarianceASNG(space, noisy=noisy, **settings)


def real_std_factor_of(*, noisy: bool) -> float:
    return 1.0 if noisy else EXACT_STD_FACTOR


def capped_asng(space: Mapping[str, Variable], **settings: Any) -> ASNG:
    """ASNG that, where there are numbers, keeps beta = delta / sqrt(n_theta) at MAX_BETA or less, initially, too.

    A step that moves the mean of a number by d lowers its variance by d^2. Without the cap, a few long steps that
    agree leave the mean behind with no spread to move on. Choices alone are quicker without the cap.
    """
    family = family_of(space)
    max_beta = 1.0 if isinstance(family, CategoricalFamily) else MAX_BETA
    return ASNG(space, delta_init=min(1.0, family.root_dimension * max_beta), max_beta=max_beta, **settings)


def default_population_size(
    space: Mapping[str, Variable], evaluations: int | None = None, *, noisy: bool = False
) -> int:
    """4 + floor(3 ln n) for n variables with more than one value; of few evaluations 0.6 of their root, but 4 or more.

    A distribution that moves seldom learns little before the evaluations are spent. The size is even then, as numbers
    are drawn in pairs. Of many noisy evaluations it is a share: a small population converges on noise, long before the
    evaluations are spent.
    """
    listed = [variable.values() for variable in space.values()]
    n = sum(values is None or len(values) > 1 for values in listed)
    size = 4 + math.floor(3 * math.log(max(n, 1)))
    if evaluations is None:
        return size
    size = min(size, max(4, 2 * math.isqrt(9 * evaluations // 100)))
    return max(size, min(evaluations // NOISY_SHARE, MAX_NOISY_SIZE)) if noisy else size
