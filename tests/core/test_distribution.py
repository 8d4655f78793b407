"""The distribution in the user's units: where prior knowledge starts it, and what is read from it."""

import math

import numpy as np
import pytest

from asng import ASNG, Categorical, Custom, Integer, Normal, Real
from tests.helpers.small_space import METHODS, SPACE, Bounded, Stubborn, run

# What it says ---------------------------------------------------------------------------------------


def test_mode_is_the_most_likely_and_the_first_of_equals():
    space = {"a": Categorical(["x", "y", "z"]), "n": Integer(0, 5), "r": Real(0, 4)}
    assert ASNG(space).mode() == {"a": "x", "n": 2, "r": 2.0}  # 2.5 rounds to even
    initial = {"a": [0.2, 0.4, 0.4], "n": (3.4, 1), "r": (1.25, 0.1)}
    assert ASNG(space, initial=initial).mode() == {"a": "y", "n": 3, "r": pytest.approx(1.25)}


def test_distribution_is_in_the_users_units():
    distribution = ASNG(SPACE).distribution()
    assert list(distribution) == list(SPACE)
    np.testing.assert_allclose(distribution["op"], [1 / 3] * 3)
    assert distribution["n"] == Normal(5.0, 4.0)
    assert distribution["x"] == Normal(0.0, 1.0)
    assert distribution["lr"] == (pytest.approx(10**-2.5), pytest.approx(1.5 * math.log(10)))


def test_views_of_the_state_cannot_be_written():
    optimizer = run(ASNG(SPACE, seed=0), 3)
    for view in (optimizer.theta, optimizer.path):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 0.0
    before = optimizer.state_dict()
    optimizer.distribution()["op"][:] = 0.0
    assert optimizer.state_dict() == before


def test_a_view_taken_earlier_keeps_its_numbers():
    optimizer = ASNG(SPACE, seed=0)
    run(optimizer, 3)
    views = optimizer.theta, optimizer.path
    copies = [view.copy() for view in views]
    run(optimizer, 3)
    for view, copy in zip(views, copies, strict=True):
        np.testing.assert_array_equal(view, copy)
        assert not np.array_equal(copy, optimizer.theta)


# Prior knowledge ------------------------------------------------------------------------------------


PRIOR = {"op": [0.6, 0.3, 0.1], "n": (3.0, 2.0), "lr": (1e-3, 0.5)}


@pytest.mark.parametrize("method", METHODS)
def test_initial_is_where_the_distribution_starts(method):
    distribution = method(SPACE, initial={**PRIOR, "op": [0.5, 0.25, 0.25]}).distribution()
    np.testing.assert_allclose(distribution["op"], [0.5, 0.25, 0.25])  # n_c (m - 1) = 4 allows 1/4 and more
    np.testing.assert_allclose(distribution["n"], (3.0, 2.0))
    np.testing.assert_allclose(distribution["lr"], (1e-3, 0.5))
    np.testing.assert_allclose(distribution["flag"], [0.5, 0.5])


def test_initial_is_projected_into_the_allowed_set_with_a_warning():
    space = {"a": Categorical(["x", "y"]), "b": Categorical(["x", "y"]), "n": Integer(0, 10), "r": Real(0, 1)}
    with pytest.warns(UserWarning, match="becomes") as warned:
        optimizer = ASNG(space, initial={"a": [0.9, 0.1], "n": (10, 1e-9), "r": (0.5, 100)})
    distribution = optimizer.distribution()
    np.testing.assert_allclose(distribution["a"], [0.75, 0.25])
    np.testing.assert_allclose(distribution["n"], (10, 0.25))
    np.testing.assert_allclose(distribution["r"], (0.5, 0.5))
    messages = [str(each.message) for each in warned]
    assert "initial['a'] = [0.9, 0.1] becomes [0.75 0.25]" in messages[0]
    assert "minimum probability, which falls as variables are added" in messages[0]
    assert "initial['n'] = (10, 1e-09) becomes Normal(mean=10.0, std=0.25)" in messages[1]
    assert "initial['r'] = (0.5, 100) becomes Normal(mean=0.5, std=0.5)" in messages[2]
    assert [each.filename for each in warned] == 3 * [__file__]


@pytest.mark.parametrize("variable", [Integer(0, 10**7), Integer(0, 2**53), Real(0, 1e7)])
def test_a_prior_that_is_too_narrow_warns_however_wide_the_range_is(variable):
    with pytest.warns(UserWarning, match=r"initial\['n'\] = \(100, 1\) becomes Normal\(mean=100"):
        optimizer = ASNG({"n": variable}, initial={"n": (100, 1)})
    again = ASNG({"n": variable}, initial=optimizer.distribution())  # without a warning
    assert again.distribution()["n"] == pytest.approx(optimizer.distribution()["n"], rel=1e-3)


def test_initial_is_copied():
    probabilities, numbers = np.array([0.5, 0.25, 0.25]), [3.0, 2.0]
    initial = {"op": probabilities, "n": numbers}
    optimizer = ASNG(SPACE, initial=initial)
    before = optimizer.theta.copy()
    probabilities[:] = 0
    numbers[0] = 9
    initial.clear()
    np.testing.assert_array_equal(optimizer.theta, before)


@pytest.mark.parametrize("steps", [0, 5, 200])
def test_a_distribution_is_fit_for_initial(steps):
    first = run(ASNG(SPACE, seed=0), steps)
    second = ASNG(SPACE, initial=first.distribution())
    np.testing.assert_allclose(second.theta, first.theta, rtol=1e-9, atol=1e-9)


AT_THE_BOUNDS = {
    "choices": Categorical(range(7)),
    "far": Integer(2**17, 2**17 + 2),  # where rounding is as coarse as it gets
    "below": Integer(-(2**18), -(2**18) + 9),
    "wide": Integer(-(2**52), 2**52),
    "narrow": Real(1e6, 1e6 + 1e-3),
    "tiny": Real(1e-300, 1e-299),
    "log": Real(1e-300, 1e300, log=True),
    "own": Custom(Bounded(5)),
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("population_size", [2, 8])
def test_a_distribution_at_its_bounds_is_taken_without_a_warning(population_size, sign):
    optimizer = ASNG(AT_THE_BOUNDS, population_size=population_size, seed=0)
    for _ in range(300):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [sign * sum(c.x) for c in candidates])
        again = ASNG(AT_THE_BOUNDS, initial=optimizer.distribution())  # a warning is an error
        np.testing.assert_allclose(again.theta, optimizer.theta, rtol=1e-3, atol=1e-3)  # as near as a warning allows


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ({"opp": [1, 0, 0]}, "'opp'.*lr, op, n, flag, x"),
        ({"op": [0.5, 0.5]}, r"'op'.*\[0.5, 0.5\].*3"),
        ({"op": [0.5, 0.5, 0.5]}, "'op'.*sum to 1, not 1.5"),
        ({"op": [1.5, -0.5, 0]}, "'op'.*>= 0"),
        ({"op": [math.nan, 0.5, 0.5]}, "'op'.*finite"),
        ({"op": "conv"}, "'op'.*'conv'"),
        ({"op": None}, "'op'.*None"),
        ({"n": 5}, r"'n'.*\(mean, std\)"),
        ({"n": (5, 1, 1)}, r"'n'.*\(mean, std\)"),
        ({"n": (0, 1)}, r"'n'.*0 lies outside \[1, 9\]"),
        ({"n": (5, 0)}, "'n'.*std must be above 0"),
        ({"n": (5, -1)}, "'n'.*std must be above 0"),
        ({"n": (math.inf, 1)}, "'n'.*finite"),
        ({"lr": (1.0, 1)}, "'lr'.*1 lies outside"),
    ],
)
def test_wrong_prior_knowledge_is_refused_by_name(initial, message):
    with pytest.raises(ValueError, match=message):
        ASNG(SPACE, initial=initial)


@pytest.mark.parametrize("name", ["op", "n", "lr"])
@pytest.mark.parametrize("prior", [Stubborn(), ["0.5", "0.3", "0.2"], [1j, 0, 0], np.array([1 + 0j, 1])], ids=repr)
def test_priors_that_are_no_real_numbers_are_refused(name, prior):
    with pytest.raises(ValueError, match=f"initial.'{name}'.*must be numbers"):
        ASNG(SPACE, initial={name: prior})


@pytest.mark.parametrize("prior", [math.nan, None, [1, 2, 3], {}, "wide", Stubborn()], ids=str)
def test_a_prior_that_ones_own_family_cannot_take_is_refused(prior):
    with pytest.raises(ValueError, match="initial"):
        ASNG({"own": Custom(Bounded(5))}, initial={"own": prior})
