"""minimize: as many evaluations as asked for, by whomever they are made, and what it returns at their end or before."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from asng import Integer, Normal, minimize
from tests.helpers.trajectories import BLEND, LETTERS, inner, run


def sphere(values):
    return (values["n"] - 4) ** 2


LINE: dict[str, Any] = {"n": Integer(-10, 10)}


@pytest.mark.parametrize(
    ("evaluations", "population_size"), [(2, None), (3, 2), (7, 2), (9, 4), (5, 4), (4, 10), (100, 3)]
)
def test_minimize_evaluates_exactly_as_often_as_asked(evaluations, population_size):
    seen = []

    def record(values):
        seen.append(values)
        return sphere(values)

    result = minimize(record, LINE, evaluations=evaluations, population_size=population_size, seed=0)
    assert len(seen) == result.evaluations == evaluations
    assert result.loss == min(map(sphere, seen)) == sphere(result.values)
    assert result.mode == result.optimizer.mode()


def test_minimize_finds_the_answer_and_repeats_itself():
    results = [minimize(sphere, LINE, evaluations=1200, population_size=6, seed=2) for _ in range(2)]
    assert results[0].mode == results[0].values == {"n": 4}
    assert inner(results[0].optimizer) == inner(results[1].optimizer)


@pytest.mark.parametrize(
    ("space", "population_size"), [(LETTERS, 2), (LINE, 8), (BLEND, 8)], ids=["choices", "number", "both"]
)
def test_minimize_compares_more_at_a_time_where_there_are_numbers(space, population_size):
    default = minimize(lambda v: len(str(v)), space, evaluations=50, seed=0)
    assert inner(default.optimizer) == inner(
        minimize(lambda v: len(str(v)), space, evaluations=50, population_size=population_size, seed=0).optimizer
    )


def test_minimize_starts_from_prior_knowledge():
    result = minimize(sphere, LINE, evaluations=2, initial={"n": (4, 0.25)}, seed=0)
    assert 3 <= result.values["n"] <= 5


def test_an_executor_changes_nothing_but_the_time():
    with ThreadPoolExecutor(2) as executor:
        parallel = minimize(sphere, LINE, evaluations=101, population_size=4, executor=executor, seed=5)
    alone = minimize(sphere, LINE, evaluations=101, population_size=4, seed=5)
    assert parallel[:4] == alone[:4]
    assert inner(parallel.optimizer) == inner(alone.optimizer)


def test_interrupt_returns_the_result_so_far():
    seen = []

    def interrupt(values):
        seen.append(values)
        if len(seen) == 8:
            raise KeyboardInterrupt
        return sphere(values)

    try:
        result = minimize(interrupt, LINE, evaluations=100, population_size=2, seed=0)
    except KeyboardInterrupt:  # would end the whole test run
        pytest.fail("the result so far is lost")
    assert result.evaluations == 6  # the pairs that were complete
    assert result.loss == min(map(sphere, seen[:6]))


def test_interrupt_before_any_result_is_passed_on():
    def interrupt(values):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        minimize(interrupt, LINE, evaluations=100)


def test_other_errors_of_the_function_are_passed_on():
    with pytest.raises(ZeroDivisionError):
        minimize(lambda v: 1 / 0, LINE, evaluations=100)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_minimize_without_any_finite_loss_says_so(loss):
    with pytest.raises(ValueError, match="finite"):
        minimize(lambda v: loss, LINE, evaluations=10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"evaluations": 1}, "evaluations must be at least 2, got 1"),
        ({"evaluations": 0}, "got 0"),
        ({"evaluations": 2.5}, "integer, got 2.5"),
        ({"evaluations": 10, "population_size": 1}, "population_size must be at least 2, got 1"),
        ({"evaluations": 10, "population_size": "4"}, "population_size must be an integer, got '4'"),
        ({"evaluations": 10, "initial": {"m": (0, 1)}}, "'m'"),
    ],
)
def test_minimize_refuses_wrong_settings_before_it_starts(wrong, message):
    def never(values):
        raise AssertionError("evaluated")

    with pytest.raises(ValueError, match=message):
        minimize(never, LINE, **wrong)


def test_the_optimizer_of_a_result_can_go_on():
    result = minimize(sphere, LINE, evaluations=10, seed=0)
    run(result.optimizer, 5)
    assert isinstance(result.optimizer.distribution()["n"], Normal)


def test_minimize_with_its_arguments_swapped_says_so():
    space = {"n": Integer(1, 9)}
    with pytest.raises(ValueError, match=r"a function of the values first, then the space; got \{'n'"):
        minimize(space, lambda values: values["n"], evaluations=10)  # type: ignore[arg-type]
