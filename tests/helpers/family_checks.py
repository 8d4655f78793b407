"""What every exponential family has to satisfy: the built-in ones, and one's own.

Describe a family by a `Case` and run `CHECKS` on it:

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_family(check):
        check(Case(MyFamily(), thetas, covariance))
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from asng import Family

SIGMAS = 5  # of the estimate; with fixed seeds, a failure is an error and not bad luck
DRAWS = 20_000


class Case(NamedTuple):
    family: Family
    thetas: Any  # (k, size): several allowed parameters
    covariance: Callable[[Any], Any]  # of the statistics at one theta: the inverse Fisher information


def check_sizes(case):
    family, k = case.family, len(case.thetas)
    assert family.variables >= 1
    assert 0 <= family.dimension <= family.size
    x = family.sample(case.thetas, 3, generator())
    assert family.initial().shape == (family.size,)
    assert x.shape == (k, 3, family.variables)
    assert family.statistics(x).shape == (k, 3, family.size)
    assert family.mode(case.thetas).shape == (k, family.variables)
    assert family.project(case.thetas).shape == case.thetas.shape
    assert family.whiten(case.thetas, tangents(case, case.thetas)).shape == case.thetas.shape
    assert len(family.describe(case.thetas[0])) == family.variables
    for array in (family.initial(), x, family.statistics(x), family.mode(case.thetas)):
        assert array.dtype == np.float64


def check_expectation_of_statistics_is_theta(case):
    """E[T] = theta, for each of several thetas drawn from at once."""
    means, errors = estimate(case.family.statistics(case.family.sample(case.thetas, DRAWS, generator())))
    assert (np.abs(means - case.thetas) <= SIGMAS * errors + 1e-9 * (1 + np.abs(case.thetas))).all()


def check_covariance_of_statistics_is_inverse_fisher(case):
    """E[(T - theta)(T - theta)^T] = F^-1."""
    for theta in case.thetas:
        deviation = case.family.statistics(case.family.sample(theta, DRAWS, generator())) - theta
        products = deviation[:, :, None] * deviation[:, None, :]
        means, errors = estimate(products.reshape(DRAWS, -1))
        expected = case.covariance(theta).ravel()
        assert (np.abs(means - expected) <= SIGMAS * errors + 1e-9 * (1 + np.abs(expected).max())).all()


def check_whitened_statistics_have_unit_covariance(case):
    """A^T F^-1 A = I: as many uncorrelated directions of variance one as there are free parameters."""
    for theta in case.thetas:
        deviation = case.family.statistics(case.family.sample(theta, DRAWS, generator())) - theta
        white = case.family.whiten(np.broadcast_to(theta, deviation.shape), deviation)
        products = white[:, :, None] * white[:, None, :]
        means, errors = estimate(products.reshape(DRAWS, -1))
        means, errors = means.reshape(2 * [case.family.size]), errors.reshape(2 * [case.family.size])
        used = np.diag(means) > 0.5
        assert used.sum() == case.family.dimension
        assert (np.abs(means - np.diag(used)) <= SIGMAS * errors + 1e-6).all()


def check_whitening_is_a_root_of_fisher(case):
    """(A^T G).(A^T H) = G^T F H for any two gradients; with G = F^-1 c that is c^T F^-1 d, exactly.

    All gradients are of this form, also where theta is redundant and F^-1 has no inverse.
    """
    for theta in case.thetas:
        covariance = case.covariance(theta)
        forms = generator().normal(size=(8, case.family.size)) / np.sqrt(np.diag(covariance) + 1e-300)
        forms[:, np.diag(covariance) == 0] = 0  # constants
        white = case.family.whiten(np.broadcast_to(theta, forms.shape), forms @ covariance)
        exact = forms @ covariance @ forms.T
        np.testing.assert_allclose(white @ white.T, exact, rtol=0, atol=1e-6 * np.abs(exact).max())


def check_projection_keeps_what_is_allowed(case):
    np.testing.assert_allclose(case.family.project(case.thetas), case.thetas, rtol=1e-13, atol=1e-15)
    initial = case.family.initial()
    np.testing.assert_allclose(case.family.project(initial), initial, rtol=1e-13, atol=1e-15)


def check_projection_is_idempotent_and_allows_an_update(case):
    """Whatever step is made, the projection is a theta to draw from and to project again."""
    for length in (1e-3, 1, 100):
        outside = case.thetas + length * tangents(case, case.thetas)
        inside = case.family.project(outside)
        assert np.isfinite(inside).all()
        np.testing.assert_allclose(case.family.project(inside), inside, rtol=1e-12, atol=1e-15)
        assert np.isfinite(case.family.whiten(inside, tangents(case, inside))).all()
        assert np.isfinite(case.family.sample(inside, 2, generator())).all()


def check_describe_and_encode_are_inverse(case):
    for theta in case.thetas:
        np.testing.assert_allclose(case.family.encode(case.family.describe(theta)), theta, rtol=1e-12)


def check_batch_axes_are_independent_rows(case):
    """One or two leading axes give what each row gives alone."""
    family = case.family
    rows = case.thetas
    grid = np.stack([rows, rows[::-1]])  # (2, k, size)
    x = family.sample(grid, 3, generator())
    assert x.shape == (*grid.shape[:-1], 3, family.variables)
    gradients = tangents(case, grid)
    for stacked, single in [
        (family.statistics(x), lambda i, j: family.statistics(x[i, j])),
        (family.statistics(x)[..., 1, :], lambda i, j: family.statistics(x[i, j, 1])),
        (family.mode(grid), lambda i, j: family.mode(grid[i, j])),
        (family.whiten(grid, gradients), lambda i, j: family.whiten(grid[i, j], gradients[i, j])),
        (family.project(grid + gradients), lambda i, j: family.project(grid[i, j] + gradients[i, j])),
    ]:
        for i, j in np.ndindex(grid.shape[:-1]):
            np.testing.assert_allclose(stacked[i, j], single(i, j), rtol=1e-12, atol=1e-15)


def check_draws_depend_on_the_generator_alone(case):
    np.random.seed(1)  # noqa: NPY002 (the global state, to see that it stays)
    before = np.random.get_state()[1].copy()  # type: ignore[index] # noqa: NPY002
    first, again = (case.family.sample(case.thetas, 4, generator()) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # type: ignore[index] # noqa: NPY002


def check_arguments_stay_untouched(case):
    theta = case.thetas.copy()
    gradient = tangents(case, theta)
    x = case.family.sample(theta, 2, generator())
    for array in (theta, gradient, x):
        array.flags.writeable = False  # writing raises
    case.family.sample(theta, 2, generator())
    case.family.statistics(x)
    case.family.whiten(theta, gradient)
    case.family.describe(theta[0])
    for result in (
        case.family.project(theta),
        case.family.mode(theta),
        case.family.encode(case.family.describe(theta[0])),
    ):
        result[...] = 0  # a result belongs to the caller
    np.testing.assert_array_equal(theta, case.thetas)


CHECKS = [function for name, function in list(globals().items()) if name.startswith("check_")]


def generator():
    return np.random.default_rng(20190515)


def estimate(rows):
    """Mean and its standard error over the draws, axis -2; two at a time, because they may be mirrored pairs."""
    pairs = (rows[..., 0::2, :] + rows[..., 1::2, :]) / 2
    return pairs.mean(-2), pairs.std(-2, ddof=1) / np.sqrt(pairs.shape[-2])


def tangents(case, thetas):
    """One gradient per theta, of the kind that occurs: a difference of the statistics of two draws."""
    statistics = case.family.statistics(case.family.sample(thetas, 2, generator()))
    return statistics[..., 0, :] - statistics[..., 1, :]
