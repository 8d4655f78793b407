"""What users hand in: what becomes a number, and what is refused with its name, its value and the cure."""

import math
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asng.checks import count, finite, flag, floats, ordered, positive, whole

NO_WHOLE_NUMBERS = [True, np.True_, 1.0, np.float64(2), "3", None, 1j, [1], math.nan]


def refused(message, call, *values, **settings):
    """The check refuses the values, and says exactly this."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(*values, **settings)


@given(st.integers())
def test_a_whole_number_stays_as_it_is(number):
    assert whole(number) == number


@pytest.mark.parametrize("number", [np.int8(-3), np.uint64(2**63), np.array(5)])
def test_whole_numbers_of_numpy_become_ints(number):
    assert type(whole(number)) is int
    assert whole(number) == number


@pytest.mark.parametrize("value", NO_WHOLE_NUMBERS, ids=repr)
def test_what_only_looks_like_a_whole_number_is_none(value):
    assert whole(value) is None


def test_a_count_is_a_whole_number_from_its_least_on():
    assert count(2, "samples", least=2) == 2
    assert type(count(np.int64(7), "samples", least=2)) is int
    refused("samples must be at least 2, got 1", count, 1, "samples", least=2)
    refused("samples must be a whole number, got 2.0", count, 2.0, "samples", least=2)
    refused("n must be a whole number, got True", count, True, "n", least=0)


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_a_flag_is_true_or_false_and_nothing_else(value):
    assert type(flag(value, "log")) is bool
    assert flag(value, "log") == value


@pytest.mark.parametrize("value", [1, 0, None, "no", np.array(True), []], ids=repr)
def test_what_is_merely_true_is_no_flag(value):
    refused(f"log must be True or False, got {value!r}", flag, value, "log")


def test_a_setting_lies_above_one_bound_and_reaches_to_the_other():
    assert positive(np.float32(0.5), "rate") == 0.5
    assert positive(1e9, "alpha", above=1, most=1e9) == 1e9
    assert positive(math.inf, "delta_max") == math.inf
    refused("rate must be a number above 0, got 0", positive, 0, "rate")
    refused("alpha must be a number above 1 and at most 1e+09, got 1.0", positive, 1.0, "alpha", above=1, most=1e9)
    refused("alpha must be a number above 1 and at most 1e+09, got inf", positive, math.inf, "alpha", above=1, most=1e9)


@pytest.mark.parametrize("value", [math.nan, "fast", None, 1j, [1, 2], -1])
def test_a_setting_that_is_no_such_number_is_refused_by_name(value):
    refused(f"rate must be a number above 0, got {value!r}", positive, value, "rate")


def test_a_long_setting_is_named_in_short():
    refused(f"rate must be a number above 0, got 1{'0' * 39}", positive, 10**400, "rate")


def test_bounds_are_finite_and_in_order():
    ordered(-1, 0.5)
    cure = "swap them or fix the value outside"
    refused(f"low < high must hold, got low=3 and high=2; {cure}", ordered, 3, 2)
    refused(f"low < high must hold, got low=3 and high=3; {cure}", ordered, 3, 3)
    refused("bounds must be finite, got low=-inf and high=0", ordered, -math.inf, 0)
    refused("bounds must be finite, got low=0 and high=nan", ordered, 0, math.nan)


def test_finite_numbers_become_an_array_of_their_own():
    given = np.array([1.0, 2.0])
    result = finite(given, "theta")
    result[0] = 5.0
    assert given.tolist() == [1.0, 2.0]
    assert finite([[1], [2]], "theta").dtype == np.float64
    assert finite([[1], [2]], "theta").shape == (2, 1)


@pytest.mark.parametrize("value", [["a"], [[1], [2, 3]], [10**400], [1j], {}], ids=str)
def test_what_is_no_array_of_numbers_is_refused(value):
    refused(f"theta must be numbers, got {value!r}", finite, value, "theta")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_numbers_that_are_not_finite_are_refused(value):
    refused(f"theta must be finite, got {[0.5, value]}", finite, [0.5, value], "theta")


@given(st.lists(st.floats() | st.integers() | st.booleans()))
@example([-math.inf, 1.0])
def test_losses_stay_as_they_are_where_they_are_finite_and_are_worst_elsewhere(losses):
    def slow(loss):
        try:
            return float(loss) if math.isfinite(loss) else math.inf
        except OverflowError:
            return math.inf

    assert floats(losses) == floats(tuple(losses)) == floats(loss for loss in losses) == [slow(loss) for loss in losses]


def test_an_int_beyond_all_floats_is_as_bad_as_infinity():
    assert floats([10**400, -(10**400), 1]) == [math.inf, math.inf, 1.0]


def test_finite_losses_with_an_infinite_sum_are_kept():
    assert floats([1e308, 1e308]) == [1e308, 1e308]


def test_losses_may_be_an_array():
    losses = floats(np.array([0.5, np.nan], dtype=np.float32))
    assert losses == [0.5, math.inf]
    assert all(type(loss) is float for loss in losses)


@pytest.mark.parametrize("losses", ["12", b"12", {1.0}, frozenset({1.0}), {0: 1.0}, 0.5, None, np.array(0.5)], ids=repr)
def test_losses_without_an_order_are_refused(losses):
    refused(f"tell takes a list of losses, in the order of the candidates, got {losses!r}", floats, losses)


@pytest.mark.parametrize("loss", ["low", None, [2], 1j], ids=repr)
def test_a_loss_that_is_no_number_is_refused(loss):
    refused(f"losses must convert to float, got {loss!r}", floats, [1.0, loss])
