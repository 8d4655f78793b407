"""Families: every check of family_checks, families joined into that of a space, and one's own."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

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
from tests.helpers.family_cases import CASES, categorical_case, normal_case, normal_theta, probabilities
from tests.helpers.family_checks import CHECKS, generator

# Every family


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", CASES)
def test_every_family_passes_every_check(name, check):
    check(CASES[name])


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


def test_all_permutations_of_columns_give_the_same_joint():
    parts = [CategoricalFamily([3]), CategoricalFamily([2]), NormalFamily([0], [1], [0.1], mirrored=False)]
    theta = np.concatenate([part.initial() for part in parts])
    reference = Joint([(part, [i]) for i, part in enumerate(parts)]).sample(theta, 5, generator())
    for order in itertools.permutations(range(3)):
        family = Joint([(part, [column]) for part, column in zip(parts, order, strict=True)])
        np.testing.assert_array_equal(family.sample(theta, 5, generator())[:, list(order)], reference)


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


@pytest.mark.parametrize("low", [0, 10**5, -200_000, 10**9, -(2**53)])
def test_integers_far_from_zero_start_as_wide_as_those_near_it(low):
    assert ASNG({"n": Integer(low, low + 100)}).distribution()["n"] == (low + 50, pytest.approx(50, rel=1e-3))


# What the optimizer may ask of one's own family


def test_custom_takes_a_family_of_one_number():
    for wrong in (CategoricalFamily([2, 2]), "poisson", CategoricalFamily):
        with pytest.raises(ValueError, match="takes a Family that draws one number, got"):
            Custom(wrong)  # type: ignore[arg-type]


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
        optimizer = method({"x": Custom(UnitNormal(copy=copy))}, population_size=3, seed=0)
        for _ in range(20):
            candidates = optimizer.ask()
            optimizer.tell(candidates, [abs(c.values["x"] - 3) for c in candidates])
        states.append(optimizer.state_dict()["state"])
        again = method({"x": Custom(UnitNormal(copy=copy))}, population_size=3)
        again.load_state_dict(optimizer.state_dict())
        assert again.best == optimizer.best
    assert states[0] == states[1]


class Spoiling(UnitNormal):
    """A family that makes something else of its results, where `_spoil` says so."""

    def __init__(self):
        super().__init__(copy=True)
        self._spoil = {}

    def _result(self, method, right):
        return self._spoil.get(method, lambda right: right)(right)

    def statistics(self, x):
        return self._result("statistics", super().statistics(x))

    def whiten(self, theta, gradient):
        return self._result("whiten", super().whiten(theta, gradient))

    def project(self, theta):
        return self._result("project", super().project(theta))


@pytest.mark.parametrize("population_size", [2, 3])
@pytest.mark.parametrize("method", [ASNG, SNG, Adam])
@pytest.mark.parametrize(
    ("spoilt", "result", "message"),
    [
        ("statistics", lambda right: right * math.nan, "natural gradient is not finite"),
        ("statistics", lambda right: np.where(right == right.max(), math.inf, right), "natural gradient is not finite"),
        ("whiten", lambda right: right * math.nan, "natural gradient is not finite"),
        ("whiten", lambda right: right + math.inf, "natural gradient is not finite"),
        ("project", lambda right: right * math.nan, r"theta would be \[nan\].*project of your own family"),
        ("project", lambda right: right + math.inf, r"theta would be \[inf\]"),
        ("project", lambda right: right.astype(np.float32), "1 finite numbers of float64"),
        ("project", lambda right: np.zeros(2), r"theta would be \[0. 0.\], and has to be 1 finite"),
    ],
)
def test_an_update_that_ones_own_family_spoils_is_refused(spoilt, result, message, method, population_size):
    family = Spoiling()
    optimizer = method({"x": Custom(family)}, population_size=population_size, seed=0)
    candidates = optimizer.ask()
    losses = [abs(c.values["x"] - 3) for c in candidates]
    optimizer.tell(candidates, losses)
    before = optimizer.state_dict()
    family._spoil[spoilt] = result
    with pytest.raises(ValueError, match=message):
        optimizer.tell(candidates, losses)
    assert optimizer.state_dict() == before
    family._spoil.clear()
    optimizer.tell(candidates, losses)
    assert optimizer.state_dict() != before


def test_numbers_of_ones_own_family_may_be_too_large_to_square():
    class Large(UnitNormal):
        def initial(self):
            return np.full(1, 1e200)

    optimizer = ASNG({"x": Custom(Large(copy=True))}, seed=0)
    candidates = optimizer.ask()
    optimizer.tell(candidates, [1.0, 2.0])
    assert optimizer.best == (candidates[0].values, 1.0)


def test_likeliest_choices_can_have_a_given_probability_together():
    counts = [2, 3, 1, 5]
    for mode_prob in (0.2, 0.73, 0.9):
        family = CategoricalFamily(counts, mode_prob=mode_prob)
        theta = family.project(family.statistics(np.zeros(4)))
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
        paper = CategoricalFamily(counts).project(family.statistics(np.zeros(4)))
        assert np.prod(theta[first]) >= mode_prob - 1e-12
        assert np.prod(theta[first]) == pytest.approx(max(mode_prob, np.prod(paper[first])))
    with pytest.raises(ValueError, match=r"mode_prob must be a number above 0 and at most 0\.99, got 1"):
        CategoricalFamily(counts, mode_prob=1)
