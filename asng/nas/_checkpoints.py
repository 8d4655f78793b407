"""Checkpoint files: written atomically by one process, with the previous one kept, and refused to other runs."""

import copy
import io
import os
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from asng import _files
from asng._checks import check_int
from asng._untrusted import open_regular, shorten

FORMAT = "asng checkpoint 2"
START_OVER = "use another path, or delete it to start over"
LOADABLE = frozenset({bool, int, float, str, type(None), torch.Tensor, torch.nn.Parameter})


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path` atomically; ValueError names what could not be loaded again."""
    content = {"format": FORMAT, "state": _to_loadable(state)}
    _files.make_folder_for(path)
    with _files.atomic_write(path, keep=_files.previous_path(path)) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's own, which hides that of the disk
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            file.flush()  # the first bytes, if they did not fit either
            raise


def _to_loadable(value: Any, where: str = "") -> Any:
    """Convert a state so that it loads with `weights_only=True`: NumPy's scalars, as of schedules, become Python's."""
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
                f"{path} is damaged or no checkpoint ({short_reason(error)}){_files.offer_previous(path)}"
            ) from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT or not isinstance(content.get("state"), dict):
        kind = f"an {found}" if str(found).startswith("asng checkpoint") else "no checkpoint of asng"
        raise ValueError(f"{path} is {kind}; this version reads an {FORMAT}{_files.offer_previous(path)}")
    return dict(content["state"])


def short_reason(error: Exception) -> str:
    """The first sentence of an exception's message.

    >>> short_reason(KeyError("model"))
    "it has no 'model'"
    """
    if isinstance(error, KeyError):
        return f"it has no {error}"
    text = (str(error) or type(error).__name__).splitlines()[0]
    return shorten(re.split(r"(?<=\w)\. ", text)[0], str, 200)


JobT = TypeVar("JobT")


class Records(Protocol):
    """The records of a job in a file, such as those of an `asng.runs.Run`."""

    def renew(self) -> None:
        """Raise ValueError if another process took over."""

    def restore(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Make these the records of the file."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the record of an epoch."""


class Checkpoint:
    """The checkpoint file of a job, locked while the job runs."""

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        records: Records | None = None,
        *,
        may_extend: bool = False,
    ) -> None:
        """`identity`: what a run must have in common with the one that saved the checkpoint; JSON-safe.

        `records`: a file that gets the record of each epoch before its state is saved.
        `may_extend`: a job may be continued under an identity that differs by more `epochs`.
        """
        self.path: Path = path
        self.identity: dict[str, Any] = dict(identity)
        self.records: Records | None = records
        self._may_extend = may_extend
        self._lock: _files.Lock | None = None

    def lock(self) -> None:
        """Refuse other writers until `release`; raises ValueError if there is one."""
        if self.records is None:  # otherwise their folder is locked
            self.path = self.path.resolve() if os.path.islink(self.path) else self.path  # the link stays
            self._lock = _files.lock_checkpoint(self.path)

    def release(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.release()

    def load(self) -> dict[str, Any] | None:
        """The saved state, or None; raises ValueError if it has another identity."""
        if not os.path.exists(self.path):  # False, too, where the folder cannot be entered
            return None
        state = load(self.path)
        with self.explain_errors():
            identity = dict(state["identity"])
            there, here = identity.get("epochs"), self.identity.get("epochs")
            # None where there is another schedule than the default one, which is a difference by itself.
            if self._may_extend and (there is None or here is None or (isinstance(there, int) and there < here)):
                identity["epochs"] = here
            another = _files.differences(identity, self.identity)
        if another:
            raise ValueError(
                f"{self.path} is of another run ({another}); to continue it, restore these settings; {START_OVER}"
            )
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint; raises ValueError if another process took over."""
        for writer in (self.records, self._lock):
            if writer is not None:
                writer.renew()
        save(self.path, {"identity": self.identity, **state})

    def remove(self) -> None:
        """Remove the checkpoint of a job whose result was kept, and the one before it."""
        for path in (self.path, _files.previous_path(self.path)):
            path.unlink(missing_ok=True)

    def restore(self, make_job: Callable[[], JobT]) -> tuple[JobT, int]:
        """Make a job that will not run, such as to test its model, with the saved state; and how many steps it made.

        The job is made after the identity has been compared, since that may take long.
        """
        state = self.load()
        if state is None:
            raise ValueError(f"there is no {self.path} yet; let the run reach its first checkpoint")
        job: Any = make_job()
        with self.explain_errors():
            job.load_state_dict(state["job"])
            return job, check_int(state["index"], "index", min=0)

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turn any error in reading a foreign state into a ValueError that names the checkpoint and the cure."""
        try:
            yield
        except torch.OutOfMemoryError:  # not the checkpoint's fault
            raise
        except Exception as error:
            reason = short_reason(error)
            raise ValueError(f"{self.path} is of another run ({reason}); {START_OVER}") from None
