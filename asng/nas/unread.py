"""A warning for decisions that nothing reads: searching them has no effect."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from asng.nas.decision import Decision
from asng.nas.selection import Supernet

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
        if names:
            decisions, them = ("decision", "it") if len(names) == 1 else ("decisions", "them")
            warnings.warn(
                f"nothing has read the {decisions} {', '.join(map(repr, names[:5]))} in the first {WATCHED_STEPS} "
                f"steps, so that no architecture depends on {them}; does forward() use {them}?",
                stacklevel=2,
            )
        return True
