"""The updates of ASNG against a slow reference written out from the formulas, one run or many as rows."""

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asng import ASNG, Categorical, Integer, Real
from asng.optimizer import ASNGState, asng_init, asng_update, natural_gradient, rank_utilities
from asng.space import family_of
from tests.helpers.reference import Reference, slow_utilities
from tests.helpers.trajectories import CATEGORICAL, INTEGER, MIXED, REAL, SPACES, moving_loss, run

# Rank utilities -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1, 2], [1, -1]),
        ([2, 1], [-1, 1]),
        ([5, 6, 7], [1, 0, -1]),
        ([4, 3, 2, 1], [-1, 0, 0, 1]),
        ([1, 2, 3, 4, 5], [1, 1, 0, -1, -1]),
        (range(16), [1] * 4 + [0] * 8 + [-1] * 4),
        ([1, 1, 3, 4, 5], [1, 1, 0, -1, -1]),
        ([1, 2, 2, 4], [1, 0, 0, -1]),
        ([1, 1, 2, 3], [0.5, 0.5, 0, -1]),
        ([-1, -1, -2], [-0.5, -0.5, 1]),
        ([0, 0, 0, 1], [1 / 3, 1 / 3, 1 / 3, -1]),
        ([math.nan, 1], [-1, 1]),
        ([-math.inf, 1], [-1, 1]),
        ([math.inf, math.nan, 2, 1], [-0.5, -0.5, 0, 1]),
    ],
)
def test_best_quarter_gains_worst_quarter_loses_and_ties_share(losses, expected):
    np.testing.assert_array_equal(rank_utilities(np.array(losses, dtype=float)), expected)
    np.testing.assert_array_equal(rank_utilities([float(loss) for loss in losses]), expected)


few = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 1e300, -1e-300, math.nan, math.inf, -math.inf])


@given(st.lists(few | st.floats(width=16), min_size=2, max_size=40))
def test_utilities_equal_the_obvious_version(losses):
    np.testing.assert_allclose(rank_utilities(np.array(losses)), slow_utilities(losses), rtol=0, atol=1e-15)
    np.testing.assert_allclose(rank_utilities(losses), slow_utilities(losses), rtol=0, atol=1e-15)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(2, 9), st.data())
def test_utilities_of_stacked_runs_are_those_of_each_run(runs, more, n, data):
    flat = data.draw(st.lists(few, min_size=runs * more * n, max_size=runs * more * n))
    losses = np.array(flat).reshape(runs, more, n)
    rows = [[rank_utilities(row) for row in block] for block in losses]
    np.testing.assert_array_equal(rank_utilities(losses), rows)


@pytest.mark.parametrize("n", range(2, 41))
@pytest.mark.parametrize("loss", [0.1, 0.0, -3.7, math.nan])
def test_tied_losses_have_no_utility_at_all(n, loss):
    assert not rank_utilities(np.full(n, loss)).any()
    assert not rank_utilities(np.full((3, n), loss)).any()


@given(st.lists(few, min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_utilities_follow_their_losses_and_sum_to_zero(losses, random):
    order = list(range(len(losses)))
    random.shuffle(order)
    utilities = rank_utilities(np.array(losses))
    np.testing.assert_array_equal(rank_utilities(np.array(losses)[order]), utilities[order])
    assert abs(utilities.sum()) < 1e-12


@pytest.mark.parametrize("losses", [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [1.0, 2.0, 3.0]])
def test_utilities_belong_to_the_caller(losses):
    first = rank_utilities(losses)
    expected = first.copy()
    with contextlib.suppress(ValueError):  # read-only is as good
        first += 5.0
    second = rank_utilities(losses).copy()
    with contextlib.suppress(ValueError):
        first -= 5.0  # so that a failure stays in this test
    np.testing.assert_array_equal(second, expected)


def test_utilities_leave_the_losses_alone():
    losses = np.array([math.nan, 1.0, math.inf])
    rank_utilities(losses)
    np.testing.assert_array_equal(losses, [math.nan, 1.0, math.inf])


# Against the formulas -------------------------------------------------------------------------------


def assert_follows_reference(optimizer, reference, steps, loss=moving_loss):
    for step in range(steps):
        candidates = optimizer.ask()
        losses = [loss(c.x, step) for c in candidates]
        optimizer.tell(candidates, losses)
        reference.update([c.x.tolist() for c in candidates], losses)
    rounding = 1e-7 if any(isinstance(v, Real) for v in reference.space) else 1e-9  # mean^2 over var goes up to 2.5e5
    np.testing.assert_allclose(optimizer.theta, reference.flat(reference.theta), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(optimizer.path, reference.flat(reference.path), rtol=0, atol=rounding)
    np.testing.assert_allclose(optimizer.gamma, reference.gamma, rtol=1e-9)
    np.testing.assert_allclose(optimizer.delta, reference.delta_init / reference.divisor, rtol=1e-9)


@pytest.mark.parametrize("population_size", [2, 3, 16])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_trajectory_equals_the_formulas(space, population_size):
    for steps, seed in ((1, 0), (2, 1), (10, 2), (400, 3)):
        assert_follows_reference(ASNG(space, population_size=population_size, seed=seed), Reference(space), steps)


@pytest.mark.parametrize("space", [INTEGER, REAL, MIXED], ids=["integer", "real", "mixed"])
def test_trajectory_equals_the_formulas_with_independent_draws(space):
    assert_follows_reference(ASNG(space, mirrored=False, population_size=5, seed=0), Reference(space), 300)


@pytest.mark.parametrize("setting", [{"alpha": 1.1}, {"alpha": 3.0}, {"delta_init": 0.01}, {"delta_init": 30.0}])
def test_settings_enter_as_in_the_formulas(setting):
    assert_follows_reference(ASNG(MIXED, seed=0, **setting), Reference(MIXED, **setting), 300)


@pytest.mark.parametrize("delta_init", [1e-3, 0.1])
def test_step_size_is_capped_where_beta_reaches_one(delta_init):
    space = {"a": Integer(-5, 5), "b": Integer(0, 3)}  # the answer is a corner, so the signal never ends
    optimizer, reference = ASNG(space, delta_init=delta_init, seed=0), Reference(space, delta_init=delta_init)
    largest = 0.0
    for _ in range(400):
        assert_follows_reference(optimizer, reference, 1, loss=lambda x, step: float(sum(x)))
        largest = max(largest, optimizer.delta)
    assert largest == pytest.approx(math.sqrt(reference.n_theta), rel=1e-12)


def test_large_initial_step_starts_at_the_cap():
    assert ASNG({"a": Categorical(range(10))}, delta_init=500.0).delta == pytest.approx(3.0, rel=1e-12)


def test_delta_max_is_honoured():
    space = {str(i): Categorical(range(3)) for i in range(10)}
    optimizer, reference = ASNG(space, delta_max=4.0, seed=0), Reference(space, delta_max=4.0)
    noise = np.random.default_rng(0)
    assert_follows_reference(optimizer, reference, 600, loss=lambda x, step: noise.random())
    assert optimizer.delta == 0.25
    assert run(ASNG(space, seed=0), 600, loss=lambda x, step: noise.random()).delta < 0.2


# Many runs as rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("population_size", [2, 5])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_rows_of_one_array_are_single_runs(space, population_size):
    family, generator = family_of(space), np.random.default_rng(0)
    delta_init, alpha = np.array([[1.0, 0.1, 1e-3], [0.5, 100.0, 1.0]]), np.array([[1.5, 1.1, 3.0], [1.5, 1.5, 2.0]])
    theta = np.broadcast_to(family.initial(), (2, 3, family.size))
    stacked = asng_init(family, theta, delta_init[..., None])
    single = {row: asng_init(family, family.initial(), float(delta_init[row])) for row in np.ndindex(delta_init.shape)}
    for step in range(60):
        x = family.sample(stacked.theta, population_size, generator)
        losses = np.abs(x / (1 + np.abs(x)) - math.sin(step / 20)).sum(-1)
        skipped = generator.random((2, 3)) < 0.3
        losses[skipped] = 1.0
        before = stacked
        options: dict[str, Any] = {"delta_max": 50.0}
        per_run: dict[str, Any] = {"alpha": alpha[..., None], "delta_init": delta_init[..., None]}
        stacked = asng_update(family, before, x, losses, **per_run, **options)
        for row, state in single.items():
            setting: dict[str, Any] = {"alpha": float(alpha[row]), "delta_init": float(delta_init[row]), **options}
            single[row] = asng_update(family, state, x[row], losses[row], **setting)
            for old, new, alone in zip(before, stacked, single[row], strict=True):
                np.testing.assert_allclose(new[row], alone, rtol=1e-9, atol=1e-9)
                if skipped[row]:
                    np.testing.assert_array_equal(new[row], old[row])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 1])
def test_a_pair_with_a_loss_that_is_not_finite_learns_from_the_other(bad, position):
    family = family_of(MIXED)
    x = family.sample(family.initial(), 2, np.random.default_rng(0))
    state = asng_init(family, family.initial(), 1.0)
    updated = []
    for worse in (bad, 9.0):
        losses = [1.0, 1.0]
        losses[position] = worse
        updated.append(asng_update(family, state, x, losses, alpha=1.5, delta_init=1.0, delta_max=math.inf))
    for left, right in zip(*updated, strict=True):
        np.testing.assert_array_equal(left, right)


def test_an_update_leaves_its_arguments_alone():
    family = family_of(MIXED)
    theta = family.initial()
    state = ASNGState(theta, np.zeros_like(theta), 0.0, 1.0)
    x, losses = family.sample(theta, 4, np.random.default_rng(0)), np.array([1.0, 2.0, math.nan, 0.0])
    copies = [np.copy(a) for a in (*state, x, losses)]
    asng_update(family, state, x, losses, alpha=1.5, delta_init=1.0, delta_max=math.inf)
    for array, copy in zip((*state, x, losses), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_stacked_runs_with_nothing_to_learn_have_no_direction():
    family = family_of(CATEGORICAL)
    theta = np.stack([family.initial()] * 2)
    x = family.sample(theta, 2, np.random.default_rng(0))
    x[1, 1] = x[1, 0]
    gradient, _, scale = natural_gradient(family, theta, x, np.array([[1.0, 2.0], [1.0, 2.0]]))
    assert scale[0] > 0
    assert scale[1] == 0
    assert not gradient[1].any()
