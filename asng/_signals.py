"""Ctrl-C and SIGTERM, by which batch systems ask a process to end: both interrupt, and a burst of them does so once."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
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


def send_again(number: int) -> None:
    """Send a signal that was delayed to this process; it is the first of a burst."""
    _burst.begin = -math.inf
    signal.raise_signal(number)


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
