"""minimize with an executor: all workers busy, no evaluation lost or counted twice when workers die or hang."""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from asng import Categorical, EvaluationError, Integer, Real, minimize

WIDE: dict[str, Any] = {"n": Integer(-1000, 1000), "x": Real(0, 1)}
CONTEXT = multiprocessing.get_context("forkserver")


def loss(values):
    return abs(values["n"] - 4) + values["x"]


class Alone(Executor):
    """Evaluates in the calling thread."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def values_of(result):
    return [tuple(evaluation.values.items()) for evaluation in result.history]


def test_threads_evaluate_as_often_as_asked():
    lock, seen = threading.Lock(), []

    def record(values):
        with lock:
            seen.append(tuple(values.items()))
        return loss(values)

    with ThreadPoolExecutor(3) as executor:
        result = minimize(record, WIDE, evaluations=301, executor=executor, seed=0)
    assert sorted(seen) == sorted(values_of(result))
    assert len(set(seen)) == 301
    assert result.loss == min(evaluation.loss for evaluation in result.history) < 1


def test_one_worker_repeats_what_is_evaluated_without():
    with ThreadPoolExecutor(1) as executor:
        alone = minimize(loss, WIDE, evaluations=50, executor=executor, seed=0)
    assert alone.history == minimize(loss, WIDE, evaluations=50, seed=0).history


def test_an_executor_needs_the_interface_alone():
    result = minimize(loss, WIDE, evaluations=200, executor=Alone(), seed=0)
    assert len(set(values_of(result))) == 200


class Picky(Alone):
    """Refuses some values at once, as executors do that serialize when they are given work."""

    def submit(self, fn, /, *args, **kwargs):
        if args and args[0]["n"] < 0:
            raise TypeError("cannot be serialized")
        return super().submit(fn, *args, **kwargs)


@pytest.mark.filterwarnings("ignore:evaluation")
def test_what_an_executor_refuses_costs_one_evaluation_each():
    result = minimize(loss, WIDE, evaluations=60, executor=Picky(), seed=0)
    assert len(set(values_of(result))) == 60
    refused = [evaluation for evaluation in result.history if evaluation.values["n"] < 0]
    assert {evaluation.error for evaluation in refused} == {"TypeError: cannot be serialized"}
    assert [evaluation for evaluation in result.history if evaluation.error] == refused


@pytest.mark.parametrize(
    ("space", "limits"),
    [
        (WIDE, []),
        (WIDE, [lambda values: 0.9 - values["x"]]),
        ({"n": Categorical(range(16)), "x": Categorical(range(16))}, []),
    ],
    ids=["all are new", "most are infeasible", "many are known"],
)
def test_no_worker_waits_for_the_slowest_of_a_population(space, limits):
    """One evaluation takes as long as all others: there is no barrier."""
    others_done, started, count = threading.Event(), threading.Event(), [0]

    def slow_once(values):
        if not started.is_set():
            started.set()
            assert others_done.wait(20)
        else:
            count[0] += 1
            if count[0] == 99:
                others_done.set()
        return loss(values)

    with ThreadPoolExecutor(2) as executor:
        result = minimize(
            slow_once, space, evaluations=100, population_size=4, executor=executor, limits=limits, seed=0
        )
    assert result.evaluations == 100
    assert [evaluation.error for evaluation in result.history] == [""] * 100


def test_all_workers_are_busy_beyond_the_population():
    barrier = threading.Barrier(8)

    def together(values):
        barrier.wait(60)  # passes when eight evaluations run at the same time
        return loss(values)

    with ThreadPoolExecutor(8) as executor:
        assert minimize(together, WIDE, evaluations=16, population_size=2, executor=executor, seed=0).evaluations == 16


def test_as_many_are_in_flight_as_the_population_that_a_checkpoint_began_with(tmp_path):
    """Four, where the default population of 300 evaluations is six."""
    begun: list[Any] = []
    ended: list[Any] = []

    def count(values):
        begun.append(values)
        assert len(begun) - len(ended) <= 4
        return loss(values)

    for evaluations in (10, 300):
        settings: dict[str, Any] = {"executor": Alone(), "callback": ended.append, "seed": 0}
        minimize(count, WIDE, evaluations=evaluations, checkpoint=tmp_path / "state.json", **settings)
    assert len(begun) == 300


def test_an_error_in_a_callback_loses_no_evaluation_that_ended_at_the_same_time(tmp_path):
    class Several(Alone):
        _max_workers = 4

    def record(values):
        seen.append(values)
        return loss(values)

    def fail(evaluation):
        raise OSError("disk full")

    seen: list[Any] = []
    settings: dict[str, Any] = {"executor": Several(), "checkpoint": tmp_path / "state.json", "seed": 0}
    with pytest.raises(OSError, match="disk full"):
        minimize(record, WIDE, evaluations=20, callback=fail, **settings)
    result = minimize(record, WIDE, evaluations=20, **settings)
    assert [evaluation.values for evaluation in result.history] == seen


def test_equal_values_in_flight_are_evaluated_once():
    lock, seen = threading.Lock(), []

    def record(values):
        with lock:
            seen.append(values["c"])
        return float(values["c"])

    with ThreadPoolExecutor(4) as executor:
        result = minimize(record, {"c": Categorical(range(3))}, evaluations=100, executor=executor, seed=0)
    assert sorted(seen) == sorted(set(seen))
    assert result.stopped == "nothing new"


def test_interrupt_cancels_what_has_not_begun():
    release = threading.Event()

    def stop(evaluation):
        release.set()
        raise KeyboardInterrupt

    calls = []

    def wait_for_release(values):
        calls.append(values)
        if len(calls) > 1:
            assert release.wait(60)
        return loss(values)

    with ThreadPoolExecutor(3) as executor:
        result = minimize(wait_for_release, WIDE, evaluations=100, executor=executor, callback=stop, seed=0)
    assert (result.stopped, result.evaluations) == ("interrupted", 1)
    assert len(calls) <= 4


# Failures


@pytest.mark.filterwarnings("ignore:evaluation")
def test_nonsense_and_errors_of_a_worker_cost_one_evaluation_each():
    def nonsense(values):
        if values["n"] % 3 == 0:
            return {"loss": 0}
        if values["n"] % 3 == 1:
            raise OSError("no space left")
        return loss(values)

    with ThreadPoolExecutor(2) as executor:
        result = minimize(nonsense, WIDE, evaluations=90, executor=executor, seed=0)
    assert result.evaluations == 90
    for evaluation in result.history:
        expected = {0: "it must return", 1: "OSError: no sp", 2: ""}[evaluation.values["n"] % 3]
        assert evaluation.error[:14] == expected


def test_a_hanging_thread_is_given_up_after_the_timeout():
    release = threading.Event()

    def hang_once(values):
        if not calls:
            calls.append(values)
            release.wait(60)
        return loss(values)

    calls: list[Any] = []
    with ThreadPoolExecutor(2) as executor:
        try:
            with pytest.warns(UserWarning, match=r"failed and ranks last: no result within 0.3 seconds"):
                result = minimize(hang_once, WIDE, evaluations=40, executor=executor, timeout=0.3, seed=0)
        finally:
            release.set()
    assert result.evaluations == 40
    assert [evaluation.values for evaluation in result.history if evaluation.error] == calls


@pytest.mark.filterwarnings("ignore:evaluation")
def test_threads_that_all_hang_end_with_the_result_so_far():
    release = threading.Event()

    def hang_in_the_end(values):
        calls.append(values)
        if len(calls) > 20:
            release.wait(60)
        return loss(values)

    calls: list[Any] = []
    with ThreadPoolExecutor(2) as executor:
        try:
            with pytest.warns(UserWarning, match="the executor broke: all of its workers hang"):
                result = minimize(hang_in_the_end, WIDE, evaluations=40, executor=executor, timeout=0.3, seed=0)
        finally:
            release.set()
    assert (result.stopped, result.evaluations) == ("executor", 22)


class Canceling(Alone):
    """Cancels an evaluation after every 20 of them, as a cluster that restarts; or is closed then, as Dask's client."""

    def __init__(self, is_closed_then=False):
        self.is_closed_then, self.count = is_closed_then, 0

    def submit(self, fn, /, *args, **kwargs):
        if self.is_closed_then and self.count > 20:
            raise TypeError("the client is closed")
        self.count += 1
        if self.count % 21:
            return super().submit(fn, *args, **kwargs)
        future: Future[Any] = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


def test_canceled_evaluations_are_repeated():
    result = minimize(loss, WIDE, evaluations=60, executor=Canceling(), seed=0)
    assert len(set(values_of(result))) == 60
    assert [evaluation.error for evaluation in result.history] == [""] * 60


def test_a_closed_executor_costs_no_evaluation(tmp_path):
    settings: dict[str, Any] = {"evaluations": 60, "checkpoint": tmp_path / "state.json", "seed": 0}
    with pytest.warns(UserWarning, match="the executor broke: TypeError: the client is closed"):
        result = minimize(loss, WIDE, executor=Canceling(is_closed_then=True), **settings)
    assert (result.stopped, result.evaluations) == ("executor", 20)
    rest = minimize(loss, WIDE, executor=Alone(), **settings)
    assert rest.history[:20] == result.history
    assert [evaluation.error for evaluation in rest.history] == [""] * 60


def test_an_executor_that_was_shut_down_is_an_error():
    with ThreadPoolExecutor(1) as executor:
        pass
    with (
        pytest.warns(UserWarning, match="the executor broke: cannot schedule new futures after shutdown"),
        pytest.raises(EvaluationError, match="none of 0 evaluations gave a finite loss; the executor broke"),
    ):
        minimize(loss, WIDE, evaluations=10, executor=executor)


def test_an_executor_that_breaks_returns_the_result_so_far(tmp_path):
    executor = ThreadPoolExecutor(2)

    def leave(evaluation):
        if len(seen) == 20:
            executor.shutdown(wait=False)
        seen.append(evaluation)

    seen: list[Any] = []
    path = tmp_path / "state.json"
    with pytest.warns(UserWarning, match="minimize ends early, since the executor broke"):
        result = minimize(loss, WIDE, evaluations=100, executor=executor, callback=leave, checkpoint=path, seed=0)
    assert (result.stopped, result.history) == ("executor", seen)
    with ThreadPoolExecutor(2) as another:
        rest = minimize(loss, WIDE, evaluations=100, executor=another, checkpoint=path, seed=0)
    assert rest.history[: len(seen)] == seen
    assert len(set(values_of(rest))) == 100


# Processes


def die_once(values, *, folder):
    """The process ends at one evaluation; the evaluation itself is fine."""
    if values["n"] < -200:
        try:
            (folder / "died").touch(exist_ok=False)
        except FileExistsError:
            return loss(values)
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(values)


def die_at_large(values):
    """Some values end every process that evaluates them."""
    if values["n"] > 500:
        os._exit(3)
    return loss(values)


def hang_once(values, *, folder):
    try:
        (folder / "hung").touch(exist_ok=False)
    except FileExistsError:
        return loss(values)
    time.sleep(3600)


@pytest.fixture
def executor():
    with ProcessPoolExecutor(2, mp_context=CONTEXT) as pool:
        yield pool


@pytest.mark.slow
def test_processes_evaluate_as_often_as_asked(executor):
    result = minimize(loss, WIDE, evaluations=100, executor=executor, seed=0)
    assert len(set(values_of(result))) == 100
    assert all(evaluation.loss == loss(evaluation.values) for evaluation in result.history)


@pytest.mark.slow
def test_a_killed_process_costs_no_evaluation(executor, tmp_path):
    result = minimize(partial(die_once, folder=tmp_path), WIDE, evaluations=60, executor=executor, seed=0)
    assert (tmp_path / "died").exists()
    assert len(set(values_of(result))) == 60
    assert [evaluation.error for evaluation in result.history] == [""] * 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:evaluation")
def test_values_that_kill_processes_cost_one_evaluation_each(executor):
    result = minimize(die_at_large, WIDE, evaluations=20, executor=executor, initial={"n": (400, 300)}, seed=0)
    assert len(set(values_of(result))) == 20
    deadly = [evaluation for evaluation in result.history if evaluation.values["n"] > 500]
    assert len(deadly) > 1
    assert [e for e in result.history if e.error] == deadly
    assert {evaluation.error[:17] for evaluation in deadly} == {"BrokenProcessPool"}


class TwoArgumentsError(Exception):
    """As many are: pickle makes it again of its one argument, and fails."""

    def __init__(self, text, code):
        super().__init__(f"{text} {code}")


def fail_at_large(values):
    if values["n"] > 0:
        raise TwoArgumentsError("code", 3)
    return loss(values)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:evaluation")
def test_an_exception_that_cannot_be_unpickled_keeps_its_text(executor):
    result = minimize(fail_at_large, WIDE, evaluations=20, executor=executor, seed=0)
    assert {e.error for e in result.history if e.values["n"] > 0} == {"RuntimeError: TwoArgumentsError: code 3"}
    assert not any(e.error for e in result.history if e.values["n"] <= 0)


@pytest.mark.long
def test_a_hanging_process_is_killed_after_the_timeout(executor, tmp_path):
    f = partial(hang_once, folder=tmp_path)
    with pytest.warns(UserWarning, match="failed and ranks last: no result within 10 seconds"):
        result = minimize(f, WIDE, evaluations=20, executor=executor, timeout=10, seed=0)
    assert len(set(values_of(result))) == 20
    assert [evaluation.error for evaluation in result.history if evaluation.error] == ["no result within 10 seconds"]


def start_slowly():
    time.sleep(1.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:evaluation")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_start_of_a_process_takes_nothing_from_the_timeout(method, tmp_path):
    """Neither in the pool that was given, nor in the one that replaces it after a process was killed."""
    f, context = partial(hang_once, folder=tmp_path), multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context, initializer=start_slowly) as pool:
        result = minimize(f, WIDE, evaluations=12, executor=pool, timeout=1, seed=0)
    assert len(set(values_of(result))) == 12
    assert [evaluation.error for evaluation in result.history if evaluation.error] == ["no result within 1 seconds"]


@pytest.mark.parametrize(
    "f", [lambda values: 0, partial(hang_once, folder=threading.Lock())], ids=["a lambda", "a lock"]
)
def test_a_function_that_cannot_be_pickled_is_refused_at_once(f):
    with (
        ProcessPoolExecutor(1) as pool,
        pytest.raises(ValueError, match=r"[Pp]ickle .*: define it at the top level of a file, .*ThreadPoolExecutor"),
    ):
        minimize(f, WIDE, evaluations=100, executor=pool)


def test_a_refused_checkpoint_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "state.json").write_text("{")
    with ProcessPoolExecutor(1) as executor, pytest.raises(ValueError, match=r"state\.json is damaged"):
        minimize(loss, WIDE, evaluations=10, executor=executor, checkpoint=tmp_path / "state.json")
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:evaluation 1 ")
def test_a_function_that_processes_cannot_import_costs_one_evaluation(executor, monkeypatch):
    """As one that was typed into a prompt: it can be pickled here, by its name, and not be loaded there."""
    module = types.ModuleType("typed")
    exec("def f(values): return 0", vars(module))
    monkeypatch.setitem(sys.modules, "typed", module)
    with (
        pytest.warns(UserWarning, match="minimize ends early, .* must be in a file that they can import"),
        pytest.raises(EvaluationError, match="none of 1 evaluations"),
    ):
        minimize(module.f, WIDE, evaluations=100, executor=executor)
