"""Checkpoint files: written atomically by one process, with the previous one kept; and delayed interrupts.

Ctrl-C and the SIGTERM of a batch system wait until the current step is done.
"""

import copy
import io
import os
import re
import signal
import threading
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asng._files import atomic_write, make_folder_for, offer_previous, previous_path
from asng._signals import DEFAULTS, is_first_of_burst, send_again
from asng._untrusted import open_regular

FORMAT = "asng checkpoint 2"
LOADABLE = frozenset({bool, int, float, str, type(None), torch.Tensor, torch.nn.Parameter})
STOP_SIGNALS = tuple(DEFAULTS)  # Ctrl-C; what batch systems send a while before they kill; a closed terminal


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path` atomically; ValueError names what could not be loaded again."""
    content = {"format": FORMAT, "state": _to_loadable(state)}
    make_folder_for(path)
    with atomic_write(path, keep=previous_path(path)) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's own, which hides that of the disk
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            file.flush()  # the first bytes, if they did not fit either
            raise


def _to_loadable(value: Any, where: str = "") -> Any:
    """What loads with `weights_only=True`: NumPy's scalars, as schedules may compute them, become Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(_to_loadable(item, f"{where}.{index}") for index, item in enumerate(value))
    if type(value) is dict:
        return {_to_loadable(key, where): _to_loadable(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) is OrderedDict:  # of a model
        value = copy.copy(value)  # with its attribute _metadata
        for key in value:
            value[key] = _to_loadable(value[key], f"{where}.{key}")
    elif type(value) not in LOADABLE and not _is_loadable(value):
        raise ValueError(
            f"a checkpoint cannot hold {where.removeprefix('.')}, which is a {type(value).__name__}; "
            "make it of numbers, text, tensors, lists and dicts"
        )
    return value


def _is_loadable(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # what cannot be pickled may raise anything
        return False
    return True


def load(path: Path) -> dict[str, Any]:
    """Load the state at `path` onto the CPU; ValueError says what is wrong and offers the previous checkpoint."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:  # torch itself does not notice changed weights
                changed = archive.testzip()
            if changed is not None:
                raise ValueError(f"{changed} has changed since it was written")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file may raise anything
            raise ValueError(
                f"{path} is damaged or no checkpoint ({short_reason(error)}){offer_previous(path)}"
            ) from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT or not isinstance(content.get("state"), dict):
        kind = f"an {found}" if str(found).startswith("asng checkpoint") else "no checkpoint of asng"
        raise ValueError(f"{path} is {kind}; this version reads an {FORMAT}{offer_previous(path)}")
    state: dict[str, Any] = content["state"]
    return state


def short_reason(error: Exception) -> str:
    """The first sentence of an exception's message.

    >>> short_reason(KeyError("model"))
    "it has no 'model'"
    """
    if isinstance(error, KeyError):
        return f"it has no {error}"
    text = (str(error) or type(error).__name__).splitlines()[0]
    return re.split(r"(?<=\w)\. ", text)[0][:200]


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

    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    others = (None, signal.SIG_IGN)  # None: not Python's
    ours = {number: handler for number, handler in handlers.items() if handler not in others}
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
        send_again(seen)


# A signal that reaches a child between fork() and Python's own work after it would be lost: Python's handler in C
# sets a flag, and that work clears all flags, since they may be the parent's. So the thread that forks blocks these
# signals around the fork. Children that do not go on in Python (subprocess, spawn) never run these hooks.

_active: list[tuple[Any, Any]] = []  # of each `delay_interrupts`: its handler, and the one of SIGTERM before it
_forking = threading.local()  # blocked: the signals that were not blocked before


def _before_fork() -> None:
    if _active:
        _forking.blocked = set(STOP_SIGNALS) - signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # may raise: a second Ctrl-C just before


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
