"""SIGTERM, by which batch systems ask a process to end, treated as Ctrl-C."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM, unless the caller handles that signal; only in the main thread.

    Processes forked inside the block die of it as usual.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() == process:
            raise KeyboardInterrupt
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
