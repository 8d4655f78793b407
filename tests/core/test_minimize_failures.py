"""Evaluations that fail: each costs one, ranks last, and is named."""

import math
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

from asng import Categorical, EvaluationError, Integer, Optimizer, minimize
from asng._violations import WORST_LOSS
from tests.helpers.black_boxes import LINE, WIDE, Recorder, sphere


def reciprocal(values):
    return 1 / values["n"]


def test_an_exception_costs_one_evaluation_and_ranks_last():
    with pytest.warns(UserWarning, match=r"evaluation \d+, \{'n': 0\}, failed and ranks last: ZeroDivisionError: div"):
        result = minimize(reciprocal, LINE, evaluations=50, seed=0)
    failed = [evaluation for evaluation in result.history if evaluation.error]
    assert [evaluation.values for evaluation in failed] == [{"n": 0}]
    assert failed[0].loss == math.inf
    assert result.values == {"n": -1}


def test_failures_rank_before_infeasible_candidates(monkeypatch):
    told, tell = [], Optimizer.tell

    def note(optimizer, candidates, losses, **more):
        told.append(list(losses))
        tell(optimizer, candidates, losses, **more)

    monkeypatch.setattr(Optimizer, "tell", note)
    space = {"n": Integer(0, 100), "op": Categorical(["a", "b"])}

    def loss(values):
        return values["n"] if values["op"] == "a" else math.nan

    with pytest.warns(UserWarning, match="failed"):
        minimize(loss, space, evaluations=60, limits=[lambda values: values["n"] - 50], seed=0)
    mixed = [losses for losses in told if any(WORST_LOSS < loss < math.inf for loss in losses)]
    assert any(WORST_LOSS in losses and min(losses) <= 50 for losses in mixed)
    assert all(math.isfinite(loss) for losses in mixed for loss in losses)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "it must return a number, got None"),
        (math.nan, "it returned nan"),
        (-math.inf, "it returned -inf"),
        (-(10**400), "it returned -inf"),
        ("0.5", "it must return a number, got '0.5'"),
        (1j, "it must return a number"),
        ([1, 2], "it must return a number"),
    ],
)
def test_nonsense_costs_one_evaluation_and_ranks_last(returned, message):
    with pytest.warns(UserWarning, match=message):
        result = minimize(lambda v: returned if v["n"] > 2 else -v["n"], LINE, evaluations=50, seed=0)
    assert result.values == {"n": 2}
    assert {evaluation.error[:5] for evaluation in result.history if evaluation.values["n"] > 2} == {message[:5]}


def test_a_function_that_exits_costs_one_evaluation():
    def leave(values):
        if values["n"] == 4:
            raise SystemExit(3)
        return sphere(values)

    with pytest.warns(UserWarning, match="SystemExit: 3"):
        assert minimize(leave, LINE, evaluations=50, seed=0).values["n"] in (3, 5)


@pytest.mark.parametrize("infinity", [math.inf, 10**400], ids=["float", "int"])
def test_infinity_ranks_last_without_a_warning(infinity):
    result = minimize(lambda v: infinity if v["n"] > 2 else -v["n"], LINE, evaluations=50, seed=0)
    assert result.values == {"n": 2}


def test_infinite_losses_do_not_end_it_however_many_come_in_a_row():
    first = iter([math.inf] * 60)
    result = minimize(lambda values: next(first, sphere(values)), WIDE, evaluations=100, seed=0)
    assert (result.stopped, result.evaluations) == ("evaluations", 100)
    assert [evaluation.loss for evaluation in result.history[:60]] == [math.inf] * 60
    assert not any(evaluation.error for evaluation in result.history)


@pytest.mark.filterwarnings("ignore:evaluation")
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, None])
def test_an_error_without_any_finite_loss_carries_the_optimizer(loss):
    with pytest.raises(EvaluationError, match="none of 10 evaluations gave a finite loss") as caught:
        minimize(lambda v: loss, WIDE, evaluations=10)
    assert len(caught.value.history) == 10
    assert isinstance(caught.value.optimizer, Optimizer)


@pytest.mark.filterwarnings("ignore:evaluation")
def test_a_function_that_never_works_is_given_up_soon():
    message = "none of 20 evaluations gave a finite loss; 20 failed, the first one: KeyError: 'm'"
    with pytest.raises(EvaluationError, match=message):
        minimize(lambda v: v["m"], WIDE, evaluations=10_000)


@pytest.mark.filterwarnings("ignore:evaluation")
def test_an_error_without_any_finite_loss_names_its_cause():
    with pytest.raises(EvaluationError) as caught:
        minimize(lambda v: 1 / 0, WIDE, evaluations=5)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.__cause__.__traceback__ is not None
    with pytest.raises(EvaluationError) as caught:
        minimize(lambda v: None, WIDE, evaluations=5)
    assert caught.value.__cause__ is None


@pytest.mark.filterwarnings("ignore:evaluation")
def test_a_failed_evaluation_keeps_none_of_its_memory():
    alive: list[Any] = []

    def fail(values):
        assert all(reference() is None for reference in alive)
        large = np.zeros(10)
        alive.append(weakref.ref(large))
        raise MemoryError("too large")

    with pytest.raises(EvaluationError, match="MemoryError: too large"):
        minimize(fail, WIDE, evaluations=5)
    assert len(alive) == 5


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text_costs_one_evaluation():
    def fail(values):
        if values["n"] == 4:
            raise Untold
        return sphere(values)

    with pytest.warns(UserWarning, match="failed and ranks last: Untold$"):
        assert minimize(fail, LINE, evaluations=50, seed=0).values["n"] in (3, 5)


def test_of_failures_that_all_differ_three_are_warned_of_and_the_first_one_ends_it():
    words = iter(["one", "two", "three", "four", "five", "six"])

    def fail(values):
        word = next(words)
        if word == "two":
            return math.inf  # the worst loss, but no failure
        raise ValueError(word)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(EvaluationError) as raised:
            minimize(fail, WIDE, evaluations=6, seed=0)
    warned = [str(warning.message).partition("last: ")[2] for warning in caught]
    last = "ValueError: four; the history has all other errors"
    assert warned == ["ValueError: one", "ValueError: three", last]
    assert str(raised.value) == "none of 6 evaluations gave a finite loss; 5 failed, the first one: ValueError: one"
    assert str(raised.value.__cause__) == "one"


def test_without_a_failure_the_error_says_that_losses_were_infinite():
    with pytest.raises(EvaluationError, match="none of 5 evaluations gave a finite loss; all losses were infinite"):
        minimize(lambda v: math.inf, WIDE, evaluations=5)


def test_failures_that_differ_in_numbers_alone_warn_once():
    def fail(values):
        if values["n"] % 2:
            raise ValueError(f"{values['n']} is far, by {1.5e-5 / values['n']}" if values["n"] < -4 else "odd")
        return -values["n"] if values["n"] > -4 else object()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = minimize(fail, LINE, evaluations=50, seed=0)
    warned = [str(warning.message).partition("last: ")[2] for warning in caught]
    errors = [evaluation.error for evaluation in result.history]
    assert len(warned) == 3
    for word in ("odd", "far", "object at"):
        assert sum(word in text for text in warned) == 1
        assert sum(word in text for text in errors) > 1


def test_a_function_that_ceases_to_work_ends_with_the_result():
    def cease(values):
        if len(f.seen) > 30:
            raise OSError("disk full")
        return sphere(values)

    f = Recorder(cease)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = minimize(f, WIDE, evaluations=1000, seed=0)
    assert (result.stopped, result.evaluations) == ("failures", 50)
    assert str(caught[-1].message) == "minimize ends early: the last 20 evaluations failed: OSError: disk full"
    assert {str(warning.filename) for warning in caught} == {__file__}


@pytest.mark.filterwarnings("ignore:evaluation")
@pytest.mark.parametrize(("settings", "failed"), [({}, 20), ({"population_size": 100}, 500)])
def test_noise_needs_no_more_failures_to_end(settings, failed):
    f = Recorder(lambda values: None)
    with pytest.raises(EvaluationError):
        minimize(f, WIDE, evaluations=40_000, noisy=True, seed=0, **settings)
    assert len(f.seen) == failed
