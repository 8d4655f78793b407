"""Candidates that are watched as they run: those that run out of memory, and decisions that nothing reads."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from asng.nas import _checkpoints
from asng.nas._decision import Decision
from asng.nas.supernet import Supernet

FAILURES = (torch.OutOfMemoryError, MemoryError)
MAX_FAILED_STEPS = 5  # in a row in which every candidate failed

T = TypeVar("T")


class Failures:
    """Runs candidates; warns once per architecture that fails, and raises when nothing else is left."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._warned: set[str] = set()
        self.steps = 0  # in a row in which every candidate of a half failed

    def attempt(self, run: Callable[..., T], values: Mapping[str, Any], *arguments: Any) -> T | None:
        """Return `run(values, *arguments)` for a candidate with these values; None if it ran out of memory."""
        try:
            return run(values, *arguments)
        except FAILURES as error:
            reason = _checkpoints.short_reason(error)
        # Only here is the traceback gone, whose frames hold the activations.
        del arguments
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if str(values) not in self._warned:
            self._warned.add(str(values))
            warnings.warn(
                f"the architecture {dict(values)} ran out of memory ({reason}); it ranks last where it is judged, and "
                "its gradient is dropped. If many do, use smaller batches, or limit the size of the architectures",
                stacklevel=2,
            )
        return None

    def end_step(self, every_candidate: bool) -> None:
        """Raise RuntimeError after five steps in a row in which every candidate of a half failed."""
        self.steps = self.steps + 1 if every_candidate else 0
        if self.steps >= MAX_FAILED_STEPS:
            self.steps = 0
            raise RuntimeError(
                f"every candidate of {MAX_FAILED_STEPS} steps in a row ran out of memory; "
                "use smaller batches, or let the model's decisions go smaller"
            )


WATCHED_STEPS = 10  # that are watched
MIN_CANDIDATES = 10  # in which a decision was active and not read, before it is warned of


class UnreadDecisions:
    """Watches the candidates of the first steps, and warns of decisions that were active but never read."""

    def __init__(self, supernet: Supernet) -> None:
        self._supernet = supernet
        self._modules = [module for module in supernet.paths if isinstance(module, Decision)]
        self._active = dict.fromkeys(supernet.space, 0)  # of decisions not read so far: in how many candidates
        self._steps = 0

    @contextmanager
    def watch(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Record which of the selected values are read."""
        read: set[str] = set()
        for decision in self._modules:
            decision.__dict__["selected"] = (*decision.selected, read)
        try:
            yield
        finally:
            for decision in self._modules:
                decision.__dict__["selected"] = ()
            self._supernet.choose(values)
            for name in read:
                self._active.pop(name, None)
        if self._active:
            for name in self._active.keys() & self._supernet.active(values):
                self._active[name] += 1

    def end_step(self) -> bool:
        """Return True if there is nothing more to watch; warn of decisions that were never read."""
        self._steps += 1
        if self._active and self._steps < WATCHED_STEPS:
            return False
        names = [name for name, candidates in self._active.items() if candidates >= MIN_CANDIDATES]
        if names and not _has_compiled():  # reads in compiled code, such as a loss, are not seen
            decisions, them = ("decision", "it") if len(names) == 1 else ("decisions", "them")
            warnings.warn(
                f"nothing has read the {decisions} {', '.join(map(repr, names[:5]))} in the first {WATCHED_STEPS} "
                f"steps, so that no architecture depends on {them}; does forward() use {them}?",
                stacklevel=2,
            )
        return True


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")  # loaded if so
    return dynamo is not None and dynamo.counters["frames"]["total"] > 0
