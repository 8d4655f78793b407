"""minimize: no more evaluations than asked for, the defaults of black boxes, limits, and what it returns."""

import copy
import functools
import math
import operator
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from statistics import median
from typing import Any

import numpy as np
import pytest

from asng import Categorical, EvaluationError, Integer, Real, minimize
from asng._blackbox import BlackBox
from asng._covariance import black_box_optimizer, capped_asng
from asng._evaluation import CallResult
from tests.helpers.black_boxes import LINE, WIDE, Recorder, sphere
from tests.helpers.trajectories import BLEND, LETTERS, inner, run

# Evaluations


@pytest.mark.parametrize(
    ("evaluations", "population_size"), [(2, None), (3, 2), (7, 2), (9, 4), (5, 4), (4, 10), (100, 3)]
)
def test_minimize_evaluates_exactly_as_often_as_asked(evaluations, population_size):
    f = Recorder()
    result = minimize(f, WIDE, evaluations=evaluations, population_size=population_size, noisy=True, seed=0)
    assert len(f.seen) == result.evaluations == len(result.history) == evaluations
    assert result.loss == min(map(sphere, f.seen)) == sphere(result.values)
    assert result.mode == result.optimizer.mode()
    assert result.stopped == "evaluations"


def test_history_holds_all_evaluations_in_order():
    f = Recorder()
    result = minimize(f, LINE, evaluations=10, seed=0)
    assert [evaluation.values for evaluation in result.history] == f.seen
    assert [evaluation.loss for evaluation in result.history] == [float(sphere(values)) for values in f.seen]


def test_values_that_the_function_changes_stay_as_drawn():
    def change(values):
        values["n"] += 100
        return values["n"]

    result = minimize(change, LINE, evaluations=10, seed=0)
    assert all(-10 <= evaluation.values["n"] <= 10 for evaluation in result.history)
    assert result.loss == result.values["n"] + 100


def test_minimize_finds_the_answer_and_repeats_itself():
    results = [minimize(sphere, WIDE, evaluations=1200, population_size=6, seed=2) for _ in range(2)]
    assert results[0].values == {"n": 4}
    assert results[0].history == results[1].history
    assert inner(results[0].optimizer) == inner(results[1].optimizer)


@pytest.mark.parametrize("population_size", [4, 5])
def test_minimize_of_noisy_losses_is_ask_and_tell(population_size):
    loss = lambda values: abs(values["a"] - 0.3) + abs(values["b"] - 0.7) + values["c"] ** 2  # noqa: E731
    space = {name: Real(0, 1) for name in "abc"}
    settings: dict[str, Any] = {"population_size": population_size, "noisy": True, "seed": 3}
    result = minimize(loss, space, evaluations=20 * population_size, **settings)
    optimizer = black_box_optimizer(space, **settings)
    for _ in range(20):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [loss(candidate.values) for candidate in candidates])
    assert inner(result.optimizer) == inner(optimizer)
    assert result.optimizer.best == optimizer.best


def test_minimize_starts_from_prior_knowledge():
    result = minimize(sphere, LINE, evaluations=2, initial={"n": (4, 0.25)}, seed=0)
    assert 3 <= result.values["n"] <= 5


# Defaults


@pytest.mark.parametrize(
    ("space", "population_size"),
    [
        (LINE, 4),
        (LETTERS, 10),
        (BLEND, 8),
        ({str(i): Categorical(range(5)) for i in range(40)}, 15),
        ({**LETTERS, **{f"one{i}": Categorical(["x"]) for i in range(90)}}, 10),
        ({"one": Categorical(["x"])}, 4),
    ],
    ids=["number", "choices", "both", "many", "single choices", "nothing"],
)
def test_the_population_grows_with_the_logarithm_of_the_variables(space, population_size):
    sizes = [
        inner(minimize(lambda v: len(str(v)), space, evaluations=700, population_size=size, seed=0).optimizer)
        for size in (None, population_size)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("evaluations", "population_size"),
    [(20, 4), (np.int8(100), 6), (300, 10), (500, 12), (700, 14), (10**400, 15)],
)
def test_the_population_is_small_where_evaluations_are_few(evaluations, population_size):
    space = {str(i): Categorical(range(5)) for i in range(40)}
    result = minimize(lambda v: sum(v.values()), space, evaluations=evaluations, target=70, restarts=0, seed=0)
    assert result.optimizer.population_size == population_size


@pytest.mark.parametrize(
    ("evaluations", "population_size"), [(20, 4), (300, 10), (700, 17), (3000, 75), (10**5, 1000), (10**400, 1000)]
)
def test_the_population_of_many_noisy_evaluations_is_a_fortieth_of_them(evaluations, population_size):
    space = {str(i): Categorical(range(5)) for i in range(40)}
    result = minimize(lambda v: sum(v.values()), space, evaluations=evaluations, target=70, noisy=True, seed=0)
    assert result.optimizer.population_size == population_size


@pytest.mark.slow
def test_noisy_evaluations_are_used_and_bring_the_mode_nearer_to_the_optimum():
    place = {"x": Real(0, 1), "y": Real(0, 1)}

    def distance(values):
        return (values["x"] - 0.3) ** 2 + (values["y"] - 0.3) ** 2

    def search(evaluations, seed):
        noise = np.random.default_rng(seed).normal
        return minimize(lambda v: distance(v) + 0.1 * noise(), place, evaluations=evaluations, noisy=True, seed=seed)

    few, many = ([search(evaluations, seed) for seed in range(10)] for evaluations in (300, 3000))
    assert sum(distance(result.mode) for result in many) < sum(distance(result.mode) for result in few) / 3
    assert median(result.evaluations for result in many) > 2000


@pytest.mark.slow
def test_forty_choices_of_five_are_found_in_a_thousand_evaluations():
    space: dict[str, Any] = {str(i): Categorical(range(5)) for i in range(40)}
    wrong = lambda values: sum(value != 2 for value in values.values())  # noqa: E731
    results = [minimize(wrong, space, evaluations=1000, target=0, seed=seed) for seed in range(10)]
    assert [result.loss for result in results] == [0] * 10


@pytest.mark.parametrize("seed", range(5))
def test_one_or_two_numbers_do_not_converge_too_soon(seed):
    assert minimize(sphere, LINE, evaluations=60, seed=seed).values == {"n": 4}
    place = {"x": Real(-5, 5), "y": Real(-5, 5)}
    assert minimize(lambda v: (v["x"] - 2) ** 2 + (v["y"] + 3) ** 2, place, evaluations=400, seed=seed).loss < 0.1


def leading_ones(values):
    """How many bits there are from the first zero on."""
    bits = "".join(map(str, values.values()))
    return len(bits) - len(bits.partition("0")[0])


def test_the_best_so_far_is_ranked_with_the_next_populations():
    """A prefix of ones that was found once is not lost again, or sooner where its loss may have been a lucky one."""
    bits: dict[str, Any] = {str(i): Categorical([0, 1]) for i in range(20)}
    kept = [minimize(leading_ones, bits, evaluations=300, seed=seed).loss for seed in range(6)]
    noisy = [minimize(leading_ones, bits, evaluations=300, noisy=True, seed=seed).loss for seed in range(6)]
    assert kept.count(0) >= 4 > noisy.count(0)


def test_noisy_losses_are_ranked_again_by_the_mean_of_equal_values():
    space = {"n": Categorical([0, 1, 2, 3])}
    box = BlackBox(space, 100, population_size=8, initial=None, seed=0, noisy=True, limits=(), restarts=None)
    draws = dict.fromkeys(range(4), 0)
    for _ in range(16):  # two populations
        trial = box.next_trial()
        assert trial is not None
        n = trial.candidate.values["n"]
        box.record(trial, CallResult([0.0, 3.0, 4.0, 5.0][n] + 10.0 * (n == 0 < draws[n])))  # 0 is lucky once
        draws[n] += 1
    assert min(draws.values()) > 0
    assert draws[0] > 2
    assert [(each.x[0], each.loss) for each in box._recent_best()] == [(1, 3.0), (2, 4.0)]


def test_steps_that_agree_leave_a_spread_to_move_on():
    """Without a cap on the step, the spread is gone after some steps along a slope."""
    deltas = []
    optimizer = capped_asng({name: Real(0, 1000) for name in "abcd"}, population_size=8, seed=0)
    for _ in range(20):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [-candidate.x.sum() for candidate in candidates])
        deltas.append(optimizer.delta)
    assert deltas[0] <= max(deltas) <= math.sqrt(8) / 6 + 1e-12
    assert min(normal.std for normal in optimizer.distribution().values()) > 50
    assert min(optimizer.mode().values()) > 800


def test_more_values_than_a_float_counts_are_minimized():
    integers = {f"n{i}": Integer(0, 9999) for i in range(200)}
    for space in (integers, integers | {"x": Real(0, 1)}):
        assert minimize(lambda values: values["n0"], space, evaluations=30, seed=0).evaluations == 30


# Values that repeat


def test_values_evaluated_before_cost_nothing():
    f = Recorder(lambda values: values["b"])
    space = {"a": Categorical(["x", "y", "z"]), "b": Integer(0, 3)}
    result = minimize(f, space, evaluations=1000, seed=0)
    assert len({tuple(values.items()) for values in f.seen}) == len(f.seen) == result.evaluations <= 12
    assert result.stopped == "nothing new"


def test_noisy_losses_are_not_stored():
    f = Recorder()
    result = minimize(f, LINE, evaluations=200, noisy=True, seed=0)
    assert len(f.seen) == result.evaluations > len({values["n"] for values in f.seen})


@pytest.mark.parametrize("choices", [[[1], [2], [3]], [np.zeros(2), np.ones(2)], [sphere, run], [1, 2.5, "1"]])
def test_any_choices_are_recognized_when_they_repeat(choices):
    f = Recorder(lambda values: 0)
    assert minimize(f, {"it": Categorical(choices)}, evaluations=100, seed=0).evaluations == len(choices)


@pytest.mark.parametrize("executor", [nullcontext(), ThreadPoolExecutor(2)], ids=["here", "threads"])
def test_what_functions_do_to_their_values_changes_no_choice(executor):
    def change(values):
        values["layers"].append(1)
        values["nested"][0]["sizes"].clear()
        values["array"][:] = 7
        return values["n"]

    def limit(values):
        values["layers"].clear()
        return 0

    space: dict[str, Any] = {
        "layers": Categorical([[64], [64, 64]]),
        "nested": Categorical([({"sizes": [1]}, "x"), ({"sizes": [2]}, "y")]),
        "array": Categorical([np.zeros(2), np.ones(2)]),
        "n": Integer(0, 50),
    }
    before = str(space)
    with executor as pool:
        result = minimize(change, space, evaluations=20, limits=[limit], executor=pool, seed=0)
    assert str(space) == before
    assert all(evaluation.values["layers"] in ([64], [64, 64]) for evaluation in result.history)


@pytest.mark.parametrize(
    "choices",
    [
        [[np.zeros(2)], [np.ones(2)]],
        [(np.zeros(2), [1]), (np.ones(2), [1])],
        [{"a": [np.zeros(2)]}, {"a": [np.ones(2)]}],
        [np.array([np.nan, 1]), np.array([np.nan, 2])],
        [[np.array([np.nan])], [np.array([1j * np.nan, 1])], [np.array(["x", "y"])]],
        [np.array([np.zeros(2), None], dtype=object), np.array([np.ones(2), None], dtype=object)],
    ],
    ids=["in lists", "in tuples", "in dicts", "NaN", "NaN in lists", "objects"],
)
def test_copies_of_choices_with_arrays_are_found_again(choices):
    variable = Categorical(choices)
    result = minimize(lambda values: variable.index(values["it"]), {"it": variable}, evaluations=9, seed=0)
    assert sorted(evaluation.loss for evaluation in result.history) == [*range(len(choices))]
    assert Categorical(choices) == Categorical(copy.deepcopy(choices))


def test_other_objects_are_passed_as_they_are():
    """Copies would not be found where objects are compared by identity, and models may be large."""
    objects = [object(), print, Categorical]
    f = Recorder(lambda values: 0)
    minimize(
        f, {"it": Categorical(objects), "inside": Categorical([[each] for each in objects])}, evaluations=20, seed=0
    )
    assert {id(values["it"]) for values in f.seen} == {id(each) for each in objects}
    assert {id(values["inside"][0]) for values in f.seen} == {id(each) for each in objects}


def test_a_choice_that_holds_itself_is_refused():
    loop: list[Any] = [1]
    loop.append(loop)
    with pytest.raises(ValueError, match="a choice holds itself, or is nested too deeply; give a flat one"):
        minimize(lambda values: 0, {"it": Categorical([loop, [2]])}, evaluations=9, seed=0)


def test_a_real_at_its_bound_is_evaluated_once():
    f = Recorder(lambda values: values["x"])
    minimize(f, {"x": Real(0, 1)}, evaluations=100, seed=0)
    assert sum(values["x"] == 0 for values in f.seen) == 1


# Values without effect


def test_values_without_effect_are_not_learned_from():
    space: dict[str, Any] = {"a": Categorical(range(4)), "b": Categorical(range(4)), "c": Categorical(range(4))}

    def loss_and_active(values):
        names = {"a", "b"} if values["a"] == 1 else ["a"]
        return abs(values["a"] - 1) + (values["a"] == 1 and values["b"] != 2), names

    for more in ({}, {"x": Real(0, 1)}):
        result = minimize(loss_and_active, space | more, evaluations=200, noisy=True, seed=0)
        probabilities = result.optimizer.distribution()
        assert probabilities["c"].tolist() == [0.25] * 4
        assert probabilities["a"][1] > 0.5
        assert probabilities["b"][2] > 0.5


def test_numbers_without_effect_count_at_their_mean():
    """The mean stays, but the standard deviation shrinks."""
    space = {"x": Real(0, 1), "y": Real(0, 1), "n": Integer(0, 10)}
    result = minimize(lambda values: (abs(values["x"] - 0.2), {"x"}), space, evaluations=60, seed=0, restarts=0)
    distribution = result.optimizer.distribution()
    assert distribution["x"].mean == pytest.approx(0.2, abs=0.05)
    assert distribution["y"].mean == pytest.approx(0.5)
    assert distribution["n"].mean == pytest.approx(5)
    assert distribution["y"].std < 0.15  # at the start


def test_numbers_of_the_branches_that_lose_do_not_disturb_the_others():
    space: dict[str, Any] = {"branch": Categorical(range(4))}
    space |= {f"x{branch}{i}": Real(0, 1) for branch in range(4) for i in range(3)}

    def loss_and_active(values):
        own = {f"x{values['branch']}{i}" for i in range(3)}
        return 0.1 * values["branch"] + sum((values[name] - 0.3) ** 2 for name in own), {"branch", *own}

    losses = [minimize(loss_and_active, space, evaluations=200, seed=seed).loss for seed in range(5)]
    assert median(losses) < 0.001


def test_names_of_all_values_mean_as_much_as_none():
    space: dict[str, Any] = {name: Categorical(range(5)) for name in "abcdefgh"} | {"x": Real(0, 1)}
    plain = minimize(lambda values: sum(values.values()), space, evaluations=60, seed=3)
    told = minimize(lambda values: (sum(values.values()), tuple(values)), space, evaluations=60, seed=3)
    assert told.history == plain.history
    assert inner(told.optimizer) == inner(plain.optimizer)


@pytest.mark.parametrize(
    ("behind", "message"),
    [
        ({"m"}, "it returned the active name 'm', which is not in the space"),
        ({"n": 1}, r"a number and a set of names, got \{'n': 1\} after the number"),
        ("n", "a number and a set of names, got 'n' after the number"),
        ([3], r"a number and a set of names, got \[3\] after the number"),
    ],
)
def test_wrong_names_cost_one_evaluation_and_rank_last(behind, message):
    with pytest.warns(UserWarning, match=message):
        result = minimize(lambda v: (9, behind) if v["n"] > 2 else -v["n"], LINE, evaluations=50, seed=0)
    assert result.values == {"n": 2}


# Limits


def at_most_two(values):
    return values["n"] - 2


def test_infeasible_candidates_are_never_evaluated():
    f = Recorder()
    result = minimize(f, LINE, evaluations=50, limits=[at_most_two], seed=0)
    assert (result.values, result.loss) == ({"n": 2}, 4)
    assert max(values["n"] for values in f.seen) == 2


def test_violations_lead_into_a_small_feasible_region():
    space = {name: Real(0, 1) for name in "abcd"}
    far = lambda values: sum((value - 0.9) ** 2 for value in values.values()) - 0.01  # noqa: E731
    result = minimize(lambda values: values["a"], space, evaluations=100, limits=[far], seed=0)
    assert far(result.values) <= 0
    assert result.values["a"] < 0.9


def test_later_limits_are_asked_only_where_earlier_ones_are_met():
    first, second = Recorder(at_most_two), Recorder(lambda values: -8 - values["n"])
    minimize(sphere, LINE, evaluations=20, limits=[first, second], seed=0)
    assert {values["n"] for values in second.seen} == {values["n"] for values in first.seen if values["n"] <= 2}


def test_limits_are_asked_once_for_each_value_of_a_small_space():
    limit = Recorder(at_most_two)
    minimize(sphere, LINE, evaluations=50, limits=[limit], seed=0)
    assert sorted(values["n"] for values in limit.seen) == list(range(-10, 11))


def test_limits_that_nothing_meets_are_an_error_which_names_the_one_that_the_nearest_missed():
    def first(values):
        return values["n"] - 5

    def second(values):
        return 7 - values["n"]

    nearest = r"no candidate met the limits; the nearest, \{'n': 5\}, missed limit second by 2$"
    with pytest.raises(EvaluationError, match=r"none of 0 evaluations gave a finite loss; " + nearest):
        minimize(sphere, {"n": Integer(1, 10)}, evaluations=10, limits=[first, second], seed=0)


def test_limits_that_nothing_meets_are_an_error_again_when_the_same_call_is_repeated(tmp_path):
    for _ in range(2):
        with pytest.raises(EvaluationError, match=r"none of 0 evaluations .* no candidate met the limits"):
            minimize(
                lambda values: values["x"],
                {"x": Real(0, 1)},
                evaluations=10,
                limits=[lambda values: 1 + values["x"]],
                checkpoint=tmp_path / "state.json",
                seed=0,
            )


def test_a_limit_that_is_met_by_more_than_a_float_holds_is_met():
    assert minimize(sphere, LINE, evaluations=50, limits=[lambda values: -(10**400)], seed=0).values == {"n": 4}


def test_a_limit_without_a_number_is_named():
    def at_last(values):
        return None

    with pytest.raises(ValueError, match="limit at_last must return a number, got None") as error:
        minimize(sphere, {"n": Categorical([4])}, evaluations=10, limits=[at_last])
    assert error.value.__notes__ == ["in limit at_last of the values {'n': 4}"]


def test_a_limit_that_returns_nan_is_named_and_one_that_returns_infinity_is_missed():
    def undefined(values):
        return math.nan if values["n"] > 2 else -math.inf

    def far(values):
        return math.inf if values["n"] > 2 else -1

    with pytest.raises(ValueError, match=r"limit undefined must return a number or infinity, got nan"):
        minimize(sphere, LINE, evaluations=50, limits=[undefined], seed=0)
    assert minimize(sphere, LINE, evaluations=50, limits=[far], seed=0).values == {"n": 2}


@pytest.mark.parametrize("boolean", [bool, np.bool_])
def test_a_limit_that_compares_is_refused(boolean):
    def small(values):
        return boolean(values["n"] <= 2)

    with pytest.raises(ValueError, match="limit small must return a number, 0 or less where it is met, got "):
        minimize(sphere, LINE, evaluations=10, limits=[small])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"evaluations": 1}, "evaluations must be at least 2, got 1"),
        ({"evaluations": 0}, "got 0"),
        ({"evaluations": 2.5}, "integer, got 2.5"),
        ({"population_size": 1}, "population_size must be at least 2, got 1"),
        ({"population_size": "4"}, "population_size must be an integer, got '4'"),
        ({"initial": {"m": (0, 1)}}, "'m'"),
        ({"noisy": 1}, "noisy must be True or False, got 1"),
        ({"limits": at_most_two}, "limits must be a list of functions of the values, got <function"),
        ({"limits": [3]}, "limits must be a list of functions"),
        (
            {"limits": [lambda m, v: 0]},
            r"limit <lambda> is called with one dict of values, but takes \(m, v\); wrap it: def limit\(values\): "
            r"return <lambda>\(values, \.\.\.\)",
        ),
        ({"limits": [lambda n: 0, lambda: 0]}, r"limit <lambda> is called with one dict of values, but takes \(\);"),
        ({"callback": "print"}, "callback must be a function of an evaluation, got 'print'"),
        ({"callback": lambda: True}, r"callback is called with one evaluation, but takes \(\); give it that one argum"),
        ({"target": "low"}, "target must be a number above -inf, got 'low'"),
        ({"target": "0.5"}, "target must be a number above -inf, got '0.5'"),
        ({"target": True}, "target must be a number above -inf, got True"),
        ({"timeout": "3", "executor": ThreadPoolExecutor(1)}, "timeout must be a number above 0, got '3'"),
        ({"target": math.nan}, "target must be a number"),
        ({"restarts": -1}, "restarts must be at least 0, got -1"),
        ({"progress": None}, "progress must be True or False, got None"),
        ({"timeout": 3}, "timeout=3 needs an executor, such as ProcessPoolExecutor"),
        ({"executor": 4}, "executor must be a concurrent.futures executor.* got 4"),
        ({"seed": -1}, "seed must be an integer >= 0"),
    ],
)
def test_minimize_refuses_wrong_settings_before_it_starts(wrong, message):
    def never(values):
        raise AssertionError("evaluated")

    with pytest.raises(ValueError, match=message):
        minimize(never, LINE, **{"evaluations": 10, **wrong})


def test_minimize_with_its_arguments_swapped_says_so():
    space = {"n": Integer(1, 9)}
    with pytest.raises(ValueError, match=r"a function of the values first, then the space; got \{'n'"):
        minimize(space, lambda values: values["n"], evaluations=10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("f", "takes", "call"),
    [
        (lambda n, m: n + m, "(n, m)", "f(**values)"),
        (lambda values, data: 0, "(values, data)", "f(values, ...)"),
        (lambda values, *, scale: 0, "(values, *, scale)", "f(values, ...)"),
    ],
    ids=["one by one", "more", "keyword"],
)
def test_a_function_that_does_not_take_the_values_alone_is_told_how_to_wrap_it(f, takes, call):
    space = {"n": Integer(1, 9), "m": Integer(1, 9)}
    message = f"one dict of values, but takes {takes}; wrap it: def loss(values): return {call}"
    with pytest.raises(ValueError, match=re.escape(message)):
        minimize(f, space, evaluations=10)


def with_names(f):
    @functools.wraps(f)
    def wrapper(values):
        return f(**values)

    return wrapper


class Loss:
    def __call__(self, values):
        return values["n"]


@pytest.mark.parametrize(
    "f",
    [
        with_names(lambda n: n),
        functools.partial(lambda scale, values: scale * values["n"], 1),
        lambda values, scale=1: values["n"],
        lambda *values: values[0]["n"],
        Loss(),
        Loss().__call__,
        operator.itemgetter("n"),
    ],
    ids=["decorated", "partial", "default", "star", "object", "method", "in C"],
)
def test_whatever_takes_the_values_is_minimized(f):
    assert minimize(f, {"n": Integer(1, 9)}, evaluations=50, seed=0, progress=False).loss == 1
