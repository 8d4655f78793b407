"""The categorical family: the formulas of whitening and projection, and its draws to the boundaries."""

import math

import numpy as np
import pytest

from asng import CategoricalFamily
from tests.helpers.family_cases import probabilities
from tests.helpers.family_checks import generator

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
def test_the_categorical_root_is_that_of_the_papers_fisher_matrix(m):
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


def test_where_no_probability_exceeds_the_smallest_all_become_equal():
    family = CategoricalFamily([2, 1, 3])
    below = np.array([-1.0, 0.25, -7.0, -1e9, 0.0, 0.25])
    np.testing.assert_allclose(family.project(below), [1 / 2, 1 / 2, 1, 1 / 3, 1 / 3, 1 / 3], rtol=1e-14)


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
    with pytest.raises(ValueError, match="counts must be a list of numbers of choices from 1 to 100,000, got"):
        CategoricalFamily(counts)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64])
def test_counts_of_any_whole_type_make_the_same_family(kind):
    expected, family = CategoricalFamily([100]), CategoricalFamily([kind(100)])
    theta = np.random.default_rng(0).random(100)
    np.testing.assert_array_equal(family.initial(), expected.initial())
    np.testing.assert_array_equal(family.project(theta), expected.project(theta))
