"""minimize on a Dask cluster of two workers: one is killed, one is slow, one hangs, one returns nonsense."""

import os
import signal
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
def executor(tmp_path):
    """Two workers, each a process with one thread."""
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
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
