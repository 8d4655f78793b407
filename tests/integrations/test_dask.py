"""minimize on a Dask cluster of two workers: one is killed, one is slow, one hangs, one returns nonsense."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asng import Integer, Real, minimize

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Dask and of what it imports
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SPACE: dict[str, Any] = {"n": Integer(-1000, 1000), "x": Real(0, 1)}


@pytest.fixture
def settings():
    """Of Dask; a lost worker may take long to be replaced where much else runs."""
    return {"distributed.worker.profile.enabled": False, "distributed.deploy.lost-worker-timeout": "120s"}


@pytest.fixture
def executor(settings, tmp_path):
    """Two workers, each a process with one thread."""
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            local_directory=str(tmp_path / "dask"),
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor(pure=False)


def loss(values):
    return abs(values["n"] - 4) + values["x"]


def record(values, folder):
    """Leave a file for each evaluation that came to its end."""
    (folder / f"{values['n']} {values['x']} {os.getpid()} {time.monotonic_ns()}").touch()
    return loss(values)


def die_once(values, *, folder):
    """After some evaluations, one worker process is killed in the middle of one."""
    time.sleep(0.02)
    if len(os.listdir(folder)) > 15:
        try:
            (folder.parent / "died").touch(exist_ok=False)
        except FileExistsError:
            return record(values, folder)
        os.kill(os.getpid(), signal.SIGKILL)
    return record(values, folder)


def test_a_client_in_place_of_its_executor_is_refused(executor):
    with pytest.raises(ValueError, match=r"pass client\.get_executor\(pure=False\), got <Client"):
        minimize(loss, SPACE, evaluations=4, executor=executor._client)


def values_of(result):
    return [tuple(evaluation.values.items()) for evaluation in result.history]


def test_a_killed_worker_loses_no_evaluation(executor, tmp_path):
    folder = tmp_path / "evaluations"
    folder.mkdir()
    f = partial(die_once, folder=folder)
    result = minimize(f, SPACE, evaluations=60, executor=executor, seed=0)
    assert (tmp_path / "died").exists()
    assert len(set(values_of(result))) == result.evaluations == 60  # none lost, none counted twice
    assert [evaluation.error for evaluation in result.history] == [""] * 60
    assert all(evaluation.loss == loss(evaluation.values) for evaluation in result.history)
    processes = {path.name.split()[2] for path in Path(folder).iterdir()}
    assert len(processes) >= 2


def die_at_multiples(values):
    time.sleep(0.02)
    if values["n"] % 7 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(values)


@pytest.mark.filterwarnings("ignore:evaluation")
def test_values_that_kill_workers_cost_one_evaluation_each(settings, request):
    """Dask gives up at once, also what only waited on the worker that died."""
    settings["distributed.scheduler.allowed-failures"] = 0
    executor = request.getfixturevalue("executor")
    result = minimize(die_at_multiples, SPACE, evaluations=14, executor=executor, seed=0)
    assert len(set(values_of(result))) == result.evaluations == 14
    failed = [evaluation for evaluation in result.history if evaluation.error]
    assert failed == [evaluation for evaluation in result.history if evaluation.values["n"] % 7 == 0] != []
    assert all(evaluation.error.startswith("KilledWorker") for evaluation in failed)


def test_a_function_that_cannot_be_serialized_is_refused_at_once(executor):
    with pytest.raises(ValueError, match="the executor does not take this function: TypeError"):
        minimize(partial(slow_or_nonsense, folder=threading.Lock()), SPACE, evaluations=14, executor=executor)


def slow_or_nonsense(values, *, folder):
    if values["n"] % 5 == 0:
        return "nonsense"
    try:
        (folder / "slow").touch(exist_ok=False)
    except FileExistsError:
        return loss(values)
    time.sleep(1.5)
    return loss(values)


@pytest.mark.filterwarnings("ignore:evaluation")
def test_a_slow_worker_delays_nobody_and_nonsense_ranks_last(executor, tmp_path):
    f = partial(slow_or_nonsense, folder=tmp_path)
    result = minimize(f, SPACE, evaluations=60, executor=executor, seed=0)
    assert len(set(values_of(result))) == result.evaluations == 60
    failed = [evaluation for evaluation in result.history if evaluation.error]
    assert failed == [evaluation for evaluation in result.history if evaluation.values["n"] % 5 == 0]
    assert {evaluation.error for evaluation in failed} == {"it must return a number, got 'nonsense'"}


def hang_once(values, *, folder):
    try:
        (folder / "hung").touch(exist_ok=False)
    except FileExistsError:
        return loss(values)
    time.sleep(8)
    return loss(values)


@pytest.mark.filterwarnings("ignore:evaluation")
def test_a_hanging_worker_delays_no_more_than_what_waits_behind_it(executor, tmp_path):
    f = partial(hang_once, folder=tmp_path)
    result = minimize(f, SPACE, evaluations=30, executor=executor, timeout=3, seed=0)
    assert len(set(values_of(result))) == result.evaluations == 30
    errors = [evaluation.error for evaluation in result.history if evaluation.error]
    assert set(errors) == {"no result within 3 seconds"}
    assert len(errors) <= 3
