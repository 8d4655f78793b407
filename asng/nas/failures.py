"""Candidates that run out of memory: they rank last, their gradients are dropped, and the search goes on."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from asng import checkpoints

FAILURES = (torch.OutOfMemoryError, MemoryError)
MAX_FAILED_STEPS = 5  # in a row in which every candidate failed

T = TypeVar("T")


class Failures:
    """Runs candidates; warns once per architecture that fails, and raises when nothing else is left."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._warned: set[str] = set()
        self.steps = 0  # in a row in which every candidate of a half failed

    def attempt(self, values: Mapping[str, Any], run: Callable[..., T], *arguments: Any) -> T | None:
        """Return `run(*arguments)` for a candidate with these values; None if it ran out of memory."""
        try:
            return run(*arguments)
        except FAILURES as error:
            reason = checkpoints.short_reason(error)
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
