"""Tasks in worker processes: the same results as one after another, and nobody stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from asng.experiments._workers import WORKER_ENVIRONMENT, run_parallel
from tests.helpers import tasks
from tests.helpers.commands import group_exists, interrupt, wait_until

pytestmark = pytest.mark.slow

ENDLESS = """
import sys
from pathlib import Path
from asng.experiments._workers import run_parallel
from tests.helpers.tasks import endless
for _ in run_parallel(endless, [Path(argument) for argument in sys.argv[1:]], 2):
    pass
"""


@pytest.fixture(autouse=True)
def nobody_stays_behind():
    mask, start = signal.pthread_sigmask(signal.SIG_BLOCK, ()), time.monotonic()
    others = set(active_children())  # of tests before, which end by themselves
    yield
    assert time.monotonic() - start < tasks.LONG, "the workers went on until they gave up by themselves"
    assert set(active_children()) <= others
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


@pytest.mark.parametrize("workers", [1, 2])
def test_each_task_comes_once_with_the_result_that_it_has_alone(workers):
    numbers = [3.0, -1.0, 0.5, 3.0, 7.0]
    results = list(run_parallel(tasks.square, numbers, workers))
    assert sorted(results) == sorted((number, number**2) for number in numbers)


def test_as_many_run_at_once_as_there_are_workers(tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    results = dict(run_parallel(tasks.meets, paths, 2))  # alone, neither would end
    assert sorted(results) == paths


def test_no_tasks_are_done_at_once():
    assert list(run_parallel(tasks.square, [], 4)) == []


def test_workers_have_their_environment_and_ignore_ctrl_c(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    names = [*WORKER_ENVIRONMENT, "PATH"]
    seen = dict(run_parallel(tasks.environment, names, 2))
    assert seen == {name: (value, True) for name, value in {**WORKER_ENVIRONMENT, "PATH": os.environ["PATH"]}.items()}
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_work_goes_on_outside_of_the_main_thread():
    results: list[tuple[float, float]] = []
    thread = threading.Thread(target=lambda: results.extend(run_parallel(tasks.square, [3.0], 1)))
    thread.start()
    thread.join()
    assert results == [(3.0, 9.0)]


def test_an_error_in_a_worker_is_raised_here_and_stops_the_others(tmp_path):
    paths = [tmp_path / "endless", tmp_path / "short"]
    with pytest.raises(ValueError, match="short cannot be done"):
        list(run_parallel(tasks.one_fails, paths, 2))


def test_a_worker_that_is_killed_is_an_error_that_says_how_to_go_on():
    with pytest.raises(ChildProcessError, match=r"a worker process died, .* the same command continues"):
        list(run_parallel(tasks.die, [Path("any")], 1))


def test_closing_stops_the_workers(tmp_path):
    paths = [tmp_path / "short", tmp_path / "endless"]
    work = run_parallel(tasks.one_ends, paths, 2)
    assert next(work) == (paths[0], "done")
    work.close()
    assert list(work) == []


def endless_program(tmp_path):
    """A program with two endless tasks, and whether both have begun."""
    paths = [tmp_path / "one", tmp_path / "two"]
    return ["-c", ENDLESS, *map(str, paths)], lambda: all(p.exists() for p in paths)


def test_ctrl_c_ends_all_of_them_at_once_and_only_the_parent_speaks_of_it(tmp_path):
    done = interrupt(*endless_program(tmp_path))
    assert done.code == -signal.SIGINT
    assert done.err.count("Traceback") == 1
    assert done.err.rstrip().endswith("KeyboardInterrupt")


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    program, ready = endless_program(tmp_path)
    parent = subprocess.Popen([sys.executable, *program], start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        wait_until(ready)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not group_exists(parent.pid))
    assert not group_exists(parent.pid)
