"""Tasks for workers, in a module that they load quickly."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

LONG = 300.0  # seconds, after which waiting is in vain, however busy the machine is


def square(number: float) -> float:
    return number**2


def for_long() -> Iterator[None]:
    """Rounds of waiting, which are an error in the end so that no test hangs."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        yield
    raise TimeoutError("waited in vain")


def endless(path: Path) -> None:
    """Writes a file when it has begun, and does not end by itself."""
    path.touch()
    for _ in for_long():
        pass


def meets(path: Path) -> None:
    """Of two tasks, each ends when the other has begun: only together."""
    path.touch()
    for _ in for_long():
        if len(list(path.parent.iterdir())) == 2:
            return


def one_ends(path: Path) -> str:
    """Of two tasks, the one called "short" ends as soon as the other has begun, which goes on."""
    if path.name != "short":
        endless(path)
    for _ in for_long():
        if list(path.parent.iterdir()):
            break
    return "done"


def one_fails(path: Path) -> None:
    """The same, but with an error."""
    one_ends(path)
    raise ValueError(f"{path.name} cannot be done")


def die(path: Path) -> None:
    """As by lack of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def environment(name: str) -> tuple[str | None, bool]:
    """A variable of the environment, and whether Ctrl-C is left to the parent."""
    return os.environ.get(name), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
