"""Variables and spaces: what they accept, how they print, which value a raw draw becomes."""

# mypy: disable-error-code="arg-type, dict-item"
# (wrong arguments are what is tested)

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asng
from asng import Categorical, Custom, Integer, Normal, NormalFamily, Real, Variable
from asng._decoding import Space
from tests.helpers.small_space import Stubborn

INF, NAN = math.inf, math.nan


# Validation: the message names the value, and what would be right.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Categorical([]), "empty.*at least one choice"),
        (lambda: Categorical("relu"), r"must be a list, got 'relu'; write \['relu', \.\.\.\]"),
        (lambda: Categorical(5), r"must be a list, got 5; write \[5, \.\.\.\]"),
        (lambda: Categorical(["a", "b", "a"]), "choice 'a' is repeated.*once"),
        (lambda: Categorical([[1, 2], [3], [1, 2]]), r"choice \[1, 2\] is repeated.*once"),
        (lambda: Categorical([np.ones(2), np.zeros(2), np.ones(2)]), "is repeated.*once"),
        (lambda: Integer(1.0, 3), "low must be an integer, got 1.0; for real numbers use Real"),
        (lambda: Integer(1, "3"), "high must be an integer, got '3'"),
        (lambda: Integer(False, 3), "low must be an integer, got False"),
        (lambda: Integer(1, NAN), "high must be an integer, got nan"),
        (lambda: Integer(5, 5), "low < high must hold, got low=5 and high=5; .*fix the value outside"),
        (lambda: Integer(9, 2), "low < high must hold, got low=9 and high=2; swap them"),
        (lambda: Integer(0, 2**53 + 1), r"2\*\*53 .*low=0 and high=9007199254740993"),
        (lambda: Integer(-(2**53) - 1, 0), r"2\*\*53 .*low=-9007199254740993 and high=0"),
        (lambda: Real("a", 1), "low must be a number, got 'a'"),
        (lambda: Real(0, None), "high must be a number, got None"),
        (lambda: Real(0, INF), "must be finite, got low=0.0 and high=inf"),
        (lambda: Real(NAN, 1), "must be finite, got low=nan"),
        (lambda: Real(1, 1), "low < high must hold, got low=1.0 and high=1.0"),
        (lambda: Real(2, 1), "got low=2.0 and high=1.0; swap them"),
        (lambda: Real(0, 1, log=True), "above 0 on a logarithmic scale, got 0.0; raise it or drop log=True"),
        (lambda: Real(-1, 1, log=True), "above 0 on a logarithmic scale, got -1.0"),
        (lambda: Real(1, 2, log="yes"), "log must be True or False, got 'yes'"),
        (lambda: Real(-1e308, 1e308), r"from -1e\+308 to 1e\+308 is too wide"),
        (lambda: Real(1, 1 + 2**-52), "too narrow"),
        (lambda: Space({}), "space is empty; give it at least one variable"),
        (lambda: Space([Integer(1, 2)]), "a space is a dict of names and variables, got"),
        (lambda: Space({1: Integer(1, 2)}), "names of variables must be strings, got 1"),
        (lambda: Space({"n": 3}), "'n' must be a Categorical, Integer, Real or Custom, got 3"),
        (lambda: Space({"n": Integer}), "'n' must be a Categorical, Integer, Real or Custom, got <class"),
    ],
)
def test_wrong_input_raises_and_names_value_and_cure(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("variable", "prior", "message"),
    [
        (Categorical(["ab", "c", "d"]), [0.5, 0.5], r"\[0.5, 0.5\].*each of the 3 choices"),
        (Categorical(["a", "b"]), [0.5, 0.4], "must be >= 0 and sum to 1, not 0.9"),
        (Categorical(["a", "b"]), [1.5, -0.5], "must be >= 0"),
        (Categorical(["a", "b"]), [NAN, 1], "must be finite, got"),
        (Categorical(["a", "b"]), "ab", "must be numbers, got 'ab'"),
        (Integer(1, 9), 5, r"is \(mean, std\), got 5"),
        (Integer(1, 9), (5, 1, 1), r"is \(mean, std\), got"),
        (Integer(1, 9), (0, 1), r"mean 0 lies outside \[1, 9\]"),
        (Integer(1, 9), (5, 0), "std must be above 0, got 0"),
        (Integer(1, 9), (5, INF), "must be finite, got"),
        (Real(1e-4, 1e-2, log=True), (1, 1), r"mean 1 lies outside \[0.0001, 0.01\]"),
        (Real(0, 1), (0.5, -1), "std must be above 0, got -1"),
    ],
)
def test_wrong_priors_raise_and_name_the_value(variable, prior, message):
    with pytest.raises(ValueError, match=message):
        variable.to_internal(prior)


@pytest.mark.parametrize("make", [lambda: Integer(0, 10**400), lambda: Real(0, 10**400)])
def test_bounds_beyond_any_float_raise_value_error(make):
    with pytest.raises(ValueError, match="high"):
        make()


@pytest.mark.parametrize(
    "choices",
    [
        [np.zeros(2), np.ones(3)],
        [np.ones(2), 1],
        [np.zeros(0), np.ones(1)],
        [(np.zeros(2), 1), (np.ones(2), 1)],
    ],
    ids=["other shapes", "array and scalar", "empty array", "arrays in tuples"],
)
def test_different_arrays_are_different_choices(choices):
    assert len(Categorical(choices).choices) == len(choices)


def test_a_set_has_no_order_and_is_refused():
    with pytest.raises(ValueError, match="order"):
        Categorical({"relu", "tanh"})


# Variables are values: immutable, comparable, printable.


def test_choices_may_be_objects_that_refuse_to_be_arrays():
    choices = [Stubborn(), Stubborn(), [Stubborn()], np.array(5), np.zeros(2)]
    space = Space({"a": Categorical(choices)})
    assert all(space.decode(np.array([[float(i)]]))[0]["a"] is choice for i, choice in enumerate(choices))


@pytest.mark.parametrize("variable", [Categorical(["a", "b"]), Integer(1, 3), Real(0.5, 2.0), Real(1, 2, log=True)])
def test_variables_are_immutable_hashable_and_print_as_they_are_written(variable):
    for field in dataclasses.fields(variable):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(variable, field.name, 7)
    again = eval(repr(variable))
    assert again == variable
    assert hash(again) == hash(variable)


def test_printing():
    assert repr(Categorical(["conv", 3])) == "Categorical(choices=('conv', 3))"
    assert repr(Integer(np.int64(64), 256)) == "Integer(low=64, high=256)"
    assert repr(Real(1, 10, log=True)) == "Real(low=1.0, high=10.0, log=True)"


def test_choices_are_copied():
    choices = ["a", "b"]
    variable = Categorical(choices)
    choices.append("c")
    assert variable.choices == ("a", "b")


def test_bounds_become_plain_numbers():
    integer, real = Integer(np.int32(1), np.uint8(9)), Real(np.float32(0.5), 2)
    assert [type(v) for v in (integer.low, integer.high, real.low, real.high)] == [int, int, float, float]


# Decoding


@pytest.mark.parametrize(
    ("x", "value"),
    [(-5.0, 1), (0.4, 1), (1.5, 2), (2.5, 2), (3.5, 4), (3.4999, 3), (8.6, 9), (9.4, 9), (1e300, 9), (-INF, 1)],
)
def test_integers_are_clipped_then_rounded_half_to_even(x, value):
    assert Integer(1, 9).decode(x) == value
    assert Space({"n": Integer(1, 9)}).decode(np.array([[x]])) == [{"n": value}]


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 2**53), (-(2**53), 2**53), (-(2**53), 0), (2**53 - 9, 2**53), (3, 10**6), (-(10**6), 3), (300_000, 300_009)],
)
def test_integers_are_exact_up_to_2_to_the_53(low, high):
    variable = Integer(low, high)
    space = Space({"n": variable})
    for value in (low, low + 1, low + (high - low) // 3, high - 1, high):
        x, _ = variable.to_internal((value, 1.0))
        assert abs(variable.decode(x) - value) <= (high - low) * 2**-53
        assert space.decode(np.array([[x]])) == [{"n": variable.decode(x)}]
    assert [variable.decode(x) for x in (-INF, variable.marginal().low, variable.marginal().high, INF)] == [
        low,
        low,
        high,
        high,
    ]


@pytest.mark.parametrize(
    ("low", "high", "draws"),
    [
        (1, 9, (1, 9, 0.25)),
        (-250_000, 250_000, (-250_000, 250_000, 0.25)),
        (300_000, 300_999, (-500, 499, 0.25)),  # less the center, which is even
        (10**6, 1_500_000, (-250_000, 250_000, 0.25)),
        (0, 499_999, (-250_000, 249_999, 0.25)),
        (1, 500_000, (-249_999, 250_000, 0.25)),
        (0, 500_001, (-1, 1, 1e-6)),  # float64 holds no smaller deviation beside the mean
    ],
)
def test_draws_of_integers_have_the_units_that_float64_resolves(low, high, draws):
    assert Integer(low, high).marginal() == (*draws, False)  # no real
    assert Integer(low, high).to_external((draws[0], draws[2]))[0] == low


@pytest.mark.parametrize("low", [300_000, 300_001, 300_002, 300_003, -300_009])
def test_integers_far_from_zero_round_half_to_even_wherever_they_are_decoded(low):
    variable = Integer(low, low + 9)
    for x in np.arange(variable.marginal().low, variable.marginal().high, 0.5).tolist():
        assert Space({"n": variable}).decode(np.array([[x]])) == [{"n": variable.decode(x)}]


@pytest.mark.parametrize(("x", "value"), [(-1, 2), (0, 5), (0.5, 6.5), (1, 8), (1.01, 8), (-INF, 2), (INF, 8)])
def test_reals_map_minus_one_to_one_onto_their_range(x, value):
    assert Real(2, 8).decode(x) == value


@pytest.mark.parametrize(
    ("x", "value"), [(-1, 1e-4), (-0.5, 10**-3.5), (0, 1e-3), (1, 1e-2), (-INF, 1e-4), (INF, 1e-2)]
)
def test_log_reals_are_uniform_in_the_logarithm(x, value):
    assert Real(1e-4, 1e-2, log=True).decode(x) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    "variable",
    [
        Real(1e-300, 1e300, log=True),
        Real(5e-324, 1.7e308, log=True),
        Real(-1e-300, 1e-300),
        Real(-8e307, 8e307),
        Real(1e15, 1e15 + 1),
    ],
    ids=repr,
)
def test_extreme_ranges_stay_in_bounds_and_reach_both_ends(variable):
    values = [variable.decode(x) for x in (-INF, -1e308, -1.0, -0.5, 0.0, 0.5, 1.0, 1e308, INF)]
    assert values == sorted(values)
    assert variable.low <= values[0] <= values[-1] <= variable.high
    assert values[0] == pytest.approx(variable.low, rel=1e-12)
    assert values[-1] == pytest.approx(variable.high, rel=1e-12)


def test_the_middle_of_a_range_over_600_orders_of_magnitude_is_one():
    assert Real(1e-300, 1e300, log=True).decode(0.0) == pytest.approx(1, rel=1e-12)


def test_log_reals_beyond_their_bounds_are_exactly_the_bounds():
    variable = Real(1e-300, 1e300, log=True)
    assert (variable.decode(-2.0), variable.decode(2.0)) == (1e-300, 1e300)


def test_choices_may_be_any_objects_and_come_back_as_themselves():
    objects = [[1, 2], [3, 4], np.arange(2), np.eye(2), {"a": 1}, None, math.sin, Normal, (1, 2), "ab", 5, 2.5]
    space = Space({"object": Categorical(objects), "n": Integer(0, 1)})
    alone = Space({"object": Categorical(objects)})
    for index, choice in enumerate(objects):
        assert Categorical(objects).decode(float(index)) is choice
        assert space.decode(np.array([[index, 0.0]]))[0]["object"] is choice
        assert alone.decode(np.array([[float(index)]]))[0]["object"] is choice


def test_choices_of_equal_lists_or_arrays_are_not_merged_into_one_array():
    rows = Categorical(np.arange(6).reshape(3, 2))
    np.testing.assert_array_equal(Space({"row": rows}).decode(np.array([[2.0]]))[0]["row"], [4, 5])
    assert Space({"row": Categorical([[1, 2]])}).decode(np.zeros((2, 1))) == [{"row": [1, 2]}] * 2


def test_numpy_scalars_become_plain_values_that_json_can_hold():
    variables = {"width": Categorical(np.array([16, 32])), "rate": Categorical([np.float64(0.5)]), "n": Integer(1, 3)}
    values = Space(variables).decode(np.array([[1.0, 0.0, 2.0]]))[0]
    assert json.loads(json.dumps(values)) == {"width": 32, "rate": 0.5, "n": 2}


def test_one_choice_is_a_constant():
    assert Space({"a": Categorical(["only"])}).decode(np.zeros((3, 1))) == [{"a": "only"}] * 3


def test_thousands_of_choices_are_decoded_with_and_without_others_beside_them():
    many = {"many": Categorical(range(5000))}
    others: list[dict[str, Variable]] = [{}, {"few": Categorical([False, True])}, {"n": Integer(0, 1)}]
    for more in others:
        x = np.array([[4999, 1], [7, 0]])[:, : 1 + len(more)]
        assert [tuple(row.values()) for row in Space({**many, **more}).decode(x)] == [tuple(row) for row in x.tolist()]


bounds = st.integers(-(2**17), 2**17)
reals = st.floats(-1e300, 1e300)
integers = st.tuples(bounds, st.integers(1, 1000)).map(lambda b: Integer(b[0], b[0] + b[1]))
linear = st.tuples(reals, reals).filter(lambda b: b[0] < b[1] and 1e-9 < b[1] - b[0] < 1e300).map(sorted)
positive = st.tuples(st.floats(1e-300, 1e300), st.floats(1.1, 1e6)).map(lambda b: Real(b[0], b[0] * b[1], log=True))
choices = st.lists(st.one_of(st.integers(), st.text(), st.none()), min_size=1, max_size=6, unique=True)
variables = st.one_of(
    choices.map(Categorical),
    integers,
    st.tuples(st.integers(-9, 9), st.integers(10, 99)).map(lambda b: Real(*b)),
    positive,
    st.tuples(st.integers(1, 9), st.integers(2, 6)).map(lambda b: Integer(b[0], b[0] + b[1])),
)


@settings(max_examples=200, derandomize=True)
@given(st.lists(variables, min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_decoding_a_space_at_once_equals_decoding_each_variable(kinds, n, seed):
    space = Space({f"v{i}": variable for i, variable in enumerate(kinds)})
    generator = np.random.default_rng(seed)
    x = np.empty((n, len(kinds)))
    for column, variable in enumerate(kinds):
        match variable:
            case Categorical():
                x[:, column] = generator.integers(len(variable.choices), size=n)
            case Integer():  # halves too, and beyond both ends
                x[:, column] = generator.integers(2 * variable.low - 4, 2 * variable.high + 5, size=n) / 2
            case Real():
                x[:, column] = generator.normal(size=n)
    rows = space.decode(x)
    expected = [{f"v{i}": v.decode(float(raw)) for i, (v, raw) in enumerate(zip(kinds, row, strict=True))} for row in x]
    assert rows == expected
    assert [list(row) for row in rows] == [list(space.names)] * n
    assert [[type(v) for v in row.values()] for row in rows] == [[type(v) for v in row.values()] for row in expected]


@settings(max_examples=100, derandomize=True)
@given(linear, st.floats(allow_nan=False))
def test_reals_never_leave_their_bounds(range_, x):
    low, high = range_
    assert low <= Real(low, high).decode(x) <= high


# Prior knowledge: into the units of raw draws and back


@settings(max_examples=100, derandomize=True)
@given(
    st.floats(0, 1), st.floats(1e-3, 1e3), st.sampled_from([Real(-3, 5), Real(1e-5, 1e-1, log=True), Integer(-3, 80)])
)
def test_to_external_undoes_to_internal(position, std, variable):
    mean = min(max(variable.low + position * (variable.high - variable.low), variable.low), variable.high)
    back = variable.to_external(variable.to_internal((mean, std)))
    assert back == (pytest.approx(mean, rel=1e-12, abs=1e-12), pytest.approx(std, rel=1e-12))
    assert type(back.mean) is type(back.std) is float


def test_internal_priors_are_on_the_scale_of_raw_draws():
    assert Integer(0, 100).to_internal((30, 4)) == Normal(30, 4)
    assert Real(0, 10).to_internal((7.5, 1)) == Normal(0.5, 0.2)
    mean, std = Real(1e-4, 1e-2, log=True).to_internal((1e-3, math.log(10)))
    assert (mean, std) == (pytest.approx(0, abs=1e-15), pytest.approx(1))


def test_probabilities_are_checked_and_copied():
    given_ = np.array([0.25, 0.75])
    probabilities = Categorical(["a", "b"]).to_internal(given_)
    given_[0] = 9
    np.testing.assert_array_equal(probabilities, [0.25, 0.75])
    to_external = Categorical(["a", "b"]).to_external(probabilities)
    to_external[0] = 9
    np.testing.assert_array_equal(probabilities, [0.25, 0.75])


# Descriptions identify a space, also in another process.

SPACE_WITH_OBJECTS = """
import json, math, asng
from asng._decoding import Space
def relu(x): return max(x, 0)
class Layer: pass
print(json.dumps(Space({
    "op": asng.Categorical([relu, Layer, Layer(), math.sin, "text", 3, None, [1, 2]]),
    "n": asng.Integer(1, 9), "rate": asng.Real(1e-4, 0.1, log=True),
    "own": asng.Custom(asng.NormalFamily([0], [1], [0.1], mirrored=True)),
}).describe()))
"""


def test_descriptions_are_equal_in_other_processes():
    root = str(Path(asng.__file__).parents[1])
    described = [
        subprocess.run(
            [sys.executable, "-c", SPACE_WITH_OBJECTS],
            env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert described[0] == described[1]
    positions = [described[0].index(f'"{name}"') for name in ("op", "n", "rate", "own")]
    assert positions == sorted(positions)


def test_different_spaces_have_different_descriptions():
    spaces = [
        {"a": Integer(1, 9)},
        {"b": Integer(1, 9)},
        {"a": Integer(1, 8)},
        {"a": Real(1, 9)},
        {"a": Real(1, 9, log=True)},
        {"a": Categorical([1, 9])},
        {"a": Categorical([9, 1])},
        {"a": Categorical(["1", "9"])},
        {"a": Integer(1, 9), "b": Integer(1, 9)},
        {"b": Integer(1, 9), "a": Integer(1, 9)},
    ]
    assert len({json.dumps(Space(space).describe()) for space in spaces}) == len(spaces)


# What a variable knows of its values


@pytest.mark.parametrize(
    ("variable", "values"),
    [(Categorical(["conv", (3, 5), None]), ("conv", (3, 5), None)), (Integer(-1, 2), range(-1, 3))],
    ids=repr,
)
def test_values_are_listed_in_order_and_have_positions(variable, values):
    assert variable.values() == values
    assert [variable.index(value) for value in values] == list(range(len(values)))
    assert all(variable.contains(value) for value in values)
    assert [variable.from_json(json.loads(json.dumps(variable.to_json(value)))) for value in values] == list(values)


@pytest.mark.parametrize("variable", [Categorical([1, "x"]), Integer(1, 3), Real(1, 3)], ids=repr)
@pytest.mark.parametrize("value", [True, 9, "y", None])
def test_what_is_no_value_is_not_contained_and_not_written(variable, value):
    assert not variable.contains(value)
    for convert in (variable.index, variable.to_json, variable.from_json):
        with pytest.raises(ValueError, match=rf"{value!r} is outside of|have no positions"):
            convert(value)


def test_numbers_have_a_range_and_choices_have_none():
    assert Integer(-2, 5).range() == (-2, 5)
    assert Real(0.5, 2).range() == (0.5, 2.0)
    assert Categorical([1, 2]).range() is Custom(NormalFamily([0.0], [1.0], [0.1], mirrored=True)).range() is None
    assert [Real(1, 2, log=True).log, Real(1, 2).log, Integer(1, 2).log] == [True, False, False]


def test_reals_are_not_listed():
    variable: Variable = Real(0, 1)
    assert variable.values() is None
    assert Real(0, 1).contains(0.5)
    assert Real(0, 1).to_json(1) == 1.0
    assert Real(0, 1).log_prob(Normal(0.5, 0.1), 0.5) == 0


def test_log_prob_of_an_integer_is_the_mass_that_is_rounded_to_it():
    variable, normal = Integer(1, 4), Normal(2.0, 1.5)
    draws = np.random.default_rng(0).normal(*normal, 100_000)
    drawn = np.array([variable.decode(x) for x in draws.tolist()])
    for value in variable.values():
        share = (drawn == value).mean()
        assert math.exp(variable.log_prob(normal, value)) == pytest.approx(share, abs=5 * math.sqrt(0.25 / len(draws)))


@pytest.mark.parametrize("low", [0, 10**9, 2**53 - 9, -(2**53)])
def test_log_prob_of_integers_far_from_zero_is_that_of_those_near_it(low):
    near, far = Integer(0, 9), Integer(low, low + 9)
    for value in range(10):
        expected = near.log_prob(Normal(4.0, 1.5), value)
        assert far.log_prob(Normal(low + 4.0, 1.5), low + value) == pytest.approx(expected, rel=1e-9)


def test_log_prob_of_wide_integers_is_the_density():
    wide, normal = Integer(-(2**53), 2**53), Normal(2.0**52, 1e10)
    for value in (2**52 + 1, 2**52 - 10**10):
        density = math.exp(-0.5 * ((value - 2**52) / 1e10) ** 2) / (1e10 * math.sqrt(2 * math.pi))
        assert math.exp(wide.log_prob(normal, value)) == pytest.approx(density, rel=1e-6)
    narrower = Normal(0.0, 2.0**26)  # where the difference of two probabilities is exact enough, too
    assert wide.log_prob(narrower, 2**25) == pytest.approx(wide.log_prob(Normal(0.0, 2**26 + 1), 2**25), rel=1e-6)


def test_custom_values_are_written_if_json_can_restore_them():
    custom = Custom(NormalFamily([0.0], [1.0], [0.1], mirrored=True))
    assert custom.from_json(custom.to_json({"a": [1]})) == {"a": [1]}
    with pytest.raises(ValueError, match=r"\(1, 2\) would be read from JSON as \[1, 2\]"):
        custom.to_json((1, 2))


def test_variables_of_equal_arrays_are_equal():
    one, other = (Categorical([np.zeros(2), np.ones(2)]) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Categorical([np.zeros(2), np.zeros(3)])
    assert one != Integer(0, 1)
