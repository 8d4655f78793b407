"""Ctrl-C and SIGTERM, by which batch systems ask a process to end: both interrupt, and a burst of them does so once."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

BURST = 1.0  # seconds: a terminal, torchrun and a batch system may each send a signal
DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
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


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM from now on."""
    for number in DEFAULTS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM as at Ctrl-C, once in a burst; not at signals that the caller handles.

    Only in the main thread. Processes forked inside the block handle both as usual.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    ours = [number for number, default in DEFAULTS.items() if in_main_thread and signal.getsignal(number) is default]
    process, begin = os.getpid(), time.monotonic()

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() != process:
            signal.signal(number, DEFAULTS[number])
            signal.raise_signal(number)
        elif is_first_of_burst(begin):
            raise KeyboardInterrupt

    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, DEFAULTS[number])


@contextmanager
def delay_interrupts() -> Iterator[Callable[[], bool]]:
    """Delay Ctrl-C and SIGTERM until the end of a step, so that a whole state is saved; a second one is not delayed.

    Signals within a second count as one. Yields a function that tells whether a signal came. A signal that the block
    has not answered with an exception, such as one after its last step, is sent again on exit. A process forked inside
    the block handles SIGTERM as if forked outside; the first Ctrl-C does not end it, since the step may need it.
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

    handlers = {number: signal.getsignal(number) for number in DEFAULTS}
    ours = {number: handler for number, handler in handlers.items() if handler is not None}  # None: not Python's
    _active.append((note, handlers[signal.SIGTERM]))
    try:
        for number in ours:
            signal.signal(number, note)
        yield lambda: seen is not None
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        _active.pop()
    if seen is not None:
        _burst.begin = -math.inf  # sent again, it is the first one
        signal.raise_signal(seen)


# A signal that reaches a child between fork() and Python's own work after it would be lost: Python's handler in C
# sets a flag, and that work clears all flags, since they may be the parent's. So the thread that forks blocks both
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
