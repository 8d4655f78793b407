"""Checkpoints in the folder of a run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from asng.nas._loop import Checkpoint
from asng.runs import Run


class RunCheckpoint(Checkpoint):
    """A checkpoint in the folder of a run, which the run has locked."""

    def __init__(self, run: Run, name: str, identity: Mapping[str, Any]) -> None:
        super().__init__(run.folder / name, identity)
        self._run = run

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def renew(self) -> None:
        self._run.renew()
