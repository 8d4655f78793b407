"""SIGTERM is treated as Ctrl-C where a block asks for it, and only there."""

import os
import signal
import threading
from contextlib import suppress

import pytest

from asng import Integer, _signals, minimize
from asng._signals import sigterm_as_interrupt


def test_sigterm_interrupts_and_its_handler_goes_with_the_block():
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_signals_in_a_row_interrupt_once_so_that_clean_up_ends(first, second):
    ended = []
    with suppress(KeyboardInterrupt), sigterm_as_interrupt():
        try:
            signal.raise_signal(first)
            pytest.fail("nothing was interrupted")
        finally:
            signal.raise_signal(second)
            ended.append(True)
    assert ended == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_later_signal_interrupts_again(monkeypatch):
    monkeypatch.setattr(_signals, "BURST", 0.0)
    with sigterm_as_interrupt():
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)


def test_a_signal_counts_however_soon_after_one_of_an_earlier_block():
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
            signal.raise_signal(signal.SIGTERM)


def test_a_handler_of_the_callers_stays():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with sigterm_as_interrupt():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_other_threads_leave_the_handlers_alone():
    seen = []

    def look():
        with sigterm_as_interrupt():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_forked_child_is_interrupted_by_ctrl_c_as_usual():
    with sigterm_as_interrupt():
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
                code = 2
            os._exit(code)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_a_forked_child_dies_of_sigterm_as_usual():
    with sigterm_as_interrupt():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_minimize_ends_at_sigterm_with_the_result_so_far(tmp_path):
    def loss(values):
        if len(seen) == 9:
            signal.raise_signal(signal.SIGTERM)
        seen.append(values)
        return values["n"]

    seen: list[dict] = []
    settings = {"evaluations": 40, "seed": 0, "checkpoint": tmp_path / "state.json"}
    result = minimize(loss, {"n": Integer(1, 10**6)}, **settings)
    assert (result.stopped, result.evaluations) == ("interrupted", 9)
    whole = minimize(lambda values: values["n"], {"n": Integer(1, 10**6)}, evaluations=40, seed=0)
    assert minimize(lambda values: values["n"], {"n": Integer(1, 10**6)}, **settings).history == whole.history
