"""What users hand in: what becomes a number, and what is refused with its name, its value and the cure."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asng._checks import (
    as_finite_array,
    as_float,
    as_float_array,
    as_int,
    as_losses,
    check_bool,
    check_bounds,
    check_float,
    check_int,
)
from tests.helpers.small_space import Stubborn

NO_WHOLE_NUMBERS = [True, np.True_, 1.0, np.float64(2), "3", None, 1j, [1], math.nan]


def refusal(check, *values, **settings):
    """What the check says when it refuses the values."""
    with pytest.raises(ValueError) as error:  # noqa: PT011 (all of what it says is compared)
        check(*values, **settings)
    return str(error.value)


@given(st.integers())
def test_a_whole_number_stays_as_it_is(number):
    assert as_int(number) == number


@pytest.mark.parametrize("number", [np.int8(-3), np.uint64(2**63), np.array(5)])
def test_whole_numbers_of_numpy_become_ints(number):
    assert type(as_int(number)) is int
    assert as_int(number) == number


@pytest.mark.parametrize("value", NO_WHOLE_NUMBERS, ids=repr)
def test_what_only_looks_like_a_whole_number_is_none(value):
    assert as_int(value) is None


def test_a_count_is_a_whole_number_from_its_least_on():
    assert check_int(2, "population_size", min=2) == 2
    assert type(check_int(np.int64(7), "population_size", min=2)) is int
    assert refusal(check_int, 1, "population_size", min=2) == "population_size must be at least 2, got 1"
    assert refusal(check_int, 2.0, "population_size", min=2) == "population_size must be an integer, got 2.0"
    assert refusal(check_int, True, "n", min=0) == "n must be an integer, got True"


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_a_flag_is_true_or_false_and_nothing_else(value):
    assert type(check_bool(value, "log")) is bool
    assert check_bool(value, "log") == value


@pytest.mark.parametrize("value", [1, 0, None, "no", np.array(True), []], ids=repr)
def test_what_is_merely_true_is_no_flag(value):
    assert refusal(check_bool, value, "log") == f"log must be True or False, got {value!r}"


def test_a_setting_lies_above_one_bound_and_reaches_to_the_other():
    assert check_float(np.float32(0.5), "lr") == 0.5
    assert check_float(1e9, "alpha", gt=1, max=1e9) == 1e9
    assert check_float(math.inf, "delta_max") == math.inf
    assert refusal(check_float, 0, "lr") == "lr must be a number above 0, got 0"
    assert (
        refusal(check_float, 1.0, "alpha", gt=1, max=1e9) == "alpha must be a number above 1 and at most 1e+09, got 1.0"
    )
    assert (
        refusal(check_float, math.inf, "alpha", gt=1, max=1e9)
        == "alpha must be a number above 1 and at most 1e+09, got inf"
    )


@pytest.mark.parametrize("value", [math.nan, "fast", "0.5", b"1", True, np.True_, None, 1j, [1, 2], -1])
def test_a_setting_that_is_no_such_number_is_refused_by_name(value):
    assert refusal(check_float, value, "lr") == f"lr must be a number above 0, got {value!r}"


def test_a_long_setting_is_named_in_short():
    assert refusal(check_float, 10**400, "lr") == f"lr must be a number above 0, got 1{'0' * 39}"


def test_bounds_are_finite_and_in_order():
    check_bounds(-1, 0.5)
    cure = "swap them or fix the value outside"
    assert refusal(check_bounds, 3, 2) == f"low < high must hold, got low=3 and high=2; {cure}"
    assert refusal(check_bounds, 3, 3) == f"low < high must hold, got low=3 and high=3; {cure}"
    assert refusal(check_bounds, -math.inf, 0) == "bounds must be finite, got low=-inf and high=0"
    assert refusal(check_bounds, 0, math.nan) == "bounds must be finite, got low=0 and high=nan"


def test_finite_numbers_become_an_array_of_their_own():
    given = np.array([1.0, 2.0])
    result = as_finite_array(given, "theta")
    result[0] = 5.0
    assert given.tolist() == [1.0, 2.0]
    assert as_finite_array([[1], [2]], "theta").dtype == np.float64
    assert as_finite_array([[1], [2]], "theta").shape == (2, 1)


@pytest.mark.parametrize("value", [["a"], [[1], [2, 3]], [10**400], [1j], {}], ids=str)
def test_what_is_no_array_of_numbers_is_refused(value):
    assert refusal(as_finite_array, value, "theta") == f"theta must be numbers, got {value!r}"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_numbers_that_are_not_finite_are_refused(value):
    assert refusal(as_finite_array, [0.5, value], "theta") == f"theta must be finite, got {[0.5, value]}"


@pytest.mark.parametrize(
    "given",
    [[1, 2.5], (1, 2.5), [True, 2.5], [Fraction(1), Decimal("2.5")], np.array([1, 2.5], dtype=np.float32)],
    ids=str,
)
def test_real_numbers_become_an_array_of_float64(given):
    numbers = as_float_array(given)
    assert numbers is not None
    assert numbers.dtype == np.float64
    assert numbers.tolist() == [float(each) for each in given]
    numbers[0] = 7.0
    assert given[0] != 7.0


@pytest.mark.parametrize(
    "given",
    [
        ["1", "2"],
        [b"1"],
        [1j],
        np.array([1j]),
        np.array([1, "2"], dtype=object),
        np.array([1, 2j], dtype=object),
        [[1], [2, 3]],
        [10**400],
        [{}],
        Stubborn(),
        [Stubborn()],
        np.array(["2019"], dtype="datetime64[Y]"),
    ],
    ids=repr,
)
def test_text_complex_and_other_things_are_no_real_numbers(given):
    assert as_float_array(given) is None


@pytest.mark.parametrize(
    "value", [0.5, 1, True, Fraction(1, 2), Decimal("0.5"), np.float32(0.5), np.array(0.5)], ids=repr
)
def test_a_real_number_becomes_a_float(value):
    assert type(as_float(value, "losses must be numbers")) is float
    assert as_float(value, "losses must be numbers") == value


@pytest.mark.parametrize("kind", [int, Fraction])
def test_a_number_beyond_all_floats_is_infinite_and_keeps_its_sign(kind):
    assert as_float(kind(10**400), "") == math.inf
    assert as_float(kind(-(10**400)), "") == -math.inf


@pytest.mark.parametrize("value", ["3.5", b"1", 1j, np.complex64(2), np.array(1j), np.str_("1"), None, [2], Stubborn()])
def test_what_float_takes_or_not_is_refused_where_it_is_no_real_number(value):
    assert refusal(as_float, value, "losses must be real numbers") == f"losses must be real numbers, got {value!r}"


@given(st.lists(st.floats() | st.integers() | st.booleans()))
@example([-math.inf, 1.0])
def test_losses_that_are_not_finite_are_worst(losses):
    def slow(loss):
        try:
            return float(loss) if math.isfinite(loss) else math.inf
        except OverflowError:
            return math.inf

    expected, n = [slow(loss) for loss in losses], len(losses)
    assert as_losses(losses, n) == as_losses(tuple(losses), n) == as_losses((loss for loss in losses), n) == expected


def test_finite_losses_with_an_infinite_sum_are_kept():
    assert as_losses([1e308, 1e308], 2) == [1e308, 1e308]


def test_losses_may_be_an_array():
    losses = as_losses(np.array([0.5, np.nan], dtype=np.float32), 2)
    assert losses == [0.5, math.inf]
    assert all(type(loss) is float for loss in losses)


@pytest.mark.parametrize("losses", ["12", b"12", {1.0}, frozenset({1.0}), {0: 1.0}, 0.5, None, np.array(0.5)], ids=repr)
def test_losses_without_an_order_are_refused(losses):
    assert (
        refusal(as_losses, losses, 2) == f"tell takes a list of losses, in the order of the candidates, got {losses!r}"
    )


@pytest.mark.parametrize(
    ("losses", "counted"),
    [([1.0], "1"), ([1.0] * 5, "5"), (iter([1.0]), "1"), (iter([1.0] * 5), "more than 2"), (np.ones(5), "5")],
)
def test_another_number_of_losses_than_candidates_is_refused(losses, counted):
    expected = f"got 2 candidates and {counted} losses; tell one loss for each candidate"
    assert refusal(as_losses, losses, 2) == expected


def test_losses_without_an_end_are_refused():
    assert "more than 2 losses" in refusal(as_losses, itertools.repeat(1.0), 2)
