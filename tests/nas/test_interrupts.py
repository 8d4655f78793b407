"""Ctrl-C, SIGTERM and SIGHUP wait for the end of a step, reach what was started meanwhile, and are never lost."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from asng import _signals
from asng._signals import DEFAULTS, delay_interrupts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # which is how some loaders start their workers
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here"),
]
CHILDREN = 16  # nearly all lose a signal that is sent as they start, unless it is blocked meanwhile
SHOW_SIGNALS = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGTERM))"


def fork(function):
    """The id of a new process, which ends with what the function returns."""
    child = os.fork()
    if child == 0:
        code = 99
        with contextlib.suppress(BaseException):
            code = function()
        os._exit(code)
    return child


def exit_code(child):
    """How a process ended; a failure if it has not after half a minute."""
    for _ in range(3000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child goes on")


def in_a_thread(function):
    """What a function returns in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def directly(function):
    return function()


def signal_mask():
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


# Here ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", DEFAULTS)
def test_one_signal_waits_and_a_second_one_does_not(number, monkeypatch):
    monkeypatch.setattr(_signals, "BURST", 0.0)
    handler = signal.getsignal(number)
    with contextlib.suppress(KeyboardInterrupt), delay_interrupts() as interrupted:
        assert not interrupted()
        signal.raise_signal(number)
        assert interrupted()
        signal.raise_signal(number)
        pytest.fail("the second one waited, too")
    assert signal.getsignal(number) is handler


@pytest.mark.parametrize("number", DEFAULTS)
def test_a_burst_of_signals_waits_as_one(number):
    noticed = []
    with contextlib.suppress(KeyboardInterrupt), delay_interrupts() as interrupted:
        for _ in range(3):
            signal.raise_signal(number)
        noticed.append(interrupted())
        raise KeyboardInterrupt("after this step")
    assert noticed == [True]


@pytest.mark.parametrize("number", DEFAULTS)
def test_a_burst_that_was_delayed_interrupts_what_is_around_once(number):
    received = []
    with contextlib.suppress(KeyboardInterrupt), _signals.sigterm_as_interrupt():
        try:
            with delay_interrupts():
                signal.raise_signal(number)
                signal.raise_signal(number)
            pytest.fail("they are lost")
        finally:
            received.append("clean-up begins")
            signal.raise_signal(number)
            received.append("clean-up ends")
    assert received == ["clean-up begins", "clean-up ends"]


@pytest.mark.parametrize("number", DEFAULTS)
def test_a_signal_without_an_answer_is_sent_again_on_exit(number):
    received: list[int] = []
    handler = signal.signal(number, lambda number, frame: received.append(number))
    try:
        with delay_interrupts():
            signal.raise_signal(number)
            assert received == []
        assert received == [number]
        with contextlib.suppress(KeyboardInterrupt), delay_interrupts():
            signal.raise_signal(number)
            raise KeyboardInterrupt("stopped after this step")
        assert received == [number]
    finally:
        signal.signal(number, handler)


@pytest.mark.parametrize("number", DEFAULTS)
def test_an_ignored_signal_stays_ignored(number):
    handler = signal.signal(number, signal.SIG_IGN)  # as SIGHUP under nohup
    try:
        with delay_interrupts() as interrupted:
            signal.raise_signal(number)
            assert not interrupted()
    finally:
        signal.signal(number, handler)


def test_a_handler_that_is_not_of_python_stays(monkeypatch):
    got = {signal.SIGINT: signal.default_int_handler}  # None for the others: what a library set by itself
    touched = []
    monkeypatch.setattr(signal, "getsignal", got.get)
    monkeypatch.setattr(signal, "signal", lambda number, handler: touched.append(number))
    with delay_interrupts() as interrupted:
        assert not interrupted()
    assert touched == [signal.SIGINT, signal.SIGINT]


# In children ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [directly, in_a_thread])
def test_children_end_by_a_sigterm_that_comes_as_they_start(run):
    def start_and_end():
        child = fork(lambda: time.sleep(60))
        os.kill(child, signal.SIGTERM)
        return exit_code(child)

    with delay_interrupts() as interrupted:
        assert run(lambda: [start_and_end() for _ in range(CHILDREN)]) == [-signal.SIGTERM] * CHILDREN
        assert not interrupted()


@pytest.mark.parametrize("run", [directly, in_a_thread])
def test_children_note_a_ctrl_c_that_comes_as_they_start(run):
    with delay_interrupts() as interrupted:

        def wait():
            while not interrupted():
                time.sleep(0.001)
            return 5

        def start_and_interrupt():
            child = fork(wait)
            os.kill(child, signal.SIGINT)
            return exit_code(child)

        assert run(lambda: [start_and_interrupt() for _ in range(CHILDREN)]) == [5] * CHILDREN
        assert not interrupted()


def test_processes_of_multiprocessing_end_when_terminated_as_they_start():
    context = multiprocessing.get_context("fork")
    with delay_interrupts() as interrupted:
        children = [context.Process(target=time.sleep, args=(60,), daemon=True) for _ in range(CHILDREN)]
        for child in children:
            child.start()
            child.terminate()
        for child in children:
            child.join(30)
        assert [child.exitcode for child in children] == [-signal.SIGTERM] * CHILDREN
        assert not interrupted()


def test_children_of_nested_blocks_end_by_sigterm():
    with delay_interrupts(), delay_interrupts():
        assert exit_code(fork(lambda: signal.raise_signal(signal.SIGTERM))) == -signal.SIGTERM


def test_children_keep_a_sigterm_handler_from_before():
    handler = signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
    try:
        with delay_interrupts():
            assert exit_code(fork(lambda: signal.raise_signal(signal.SIGTERM))) == 7
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_grandchild_keeps_the_handler_that_its_parent_has_set():
    def child():
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
        return exit_code(fork(lambda: signal.raise_signal(signal.SIGTERM)))

    with delay_interrupts():
        assert exit_code(fork(child)) == 7


def batches_of_workers_that_get(number):
    """How many batches a loader gives whose workers get a signal before their first one."""

    def start(worker):
        os.kill(os.getpid(), number)

    items = TensorDataset(torch.arange(8))
    return len(list(DataLoader(items, num_workers=1, multiprocessing_context="fork", worker_init_fn=start)))


def test_the_workers_of_a_loader_outlive_ctrl_c_but_not_sigterm():
    with delay_interrupts() as interrupted:
        assert batches_of_workers_that_get(signal.SIGINT) == 8
        with pytest.raises(RuntimeError, match="worker"):
            batches_of_workers_that_get(signal.SIGTERM)
        assert not interrupted()


# Masks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [set(), {signal.SIGTERM}, {signal.SIGUSR1}])
@pytest.mark.parametrize("run", [directly, in_a_thread])
def test_what_was_blocked_stays_blocked_and_nothing_else(run, before):
    def compare():
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, before)
        expected = signal_mask()
        try:
            return exit_code(fork(lambda: 3 if signal_mask() == expected else 4)), signal_mask() == expected
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    with delay_interrupts():
        assert run(compare) == (3, True)


def test_signals_are_blocked_only_while_they_wait(monkeypatch):
    calls, change = [], signal.pthread_sigmask

    def record(how, mask):
        calls.append((how, set(mask)))
        return change(how, mask)

    monkeypatch.setattr(signal, "pthread_sigmask", record)
    assert exit_code(fork(lambda: 3)) == 3
    assert calls == []
    with delay_interrupts():
        assert exit_code(fork(lambda: 3)) == 3
    assert calls[-2:] == [(signal.SIG_BLOCK, set(DEFAULTS)), (signal.SIG_UNBLOCK, set(DEFAULTS))]


STARTS: dict[str, dict[str, Any]] = {
    "vfork": {},
    "posix_spawn": {"close_fds": False},
    "fork and preexec_fn": {"preexec_fn": os.getpid},
}


@pytest.mark.parametrize("how", STARTS)
def test_a_program_starts_with_the_signals_that_it_has_outside(how):
    def start():
        return subprocess.run(
            [sys.executable, "-c", SHOW_SIGNALS], capture_output=True, check=True, **STARTS[how]
        ).stdout

    outside = start()
    with delay_interrupts():
        assert start() == outside
