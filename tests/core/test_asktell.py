"""Asking and telling: plain candidates, any order, any losses, copies, the best one, and seeds."""
# mypy: disable-error-code="arg-type, attr-defined, index, union-attr"

import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from asng import ASNG, Best, Candidate, Categorical, Real
from tests.helpers.small_space import METHODS, SPACE, loss, run

CHOICES = {"a": Categorical(["x", "y"]), "b": Categorical(["x", "y", "z"])}

# Candidates -----------------------------------------------------------------------------------------


def test_candidates_hold_plain_values_in_the_order_of_the_space():
    for candidate in ASNG(SPACE, seed=0).ask(50):
        assert list(candidate.values) == list(SPACE)
        assert [type(value) for value in candidate.values.values()] == [float, str, int, bool, float]
        assert candidate.x.shape == (5,)
        assert candidate.values == {name: v.decode(x) for (name, v), x in zip(SPACE.items(), candidate.x, strict=True)}
        json.dumps(candidate.values)


def test_raw_draws_are_read_only():
    candidate = ASNG(SPACE, seed=0).ask()[0]
    with pytest.raises(ValueError, match="read-only"):
        candidate.x[0] = 0.0


def test_numbers_come_in_mirrored_pairs_or_not():
    x = np.array([c.x[0] for c in ASNG({"x": Real(-1, 1)}, seed=0).ask(5)])
    np.testing.assert_array_equal(x[0:4:2], -x[1:4:2])
    free = np.array([c.x[0] for c in ASNG({"x": Real(-1, 1)}, mirrored=False, seed=0).ask(4)])
    assert len(set(np.abs(free))) == 4


@pytest.mark.parametrize("population_size", [2, 3, 16])
def test_ask_draws_a_population_or_as_many_as_wanted(population_size):
    optimizer = ASNG(SPACE, population_size=population_size, seed=0)
    assert len(optimizer.ask()) == population_size
    assert [len(optimizer.ask(n)) for n in (1, 2, 7, np.int64(3))] == [1, 2, 7, 3]


def test_values_changed_by_the_caller_change_nothing():
    left, right = ASNG(SPACE, seed=0), ASNG(SPACE, seed=0)
    a, b = left.ask(), right.ask()
    for candidate in a:
        candidate.values.clear()
    left.tell(a, [1, 2])
    right.tell(b, [1, 2])
    assert left.state_dict() == right.state_dict()
    assert left.best == right.best
    left.best.values.clear()
    assert left.best == right.best


def test_candidates_may_come_back_as_lists_of_numbers():
    optimizer, twin = ASNG(SPACE, seed=0), ASNG(SPACE, seed=0)
    candidates = optimizer.ask()
    optimizer.tell([Candidate({}, c.x.tolist()) for c in candidates], [2.0, 1.0])
    twin.tell(twin.ask(), [2.0, 1.0])
    assert optimizer.state_dict() == twin.state_dict()
    assert optimizer.best == twin.best


@pytest.mark.parametrize("kind", [np.float32, np.float16, object, np.longdouble, ">f8", int, bool])
def test_the_distribution_stays_in_float64_whatever_the_draws_are_in(kind):
    optimizer, twin = ASNG(CHOICES, seed=0), ASNG(CHOICES, seed=0)
    draws = [[0, 1], [1, 0]]
    optimizer.tell([Candidate({}, np.array(draw, dtype=kind)) for draw in draws], [2.0, 1.0])
    twin.tell([Candidate({}, draw) for draw in draws], [2.0, 1.0])
    assert optimizer.theta.dtype == np.float64
    assert optimizer.state_dict() == twin.state_dict()


# Telling --------------------------------------------------------------------------------------------


def test_asking_leaves_nothing_pending():
    optimizer = ASNG(SPACE, seed=0)
    before = optimizer.state_dict()["state"]
    for _ in range(20):
        optimizer.ask()
    assert optimizer.state_dict()["state"] == before


def test_candidates_of_earlier_asks_may_be_told_in_any_order_and_mixture():
    optimizer = ASNG(SPACE, seed=0)
    first, second, third = optimizer.ask(), optimizer.ask(5), optimizer.ask()
    optimizer.tell(third, [1, 2])
    optimizer.tell([second[4], first[0], second[1]], [3, 1, 2])
    optimizer.tell(first, [1, 2])
    assert optimizer.best == Best(third[0].values, 1.0)


def test_candidates_told_again_are_learned_from_again():
    """As after a second evaluation under noise."""
    optimizer = ASNG({"op": Categorical(range(5))}, delta_init=0.1, seed=1)
    bad, good = pair = optimizer.ask()
    assert bad.values != good.values
    found = [optimizer.distribution()["op"][good.values["op"]]]
    for losses in ([1, 0], [1, 0], [0, 1]):
        optimizer.tell(pair, losses)
        found.append(optimizer.distribution()["op"][good.values["op"]])
    assert found[0] < found[1] < found[2] > found[3]
    assert optimizer.best == Best(good.values, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_the_order_within_a_tell_does_not_matter(method):
    left, right = method(SPACE, population_size=6, seed=0), method(SPACE, population_size=6, seed=0)
    for _ in range(20):
        a, b = left.ask(), right.ask()
        losses = [loss(c.values) for c in a]
        left.tell(a, losses)
        right.tell(b[::-1], losses[::-1])
        np.testing.assert_allclose(left.theta, right.theta, rtol=1e-9, atol=1e-9)


class Measured:
    def __init__(self, value):
        self.value = value

    def __float__(self):
        return float(self.value)


@pytest.mark.parametrize(
    "convert", [float, np.float32, np.float64, Measured, Decimal, Fraction, np.array, lambda v: np.int64(4 * v)]
)
def test_losses_are_whatever_converts_to_float(convert):
    plain, converted = ASNG(SPACE, population_size=3, seed=0), ASNG(SPACE, population_size=3, seed=0)
    plain.tell(plain.ask(), [0.25, -1.5, 3.0])
    converted.tell(converted.ask(), [convert(0.25), convert(-1.5), convert(3.0)])
    assert plain.state_dict()["state"] == converted.state_dict()["state"]


def test_arguments_may_be_any_iterables():
    plain = ASNG(SPACE, population_size=3, seed=0)
    plain.tell(plain.ask(), [3.0, 1.0, 2.0])
    for candidates, losses in (
        (iter, iter),
        (tuple, np.array),
        (reversed, reversed),
        (lambda c: (x for x in c), tuple),
    ):
        other = ASNG(SPACE, population_size=3, seed=0)
        other.tell(candidates(other.ask()), losses([3.0, 1.0, 2.0]))
        np.testing.assert_allclose(other.theta, plain.theta, rtol=1e-12)
        assert other.best == plain.best


def test_the_callers_lists_stay_untouched():
    optimizer = ASNG(SPACE, population_size=4, seed=0)
    candidates, losses = optimizer.ask(), [2.0, math.nan, 1.0, 3]
    same, array = list(candidates), np.array(losses)
    optimizer.tell(candidates, losses)
    assert all(a is b for a, b in zip(candidates, same, strict=True))
    assert losses[0] == 2.0
    assert math.isnan(losses[1])
    assert losses[2:] == [1.0, 3]
    optimizer.tell(candidates, array)
    np.testing.assert_array_equal(array, losses)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 10**400, np.float32("inf")])
def test_losses_that_are_not_finite_count_as_worst(method, bad):
    left, right = method(SPACE, population_size=3, seed=0), method(SPACE, population_size=3, seed=0)
    left.tell(left.ask(), [1.0, bad, 0.0])
    right.tell(right.ask(), [1.0, 99.0, 0.0])
    assert left.state_dict()["state"] == right.state_dict()["state"]


# The best -------------------------------------------------------------------------------------------


def test_best_is_the_lowest_finite_loss_and_the_first_of_equals():
    optimizer = ASNG(SPACE, seed=0)
    assert optimizer.best is None
    candidates = optimizer.ask(6)
    optimizer.tell(candidates[:2], [math.nan, -math.inf])
    assert optimizer.best is None
    optimizer.tell(candidates[:2], [5.0, math.inf])
    assert optimizer.best == Best(candidates[0].values, 5.0)
    optimizer.tell(candidates[2:5], [7.0, -2.0, -2.0])
    assert optimizer.best == Best(candidates[3].values, -2.0)
    optimizer.tell(candidates[4:], [-math.inf, -2.0])
    assert optimizer.best == Best(candidates[3].values, -2.0)
    assert isinstance(optimizer.best.loss, float)


def test_best_does_not_follow_what_becomes_of_a_candidate_that_traveled():
    optimizer = ASNG(SPACE, seed=0)
    candidates = pickle.loads(pickle.dumps(optimizer.ask()))
    optimizer.tell(candidates, [1.0, 2.0])
    best = optimizer.best
    candidates[0].x[:] = 0
    assert optimizer.best == best


# Seeds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_numbers(method):
    states = [run(method(SPACE, seed=seed), 50).state_dict() for seed in (7, 7, 8)]
    assert states[0] == states[1] != states[2]


def test_seeds_may_be_spawned_and_none_differs_each_time():
    children = np.random.SeedSequence(0).spawn(2)
    draws = [ASNG(SPACE, seed=seed).ask()[0].x.tolist() for seed in (*children, None, None)]
    assert len({tuple(draw) for draw in draws}) == 4


def test_global_random_state_is_neither_read_nor_changed():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    first = ASNG(SPACE, seed=1).ask()[0].x.tolist()
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    assert ASNG(SPACE, seed=1).ask()[0].x.tolist() == first
