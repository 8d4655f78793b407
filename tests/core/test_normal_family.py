"""The normal family: whitening to many digits, mirrored draws, and where projection clips."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from asng import NormalFamily
from tests.helpers.family_cases import normal_theta
from tests.helpers.family_checks import generator


def exact_root_times(theta, gradient):
    """sqrt(F) G by the eigen decomposition of supplement B, E L^-1/2 E^T, with sixty digits."""
    with localcontext() as context:
        context.prec = 60
        mean, second, a, b = (Decimal(float(number)) for number in (*theta, *gradient))
        var = second - mean * mean
        p, q, r = var, 2 * mean * var, 4 * mean * mean * var + 2 * var * var  # F^-1 = [p q; q r]
        gap = ((p - r) ** 2 + 4 * q * q).sqrt()
        result = [Decimal(0), Decimal(0)]
        for eigenvalue in ((p + r + gap) / 2, (p + r - gap) / 2):
            if q:
                vector = (q, eigenvalue - p)
            else:
                vector = (Decimal(1), Decimal(0)) if eigenvalue == p else (Decimal(0), Decimal(1))
            factor = (vector[0] * a + vector[1] * b) / (vector[0] ** 2 + vector[1] ** 2) / eigenvalue.sqrt()
            result = [result[0] + factor * vector[0], result[1] + factor * vector[1]]
        return [float(number) for number in result]


POINTS = [(0, 1), (0, 0.25), (1000, 0.25), (1000, 100), (-3.5, 0.5), (2, 2**-10), (100_000, 0.25), (0, 1e5)]


@pytest.mark.parametrize(("mean", "std"), POINTS)
def test_normal_whitening_is_the_symmetric_root_of_fisher_to_many_digits(mean, std):
    family = NormalFamily([-2e5], [2e5], [2**-10], mirrored=True)
    theta = normal_theta([mean], [std])
    for z in ((1, 0), (0.5, -2), (-1.25, 0.75), (1, -1), (3, 0.125)):
        one, other = (mean + std * np.array([number]) for number in z)  # exact in binary
        gradient = family.statistics(one) - family.statistics(other)
        expected = exact_root_times(theta, gradient)
        np.testing.assert_allclose(family.whiten(theta, gradient), expected, rtol=0, atol=1e-11 * math.hypot(*expected))


@pytest.mark.parametrize(("mean", "std"), POINTS[:6])
def test_normal_whitening_is_the_closed_form_of_the_specification(mean, std):
    family = NormalFamily([-2e5], [2e5], [2**-10], mirrored=True)
    y, u = std * np.array([0.5, -1.25, 2.0]), np.array([1, 0, -1])
    var = std**2
    a, q = (u * y).mean(), (u * (y**2 - var)).mean()
    b = q + 2 * mean * a
    fisher_times = np.array([a / var - mean * q / var**2, q / (2 * var**2)])
    determinant, trace = 1 / (math.sqrt(2) * var**1.5), (2 * mean**2 + var + 0.5) / var**2
    expected = (fisher_times + determinant * np.array([a, b])) / math.sqrt(trace + 2 * determinant)
    white = family.whiten(normal_theta([mean], [std]), np.array([a, b]))
    np.testing.assert_allclose(white, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())
    assert white @ white == pytest.approx(a**2 / var + q**2 / (2 * var**2), rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_mirrored_draws_are_pairs_around_the_mean(n):
    family = NormalFamily([0, -5], [8, 5], [0.25, 0.25], mirrored=True)
    x = family.sample(normal_theta([4, 1], [2, 0.5]), n, generator())
    mean, z = np.array([4, 1]), generator().standard_normal(((n + 1) // 2, 2)) * [2, 0.5]
    expected = np.stack([mean + z, mean - z], 1).reshape(-1, 2)[:n]
    np.testing.assert_allclose(x, expected, rtol=1e-14)


def test_independent_draws_are_not_paired():
    family = NormalFamily([0], [8], [0.25], mirrored=False)
    x = family.sample(normal_theta([4], [2]), 5, generator())
    np.testing.assert_allclose(x, 4 + 2 * generator().standard_normal((5, 1)), rtol=1e-14)


@pytest.mark.parametrize(
    ("mean", "second", "allowed", "var"),
    [
        (5, 25 + 4, 5, 4),
        (5, 25 + 100, 5, 25),  # the deviation is at most half the range
        (5, 25 - 3, 5, 1 / 16),  # and at least std_min
        (-3, 13, 0, 13),  # E[x^2] stays where it can when the mean is clipped
        (-3, 100, 0, 25),
        (11, 125, 10, 25),
        (11, 121, 10, 21),
        (1e6, 1e12, 10, 25),
        (-1e6, 0, 0, 1 / 16),
    ],
)
def test_normal_projection_clips_the_mean_then_the_second_moment(mean, second, allowed, var):
    family = NormalFamily([0], [10], [0.25], mirrored=True)
    projected = family.project(np.array([mean, second], dtype=float))
    np.testing.assert_allclose(projected, [allowed, allowed**2 + var], rtol=1e-14)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1e200, 2e10])
def test_numbers_too_far_from_the_bounds_are_no_draws(number):
    family = NormalFamily([0, -3], [10, 5], [0.25, 0.1], mirrored=True)
    family.statistics(np.array([[1e9, -1e9]]))
    with pytest.raises(ValueError, match="not finite, or too far from the bounds"):
        family.statistics(np.array([[4.0, 0.0], [4.0, number]]))


def test_normal_starts_in_the_middle_as_wide_as_allowed():
    family = NormalFamily([0, -3], [10, 5], [0.25, 0.1], mirrored=True)
    assert family.describe(family.initial()) == [(5, 5), (1, 4)]


@pytest.mark.parametrize(
    "bounds",
    [
        ([1], [1], [0.1]),
        ([2], [1], [0.1]),
        ([0], [1], [0.6]),
        ([0], [math.inf], [1]),
        ([0], [1], [0]),
        ([0], [1], [1, 1]),
        ([], [], []),
    ],
    ids=str,
)
def test_normal_bounds_are_checked(bounds):
    with pytest.raises(ValueError, match=r"must hold, got|one length, got|must be finite, got"):
        NormalFamily(*bounds, mirrored=True)
