"""Where nothing is to be learned nothing changes: ties, equal candidates, variables without effect."""

import math

import numpy as np
import pytest

from asng import ASNG, SNG, Adam, Categorical
from tests.helpers.reference import Reference
from tests.helpers.trajectories import CATEGORICAL, MIXED, SPACES, inner, moving_loss, run

# Nothing to learn -----------------------------------------------------------------------------------


@pytest.mark.parametrize("population_size", [2, 3, 5, 16])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_tied_losses_and_identical_candidates_change_nothing(space, population_size):
    optimizer = run(ASNG(space, population_size=population_size, seed=0), 30)
    before, candidates = inner(optimizer), optimizer.ask()
    for losses in (
        [0.1] * population_size,
        [0.0] * population_size,
        [math.nan] * population_size,
        [math.inf, -math.inf] * (population_size // 2 + 1),
    ):
        optimizer.tell(candidates, losses[:population_size])
        assert inner(optimizer) == before
    optimizer.tell([candidates[0]] * population_size, range(population_size))
    assert inner(optimizer) == before


def test_identical_draws_with_rounded_shares_of_ties_change_nothing():
    optimizer = run(ASNG(MIXED, population_size=7, seed=0), 30)
    before, (candidate,) = inner(optimizer), optimizer.ask(1)
    optimizer.tell([candidate] * 7, [1, 1, 1, 2, 2, 2, 3])
    assert inner(optimizer) == before


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([2, 1, 2, 0, 1, 1], [0, 1, 1, 0, 1, 1]),
        ([1, 0, 0, 2, 1, 0, 1], [1, 0, 1, 0, 1, 0, 0]),
        ([1, 2, 2, 1, 2, 2, 2, 2], [0, 0, 0, 1, 1, 1, 1, 0]),
    ],
)
def test_shares_that_cancel_up_to_rounding_change_nothing(losses, chosen):
    optimizer = ASNG({"a": Categorical(range(2))}, seed=0)
    before, draws = inner(optimizer), {c.values["a"]: c for c in optimizer.ask(50)}
    optimizer.tell([draws[choice] for choice in chosen], losses)
    assert inner(optimizer) == before


def test_variables_that_agree_in_all_candidates_stay():
    optimizer = ASNG({"a": Categorical(list("ab")), "b": Categorical(range(50))}, seed=0)
    first = optimizer.ask(1)[0]
    other = next(c for c in optimizer.ask(1000) if c.x[0] == first.x[0] and c.x[1] != first.x[1])
    optimizer.tell([first, other], [1, 2])
    assert optimizer.theta[:2].tolist() == [0.5, 0.5]
    assert optimizer.theta[2 + int(first.x[1])] > 1 / 50 > optimizer.theta[2 + int(other.x[1])]


def test_only_the_order_of_the_losses_matters():
    plain, transformed = ASNG(MIXED, population_size=5, seed=3), ASNG(MIXED, population_size=5, seed=3)
    run(plain, 200)
    run(transformed, 200, loss=lambda x, step: math.exp(moving_loss(x, step)) - 1e3)
    assert inner(plain) == inner(transformed)


# Variables without effect ---------------------------------------------------------------------------


def random_sets(space, n, generator):
    """Per candidate a set of names; sometimes none, sometimes all."""
    return [{name for name in space if generator.random() < share} for share in generator.choice([0, 0.5, 0.9, 1], n)]


@pytest.mark.parametrize("population_size", [2, 3, 8])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_what_is_not_active_is_left_out_as_in_the_formula(space, population_size):
    optimizer, reference = ASNG(space, population_size=population_size, seed=1), Reference(space)
    generator = np.random.default_rng(2)
    for step in range(200):
        candidates = optimizer.ask()
        losses = [moving_loss(c.x, step) for c in candidates]
        active = random_sets(space, population_size, generator)
        optimizer.tell(candidates, losses, active=active)
        reference.update(
            [c.x.tolist() for c in candidates], losses, [[name in names for name in space] for names in active]
        )
    np.testing.assert_allclose(optimizer.theta, reference.flat(reference.theta), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(optimizer.gamma, reference.gamma, rtol=1e-7)
    np.testing.assert_allclose(optimizer.delta, reference.delta_init / reference.divisor, rtol=1e-7)


@pytest.mark.parametrize("method", [ASNG, SNG, Adam])
@pytest.mark.parametrize("population_size", [2, 5])
def test_all_active_is_the_default(method, population_size):
    one, other = (method(MIXED, population_size=population_size, seed=3) for _ in range(2))
    for step in range(100):
        candidates = one.ask()
        losses = [moving_loss(c.x, step) for c in candidates]
        one.tell(candidates, losses)
        other.tell(other.ask(), losses, active=[set(MIXED)] * population_size)
    np.testing.assert_allclose(one.theta, other.theta, rtol=1e-7, atol=1e-9)
    assert not np.array_equal(one.theta, method(MIXED, population_size=population_size, seed=3).theta)


@pytest.mark.parametrize("method", [ASNG, SNG, Adam])
def test_a_variable_active_nowhere_stays_and_none_at_all_changes_nothing(method):
    optimizer = method(CATEGORICAL, seed=0)
    before = optimizer.state_dict()["state"]
    for step in range(20):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [moving_loss(c.x, step) for c in candidates], active=[set(), set()])
    assert optimizer.state_dict()["state"] == before
    for step in range(20):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [moving_loss(c.x, step) for c in candidates], active=[{"c"}, {"c", "one"}])
    after = optimizer.distribution()
    np.testing.assert_allclose(after["a"], 1 / 3, rtol=1e-12)
    np.testing.assert_allclose(after["b"], 1 / 2, rtol=1e-12)
    assert np.ptp(after["c"]) > 0.01


def test_active_names_that_are_unknown_or_too_few_change_nothing():
    optimizer = ASNG(CATEGORICAL, seed=0)
    candidates = optimizer.ask()
    before = optimizer.state_dict()
    for active in ([{"a"}, {"z"}], [{"a"}], [{"a"}] * 3):
        with pytest.raises(ValueError, match="active"):
            optimizer.tell(candidates, [1, 2], active=active)
        assert optimizer.state_dict() == before
