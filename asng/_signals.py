"""Ctrl-C, SIGTERM of batch systems and SIGHUP of a closed terminal: all interrupt, and a burst of them does so once."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

BURST = 1.0  # seconds: a terminal, torchrun and a batch system may each send a signal
MOMENT = 0.01  # seconds
DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if hasattr(signal, "SIGHUP"):  # not on Windows
    DEFAULTS[signal.SIGHUP] = signal.SIG_DFL
_burst = SimpleNamespace(begin=-math.inf)  # the last one


def is_first_of_burst(begin: float) -> bool:
    """In the handler of a block that began at a time: whether no other signal came in it less than a second ago.

    An exception out of the second signal of a burst would leave the clean-up after the first one undone.
    """
    now = time.monotonic()
    if begin <= _burst.begin and now - _burst.begin < BURST:
        return False
    _burst.begin = now
    return True


def send_again(number: int) -> None:
    """Send a signal that was delayed to this process; it is the first of a burst."""
    _burst.begin = -math.inf
    signal.raise_signal(number)


def _interrupt_main_thread() -> None:
    _burst.begin = -math.inf
    if hasattr(signal, "pthread_kill"):  # not on Windows
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which wakes it, if it waits
    else:
        signal.raise_signal(signal.SIGINT)


def ignore_signals() -> None:
    """Ignore Ctrl-C, SIGTERM and SIGHUP from now on."""
    for number in DEFAULTS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def exit_at_signals(code: int) -> Iterator[None]:
    """End the process at once at Ctrl-C, SIGTERM and SIGHUP: while there is nothing to save, as during imports.

    An exception out of the import of a library may leave it half made, so that the process dies of it at its exit.
    """
    ours = _held_signals()
    for number in ours:
        signal.signal(number, lambda number, frame: os._exit(code))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, DEFAULTS[number])


def _held_signals() -> list[int]:
    """The signals that a block may handle: none outside of the main thread, nor those that the caller handles."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number, default in DEFAULTS.items() if signal.getsignal(number) in (default, signal.SIG_DFL)]


def _own_handlers() -> dict[int, Any]:
    """Handlers that are Python's; None is one that is not."""
    handlers = {number: signal.getsignal(number) for number in DEFAULTS}
    return {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}


@contextmanager
def hold_signals() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP wait until the end of the block, where the first of them is sent again.

    They are blocked in this thread, and so in the processes that it starts. Another thread may get them nevertheless;
    Python would then call the handler in the main thread.
    """
    waiting: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    ours = _own_handlers() if in_main_thread else {}
    for number in ours:
        signal.signal(number, lambda number, frame: waiting.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, DEFAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in ours.items():
            signal.signal(number, handler)
    if waiting:
        send_again(waiting[0])


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP as at Ctrl-C, once in a burst; not if the caller handles them.

    Only in the main thread. Processes forked inside the block handle the signals as usual. A KeyboardInterrupt that
    Python drops, as in the callbacks that clean up after imports, is raised again a moment later.
    """
    ours = _held_signals()
    process, begin, report_dropped = os.getpid(), time.monotonic(), sys.unraisablehook

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() != process:
            signal.signal(number, DEFAULTS[number])
            signal.raise_signal(number)
        elif is_first_of_burst(begin):
            raise KeyboardInterrupt

    def interrupt_again(dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(MOMENT, _interrupt_main_thread).start()  # here it would be dropped, too
        else:
            report_dropped(dropped)

    for number in ours:
        signal.signal(number, interrupt)
    if ours:
        sys.unraisablehook = interrupt_again
    try:
        yield
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 wraps those of `__set_name__`
            raise error.__cause__ from None
        raise
    finally:
        if ours:
            sys.unraisablehook = report_dropped
        for number in ours:
            signal.signal(number, DEFAULTS[number])


@contextmanager
def delay_interrupts() -> Iterator[Callable[[], bool]]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of a step, so that a whole state is saved; not a second one.

    Signals within a second count as one; those that are ignored, as SIGHUP under nohup, stay so. Yields a function that
    tells whether a signal came. A signal that the block has not answered with an exception, such as one after its last
    step, is sent again on exit. A process forked inside the block handles SIGTERM as if forked outside; the first
    Ctrl-C or SIGHUP does not end it: the step may need it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen: int | None = None
    begin = time.monotonic()

    def note(number: int, frame: Any) -> None:
        nonlocal seen
        is_first = is_first_of_burst(begin)
        if seen is None:
            seen = number
        elif is_first:
            raise KeyboardInterrupt

    ours = _own_handlers()
    _active.append((note, signal.getsignal(signal.SIGTERM)))
    try:
        for number in ours:
            signal.signal(number, note)
        yield lambda: seen is not None
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        _active.pop()
    if seen is not None:
        send_again(seen)


# A signal that reaches a child between fork() and Python's own work after it would be lost: Python's handler in C
# sets a flag, and that work clears all flags, since they may be the parent's. So the thread that forks blocks these
# signals around the fork. Children that do not go on in Python (subprocess, spawn) never run these hooks.

_active: list[tuple[Any, Any]] = []  # of each `delay_interrupts`: its handler, and the one of SIGTERM before it
_forking = threading.local()  # blocked: the signals that were not blocked before


def _before_fork() -> None:
    if _active:
        _forking.blocked = DEFAULTS.keys() - signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_BLOCK, DEFAULTS)  # may raise: a second Ctrl-C just before


def _after_fork() -> None:
    blocked = _forking.__dict__.pop("blocked", None)
    if blocked:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)


def _after_fork_in_child() -> None:
    for note, before in reversed(_active):
        if signal.getsignal(signal.SIGTERM) is note:
            signal.signal(signal.SIGTERM, before)
    _after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
