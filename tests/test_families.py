"""Families: every check of family_checks, then what is particular to each."""

import itertools
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from family_checks import CHECKS, Case, generator

from asng import (
    ASNG,
    SNG,
    Adam,
    Categorical,
    CategoricalFamily,
    Custom,
    Family,
    Integer,
    Joint,
    NormalFamily,
    Real,
    family_of,
)


def probabilities(counts, rows=4, seed=0):
    """Random allowed thetas of a categorical family, from flat to nearly decided."""
    rng = np.random.default_rng(seed)
    concentrations = np.geomspace(20, 0.1, rows)
    thetas = [np.concatenate([rng.dirichlet(np.full(m, c)) for m in counts]) for c in concentrations]
    return CategoricalFamily(counts).project(np.array(thetas))


def categorical_covariance(counts):
    """Supplement B, for all m entries: diag(p) - p p^T in each block."""

    def covariance(theta):
        result = np.zeros((theta.size, theta.size))
        for start, m in zip(np.cumsum(counts) - counts, counts, strict=True):
            own, p = slice(start, start + m), theta[start : start + m]
            result[own, own] = np.diag(p) - np.outer(p, p)
        return result

    return covariance


def normal_theta(means, stds):
    means, stds = np.array(means, dtype=float), np.array(stds, dtype=float)
    return np.concatenate([means, means**2 + stds**2], -1)


def normal_covariance(theta):
    """Supplement B: [var, 2 mean var; 2 mean var, 4 mean^2 var + 2 var^2] for each variable."""
    mean, second = np.split(theta, 2)
    var = second - mean**2
    cross = np.diag(2 * mean * var)
    return np.block([[np.diag(var), cross], [cross, np.diag(4 * mean**2 * var + 2 * var**2)]])


def categorical_case(counts):
    return Case(CategoricalFamily(counts), probabilities(counts), categorical_covariance(counts))


def normal_case(mirrored):
    family = NormalFamily([-2, 0, 900], [2, 9, 1100], [1e-3, 0.25, 0.25], mirrored=mirrored)
    means = [[0, 4.5, 1000], [0, 0, 1000], [-2, 9, 900], [1.3, 2.5, 1000]]
    stds = [[2, 4.5, 100], [1e-3, 0.25, 0.25], [0.5, 1, 10], [1e-2, 0.3, 0.25]]
    return Case(family, normal_theta(means, stds), normal_covariance)


def joint_case(*, nested=False):
    """Columns in disorder, and in the nested form a Joint inside a Joint."""
    categorical, normal = categorical_case([3, 1, 2]), normal_case(mirrored=True)
    family: Family = Joint([(categorical.family, [5, 0, 2]), (normal.family, [1, 4, 3])])
    if nested:
        family = Joint([(normal.family, [0, 6, 2]), (family, [8, 1, 3, 4, 5, 7])])
        parts = [normal, categorical, normal]
    else:
        parts = [categorical, normal]

    def covariance(theta):
        result, start = np.zeros((theta.size, theta.size)), 0
        for part in parts:
            own = slice(start, start + part.family.size)
            result[own, own], start = part.covariance(theta[own]), own.stop
        return result

    return Case(family, np.concatenate([part.thetas for part in parts], -1), covariance)


CASES = {
    "one variable": categorical_case([4]),
    "two of two": categorical_case([2, 2]),
    "one choice": categorical_case([1]),
    "one choice between others": categorical_case([3, 1, 2, 5]),
    "binary": categorical_case([2] * 5),
    "normal mirrored": normal_case(mirrored=True),
    "normal independent": normal_case(mirrored=False),
    "joint": joint_case(),
    "joint of joint": joint_case(nested=True),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", CASES)
def test_every_family_passes_every_check(name, check):
    check(CASES[name])


# Categorical


COUNTS = [[2], [5], [2, 2], [3, 1, 4, 2], [1], [2] * 7, [1, 1, 3]]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_categorical_whitening_is_the_formula_of_the_specification(counts):
    thetas = probabilities(counts)
    gradients = np.concatenate([np.random.default_rng(1).normal(size=(4, m)) for m in counts], -1)
    family = CategoricalFamily(counts)
    starts = np.cumsum(counts) - counts
    for start, m in zip(starts, counts, strict=True):  # entries of a gradient sum to zero in each variable
        gradients[:, start : start + m] -= gradients[:, start : start + m].mean(-1, keepdims=True)
    for theta, gradient in zip(thetas, gradients, strict=True):
        expected = np.zeros(family.size)
        for start, m in zip(starts, counts, strict=True):
            th, g = theta[start : start + m], gradient[start : start + m]
            for j in range(m - 1):
                total = sum(g[k] for k in range(m - 1))
                expected[start + j] = g[j] / math.sqrt(th[j])
                expected[start + j] += math.sqrt(th[j]) * total / (th[m - 1] + math.sqrt(th[m - 1]))
        np.testing.assert_allclose(family.whiten(theta, gradient), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("m", [2, 3, 6])
def test_categorical_root_times_its_transpose_is_the_fisher_information_of_the_paper(m):
    family = CategoricalFamily([m])
    for theta in probabilities([m]):
        free = np.eye(m)[:-1] - np.eye(m)[-1]  # theta_m follows from the others
        root = family.whiten(np.broadcast_to(theta, free.shape), free)[:, :-1]
        fisher = np.diag(1 / theta[:-1]) + 1 / theta[-1]  # section 2.4
        np.testing.assert_allclose(root @ root.T, fisher, rtol=1e-12)


def slow_projection(theta, counts):
    """Section 1 of the specification, variable by variable."""
    n = sum(m > 1 for m in counts)
    result, start = [], 0
    for m in counts:
        th = theta[start : start + m]
        start += m
        if m == 1:
            result += [1.0]
            continue
        smallest = 1 / (n * (m - 1)) if n * (m - 1) > m else 1 / (2 * m)
        th = [max(t, smallest) for t in th]
        total = sum(th)
        result += [t + (1 - total) / (total - m * smallest) * (t - smallest) for t in th]
    return np.array(result)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_categorical_projection_is_the_formula_of_the_specification(counts):
    family = CategoricalFamily(counts)
    starts = np.cumsum(counts) - counts
    for theta in probabilities(counts):
        draws = family.statistics(family.sample(theta, 20, generator()))
        for step in draws[0::2] - draws[1::2]:
            for length in (1e-3, 0.3, 10):
                outside = theta + length * step
                inside = family.project(outside)
                np.testing.assert_allclose(inside, slow_projection(outside, counts), rtol=1e-11, atol=1e-15)
                np.testing.assert_allclose(np.add.reduceat(inside, starts), 1, rtol=1e-14)


@pytest.mark.parametrize(
    ("counts", "smallest"),
    [
        ([2], [1 / 4]),  # 1/(n_c (m - 1)) would be 1
        ([5], [1 / 10]),
        ([100], [1 / 200]),
        ([2, 2], [1 / 4, 1 / 4]),  # would be 1/2, no room
        ([2, 3], [1 / 4, 1 / 4]),
        ([2, 2, 2], [1 / 3] * 3),
        ([2, 1, 1, 2], [1 / 4, 0, 0, 1 / 4]),  # one choice is not counted
        ([1, 3, 3], [0, 1 / 4, 1 / 4]),
        ([5] * 30, [1 / 120] * 30),
        ([2, 3, 4, 5, 6] * 8, [1 / (40 * (m - 1)) for m in [2, 3, 4, 5, 6] * 8]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_smallest_probability_by_number_of_variables_and_choices(counts, smallest):
    family = CategoricalFamily(counts)
    decided = np.concatenate([np.eye(m)[0] for m in counts])
    for lowest, probability in zip(smallest, family.describe(family.project(decided)), strict=True):
        m = len(probability)
        np.testing.assert_allclose(probability[1:], lowest, rtol=1e-13)
        assert probability[0] == pytest.approx(1 - (m - 1) * lowest)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_categorical_draws_are_the_number_of_cumulative_sums_up_to_r(counts):
    family, n = CategoricalFamily(counts), 200
    for theta in probabilities(counts):
        x, uniform = family.sample(theta, n, generator()), generator().random((n, len(counts)))
        for row, r in zip(x, uniform, strict=True):
            for index, number, probability in zip(row, r, family.describe(theta), strict=True):
                reached = sum(cumulative <= number for cumulative in np.cumsum(probability))
                assert index == min(reached, len(probability) - 1)


class Fixed:
    """In place of a generator: its uniform numbers are all the same."""

    def __init__(self, number):
        self.number = number

    def random(self, shape):
        return np.full(shape, self.number)


@pytest.mark.parametrize(("number", "index"), [(0.0, 0), (0.25 - 2**-54, 0), (0.25, 1), (0.5, 2), (1 - 2**-53, 2)])
def test_categorical_draws_at_the_boundaries(number, index):
    theta = np.array([0.25, 0.25, 0.5])
    assert CategoricalFamily([3]).sample(theta, 1, Fixed(number)) == index  # type: ignore[arg-type]
    after_others = np.concatenate([[1.0, 0.5, 0.5], theta])
    assert CategoricalFamily([1, 2, 3]).sample(after_others, 1, Fixed(number))[0, 2] == index  # type: ignore[arg-type]


def test_categorical_draws_stay_in_range_where_the_sums_fall_short_of_one():
    theta = np.full(10, 0.1)  # cumulative sum 0.9999999999999999
    assert CategoricalFamily([10]).sample(theta, 1, Fixed(1 - 2**-53)) == 9  # type: ignore[arg-type]


def test_two_thousand_variables_draw_like_one():
    family = CategoricalFamily([3] * 2000)
    theta = np.tile([0.2, 0.3, 0.5], 2000)
    x = family.sample(theta, 50, generator())
    counts = np.array([(x == k).sum() for k in range(3)])
    expected = x.size * np.array([0.2, 0.3, 0.5])
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    late = (x[:, 1000:] == 0).mean(), (x[:, :1000] == 0).mean()
    assert abs(late[0] - late[1]) < 5 * math.sqrt(2 * 0.2 * 0.8 / (50 * 1000))


def test_the_most_likely_choice_is_the_first_on_ties():
    family = CategoricalFamily([3, 1, 2, 4])
    theta = np.array([0.3, 0.3, 0.4, 1.0, 0.5, 0.5, 0.1, 0.4, 0.1, 0.4])
    np.testing.assert_array_equal(family.mode(theta), [2, 0, 0, 1])


def test_categorical_starts_uniform():
    np.testing.assert_allclose(CategoricalFamily([2, 1, 4]).initial(), [0.5, 0.5, 1, 0.25, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("counts", [[], [0], [2, -1], [[2, 3]]], ids=str)
def test_categorical_counts_are_checked(counts):
    with pytest.raises(ValueError, match="counts must be a list of whole numbers of choices >= 1, got"):
        CategoricalFamily(counts)


# Normal


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


@pytest.mark.parametrize("family", [CategoricalFamily([4]), NormalFamily([-9], [9], [0.1], mirrored=False)])
def test_fisher_is_the_curvature_of_the_divergence(family):
    """KL(theta, theta + h) = h^T F h / 2 + O(h^3), along a few tangent directions."""

    def divergence(one, other):
        if family.dimension == 3:
            return (one * np.log(one / other)).sum()
        (m, s), (n, t) = family.describe(one)[0], family.describe(other)[0]
        return math.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5

    theta = probabilities([4])[1] if family.dimension == 3 else normal_theta([1.5], [0.75])
    for draw in family.statistics(family.sample(theta, 5, generator())):
        h = 1e-3 * (draw - theta)
        curvature = divergence(theta, theta + h) + divergence(theta, theta - h)  # the third order cancels
        white = family.whiten(theta, h)
        assert white @ white == pytest.approx(curvature, rel=1e-4)


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
    with pytest.raises(ValueError, match=r"must hold, got|one length, got"):
        NormalFamily(*bounds, mirrored=True)


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("counts", [None, [3, 2]])
def test_batched_draws_are_the_rows_drawn_one_after_another(counts, mirrored):
    case = categorical_case(counts) if counts else normal_case(mirrored)
    grid = np.stack([case.thetas, case.thetas[::-1]])
    rng = generator()
    rows = [[case.family.sample(theta, 4, rng) for theta in row] for row in grid]
    np.testing.assert_array_equal(case.family.sample(grid, 4, generator()), rows)


# Joint


def test_joint_is_its_parts_side_by_side():
    case = CASES["joint"]
    family, columns = case.family, ([5, 0, 2], [1, 4, 3])
    parts = [CategoricalFamily([3, 1, 2]), normal_case(mirrored=True).family]
    own = [slice(0, 6), slice(6, 12)]
    assert (family.size, family.dimension, family.variables) == (12, 3 + 6, 6)
    for theta in case.thetas:
        rng = generator()
        x = family.sample(theta, 3, generator())
        gradient = family.statistics(x[0]) - family.statistics(x[1])
        for part, at, where in zip(parts, columns, own, strict=True):
            np.testing.assert_array_equal(x[:, at], part.sample(theta[where], 3, rng))
            np.testing.assert_array_equal(family.statistics(x)[:, where], part.statistics(x[:, at]))
            np.testing.assert_array_equal(
                family.whiten(theta, gradient)[where], part.whiten(theta[where], gradient[where])
            )
            np.testing.assert_array_equal(
                family.project(theta + gradient)[where], part.project((theta + gradient)[where])
            )
            np.testing.assert_array_equal(family.mode(theta)[at], part.mode(theta[where]))
            np.testing.assert_array_equal(family.initial()[where], part.initial())
            for column, parameters in zip(at, part.describe(theta[where]), strict=True):
                np.testing.assert_array_equal(family.describe(theta)[column], parameters)


@pytest.mark.parametrize(
    ("columns", "message"),
    [(([0, 1], [0]), "cover 0, 1, 2"), (([0, 1], [3]), "cover 0, 1, 2"), (([0], [1]), "draws 2 numbers")],
)
def test_joint_columns_are_checked(columns, message):
    parts = [CategoricalFamily([2, 2]), NormalFamily([0], [1], [0.1], mirrored=True)]
    with pytest.raises(ValueError, match=message):
        Joint(list(zip(parts, columns, strict=True)))


# The family of a space


def test_the_family_of_a_mixed_space_keeps_the_order_of_the_variables():
    space: dict[str, Any] = {
        "n": Integer(64, 256),
        "op": Categorical(["a", "b", "c"]),
        "rate": Real(1e-4, 1e-1, log=True),
        "skip": Categorical([True, False]),
        "own": Custom(NormalFamily([0], [4], [0.5], mirrored=False)),
    }
    family = family_of(space)
    n, op, rate, skip, own = family.describe(family.initial())
    assert n == (160, 96)
    assert rate == (0, 1)
    assert own == (2, 2)
    np.testing.assert_allclose(op, [1 / 3] * 3)
    np.testing.assert_allclose(skip, [1 / 2] * 2)
    assert (family.variables, family.dimension) == (5, 2 + 1 + 3 * 2)
    x = family.sample(family.initial(), 50, generator())
    assert set(x[:, 1]) == {0, 1, 2}
    assert set(x[:, 3]) == {0, 1}
    assert (x[:, 0] > 3).any()
    assert (np.abs(x[:, 2]) < 5).all()


@pytest.mark.parametrize(
    ("variable", "std_min"), [(Integer(0, 10), 0.25), (Real(-3, 7), 1e-3 * 2), (Real(1e-9, 1, log=True), 1e-3 * 2)]
)
def test_smallest_deviation_of_numbers(variable, std_min):
    family = family_of({"x": variable})
    mean = family.describe(family.initial())[0].mean
    assert family.describe(family.project(family.encode([(mean, 1e-9)])))[0] == (mean, pytest.approx(std_min))


@pytest.mark.parametrize(
    ("space", "dimension"),
    [
        ([Categorical(range(5))] * 30, 120),  # the toy problem
        ([Categorical(range(m)) for i in range(5) for m in (2 + i, 2 + i, 5, 5)] * 2, 140),  # classification
        (
            [Categorical(range(m)) for i in range(1, 21) for m in (6, 3, min(i, 5))] + [Categorical(range(5))],
            214,  # inpainting, categorical
        ),
        (
            [Categorical(range(min(i, 5))) for i in range(1, 22)]
            + [Categorical(range(2)), Integer(1, 3), Integer(64, 256)] * 20,
            174,  # inpainting, integer
        ),
        ([Categorical(["only"])], 0),
    ],
    ids=["toy", "classification", "inpainting cat", "inpainting int", "constant"],
)
def test_free_parameters_of_the_spaces_of_the_paper(space, dimension):
    assert family_of({str(i): variable for i, variable in enumerate(space)}).dimension == dimension


def test_custom_takes_a_family_of_one_number():
    for wrong in (CategoricalFamily([2, 2]), "poisson", CategoricalFamily):
        with pytest.raises(ValueError, match="takes a Family that draws one number, got"):
            Custom(wrong)  # type: ignore[arg-type]


def test_all_permutations_of_columns_give_the_same_joint():
    parts = [CategoricalFamily([3]), CategoricalFamily([2]), NormalFamily([0], [1], [0.1], mirrored=False)]
    theta = np.concatenate([part.initial() for part in parts])
    reference = Joint([(part, [i]) for i, part in enumerate(parts)]).sample(theta, 5, generator())
    for order in itertools.permutations(range(3)):
        family = Joint([(part, [column]) for part, column in zip(parts, order, strict=True)])
        np.testing.assert_array_equal(family.sample(theta, 5, generator())[:, list(order)], reference)


# What the optimizer may ask of one's own family


class UnitNormal(Family):
    """A normal of variance one: T(x) = x and F = 1, so whitening has nothing to do."""

    size = dimension = variables = 1

    def __init__(self, *, copy):
        self.copy = copy

    def initial(self):
        return np.zeros(1)

    def sample(self, theta, n, generator):
        return theta[..., None, :] + generator.standard_normal((*theta.shape[:-1], n, 1))

    def statistics(self, x):
        return x.copy() if self.copy else x

    def whiten(self, theta, gradient):
        return gradient.copy() if self.copy else gradient

    def project(self, theta):
        return theta.copy() if self.copy else theta

    def mode(self, theta):
        return theta.copy() if self.copy else theta

    def describe(self, theta):
        return [float(theta[0])]

    def encode(self, parameters):
        return np.array(parameters, dtype=float)


@pytest.mark.parametrize("method", [ASNG, SNG, Adam])
def test_a_family_may_return_its_arguments_where_nothing_is_to_be_done(method):
    states = []
    for copy in (True, False):
        optimizer = method({"x": Custom(UnitNormal(copy=copy))}, samples=3, seed=0)
        for _ in range(20):
            candidates = optimizer.ask()
            optimizer.tell(candidates, [abs(c.values["x"] - 3) for c in candidates])
        states.append(optimizer.state_dict()["state"])
    assert states[0] == states[1]


@pytest.mark.parametrize("offset", [0, 10**5, -2e5])
def test_integers_far_from_zero_start_as_wide_as_those_near_it(offset):
    low = int(offset)
    family = family_of({"n": Integer(low, low + 100)})
    assert family.describe(family.initial())[0] == (low + 50, pytest.approx(50, rel=1e-3))
