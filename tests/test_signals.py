"""SIGTERM and SIGHUP are treated as Ctrl-C where a block asks for it, and only there."""

import os
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress

import pytest

from asng import Integer, _signals, minimize
from asng._signals import DEFAULTS, hold_signals, sigterm_as_interrupt
from tests.helpers.tasks import LONG


@pytest.mark.parametrize("number", DEFAULTS)
def test_each_signal_interrupts_and_its_handler_goes_with_the_block(number):
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        signal.raise_signal(number)
    assert signal.getsignal(number) is DEFAULTS[number]


def test_a_ctrl_c_that_killed_the_process_before_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the console script does
    try:
        with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
            signal.raise_signal(signal.SIGINT)
    finally:
        assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.default_int_handler


class InterruptedWhenFreed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def interrupt_in_a_finalizer():
    InterruptedWhenFreed()


def interrupt_in_a_callback():
    """As in the callback of a weak reference by which Python cleans up after each import."""
    thing = threading.Event()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing
    assert reference() is None


@pytest.mark.parametrize("interrupt", [interrupt_in_a_finalizer, interrupt_in_a_callback])
def test_an_interrupt_that_python_drops_comes_again(interrupt):
    hook, begin = sys.unraisablehook, time.monotonic()
    with suppress(KeyboardInterrupt), sigterm_as_interrupt():
        interrupt()
        time.sleep(LONG)
    assert time.monotonic() - begin < LONG
    assert sys.unraisablehook is hook


def test_other_exceptions_that_python_drops_are_reported_as_before(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: reported.append(dropped.exc_type))
    thing = threading.Event()
    reference = weakref.ref(thing, lambda _: 1 / 0)
    with sigterm_as_interrupt():
        del thing
    assert (reference(), reported) == (None, [ZeroDivisionError])


def test_an_interrupt_inside_the_making_of_a_class_is_one():
    class Attribute:
        def __set_name__(self, owner, name):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        type("Made", (), {"attribute": Attribute()})


@pytest.mark.parametrize("second", DEFAULTS)
@pytest.mark.parametrize("first", DEFAULTS)
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


def send_to_this_thread(number):
    signal.raise_signal(number)


def send_to_another_thread(number):
    """As a terminal may; Python calls its handler in the main thread, whatever that thread blocks."""
    thread = threading.Thread(target=unblock_and_raise, args=(number,))
    thread.start()
    thread.join()


def unblock_and_raise(number):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    signal.raise_signal(number)


@pytest.mark.parametrize("send", [send_to_this_thread, send_to_another_thread])
@pytest.mark.parametrize("number", DEFAULTS)
def test_held_signals_come_at_the_end_of_the_block_and_once(number, send):
    ended = []
    with suppress(KeyboardInterrupt), sigterm_as_interrupt():
        with hold_signals():
            send(number)
            send(number)
            ended.append("block")
        ended.append("what follows")
    assert ended == ["block"]
    assert signal.getsignal(number) is DEFAULTS[number]
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


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


@pytest.mark.parametrize("number", DEFAULTS)
def test_an_ignored_signal_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)  # as SIGHUP under nohup
    try:
        with sigterm_as_interrupt():
            signal.raise_signal(number)
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


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
