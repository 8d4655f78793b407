"""When minimize ends: targets, convergence, callbacks, restarts, small spaces, Ctrl-C."""

import sys
from functools import partial

import numpy as np
import pytest

from asng import Categorical, Integer, Real, minimize
from asng._blackbox import BlackBox
from tests.helpers.black_boxes import LINE, WIDE, Recorder, sphere
from tests.helpers.trajectories import LETTERS


def test_a_target_ends_the_search_at_once():
    f = Recorder()
    result = minimize(f, WIDE, evaluations=10_000, target=100, seed=0)
    assert (result.stopped, result.loss) == ("target", sphere(f.seen[-1]))
    assert [sphere(values) <= 100 for values in f.seen] == [False] * (len(f.seen) - 1) + [True]


def test_convergence_ends_the_search():
    result = minimize(lambda v: (v["x"] - 0.3) ** 2, {"x": Real(0, 1)}, evaluations=10_000, restarts=0, seed=0)
    assert result.stopped == "converged"
    assert result.evaluations < 1000
    assert result.optimizer.distribution()["x"].std < 0.002
    assert abs(result.mode["x"] - 0.3) < 0.01


@pytest.mark.parametrize("others", [{}, {"n": Integer(0, 3)}], ids=["reals", "beside an integer"])
def test_it_does_not_wait_for_the_last_digits_of_reals(others):
    """Each population is a little better than the last, for as long as reals can become narrower."""
    loss = lambda values: sum((x - 0.3) ** 2 for x in values.values())  # noqa: E731
    space = {"x": Real(-1, 1), "y": Real(-1, 1)}
    result = minimize(loss, {**space, **others}, evaluations=5000, seed=0, restarts=0)
    assert result.stopped == "converged"
    assert all(3e-6 < result.optimizer.distribution()[name].std < 2e-4 for name in space)


def test_losses_that_are_equal_all_around_end_it_before_reals_are_as_narrow_as_possible():
    """As of functions that round: nothing is learned there, so the distribution would never become narrower."""
    loss = lambda values: round(sum((x - 0.3) ** 2 for x in values.values()), 7)  # noqa: E731
    result = minimize(loss, {"x": Real(-1, 1), "y": Real(-1, 1)}, evaluations=5000, seed=0, restarts=0)
    assert (result.stopped, result.loss) == ("converged", 0)
    assert 2e-6 < result.optimizer.distribution()["x"].std < 2e-3


def test_convergence_ends_a_noisy_search_of_choices():
    generator = np.random.default_rng(0)
    f = lambda values: sum(value != "a" for value in values.values()) + generator.normal()  # noqa: E731
    result = minimize(f, LETTERS, evaluations=100_000, noisy=True, seed=0)
    assert result.stopped == "converged"
    assert set(result.mode.values()) == {"a"}


def test_a_callback_sees_every_evaluation_and_can_stop():
    seen = []

    def stop(evaluation):
        seen.append(evaluation)
        return len(seen) == 7

    result = minimize(sphere, WIDE, evaluations=100, callback=stop, seed=0)
    assert (result.stopped, result.evaluations) == ("callback", 7)
    assert seen == result.history


def test_a_callback_can_stop_with_numpys_true():
    result = minimize(
        sphere, WIDE, evaluations=20, callback=lambda evaluation: np.float64(0) <= evaluation.loss, seed=0
    )
    assert (result.stopped, result.evaluations) == ("callback", 1)


def test_what_a_callback_returns_beside_true_means_nothing():
    assert minimize(sphere, WIDE, evaluations=20, callback=lambda evaluation: 1, seed=0).evaluations == 20


def two_valleys(values):
    """Its broad valley ends at 1; the narrow one, at 0.9, is deeper."""
    x = values["x"]
    return min(1 + (x - 0.2) ** 2, 1000 * (x - 0.9) ** 2)


def test_restarts_look_elsewhere_with_twice_the_population():
    space = {"x": Real(0, 1)}
    once = [minimize(two_valleys, space, evaluations=1500, restarts=0, seed=seed) for seed in range(10)]
    often = [minimize(two_valleys, space, evaluations=1500, seed=seed) for seed in range(10)]
    assert {result.stopped for result in once} == {"converged"}
    assert sum(result.loss < 0.1 for result in often) > sum(result.loss < 0.1 for result in once)
    for result in often:
        assert result.loss == min(evaluation.loss for evaluation in result.history)
        assert result.optimizer.best == (result.values, result.loss)  # of the start that found it


def test_minimize_starts_over_for_as_long_as_there_are_evaluations():
    result = minimize(lambda v: (v["x"] - 0.3) ** 2, {"x": Real(0, 1)}, evaluations=1000, seed=0)
    assert (result.stopped, result.evaluations) == ("evaluations", 1000)
    assert result.loss < 1e-6


def draw_loss(losses, values):
    return next(losses)


@pytest.mark.parametrize(
    ("space", "initial"),
    [
        ({name: Categorical([0, 1, 2]) for name in "abcd"}, None),
        ({"a": Integer(-40, 40)}, None),
        ({"a": Integer(-40, 40)}, {"a": (3, 0.5)}),
        ({"a": Integer(1, 9), "b": Categorical([0, 1, 2]), "c": Integer(3, 5)}, None),
    ],
    ids=["choices", "integers", "prior", "mixed"],
)
def test_a_small_space_is_evaluated_as_a_whole(space, initial):
    for seed in range(5):
        losses = iter(np.random.default_rng(seed).permutation(81))
        result = minimize(partial(draw_loss, losses), space, evaluations=5000, initial=initial, seed=seed)
        assert (result.stopped, result.evaluations, result.loss) == ("nothing new", 81, 0)


def test_a_small_space_is_searched_as_a_whole_for_what_meets_the_limits():
    space, feasible = {name: Categorical(range(100)) for name in "ab"}, {"a": 0, "b": 99}
    result = minimize(lambda values: 1, space, evaluations=50, limits=[lambda v: int(v != feasible)], seed=0)
    assert (result.values, result.evaluations) == (feasible, 1)


def test_without_restarts_ten_populations_of_known_values_are_the_end():
    result = minimize(sphere, LINE, evaluations=1000, restarts=0, seed=0)
    assert (result.stopped, result.loss) == ("nothing new", 0)
    assert result.evaluations < 21


def test_minimize_ends_with_the_last_restart():
    result = minimize(sphere, LINE, evaluations=1000, restarts=2, seed=0)
    assert (result.stopped, result.loss) == ("nothing new", 0)


def test_interrupt_returns_the_result_so_far():
    def interrupt(values):
        if len(f.seen) == 8:
            raise KeyboardInterrupt
        return sphere(values)

    f = Recorder(interrupt)
    try:
        result = minimize(f, WIDE, evaluations=100, population_size=2, seed=0)
    except KeyboardInterrupt:  # would end the whole test run
        pytest.fail("the result so far is lost")
    assert (result.evaluations, result.stopped) == (7, "interrupted")
    assert result.loss == min(map(sphere, f.seen[:7]))


@pytest.mark.parametrize("line", range(1, 12))
def test_interrupt_while_an_evaluation_is_remembered_returns_a_result(line):
    first = BlackBox._remember.__code__.co_firstlineno

    def trace(frame, event, arg):
        if frame.f_code is not BlackBox._remember.__code__:
            return trace if event == "call" else None
        if event == "line" and frame.f_lineno == first + line and frame.f_locals["self"].best:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = minimize(lambda values: -values["n"], WIDE, evaluations=20, seed=0)
    except KeyboardInterrupt:  # would end the whole test run
        pytest.fail("the result so far is lost")
    finally:
        sys.settrace(before)
    assert result.loss == -result.values["n"] <= result.history[0].loss


def test_interrupt_before_any_result_is_passed_on():
    def interrupt(values):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        minimize(interrupt, LINE, evaluations=100)
