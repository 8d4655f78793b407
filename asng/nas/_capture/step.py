"""Steps of one-shot search as a CUDA graph that is captured at the first one; what is against it is said once."""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from asng.nas import _distributed
from asng.nas._candidates import Numbers
from asng.nas._capture import switch as _switch
from asng.nas._capture.cases import Refused, first_line, free_memory
from asng.nas._capture.iteration import Iteration
from asng.nas._capture.switch import unavailable_reason
from asng.nas._capture.update import unsupported_reason
from asng.nas._checks import unwrap
from asng.nas._notes import running_modules
from asng.nas.supernet import Supernet, Values

MAX_CAPTURES = 4  # of one search; each takes as long as many steps
MAX_MISFITS = 20  # batches of other shapes in a row that run plain, before the step is captured for theirs


class CapturedStep:
    """The iterations of a `OneShot` as a graph, captured at the first one; says once why it cannot be.

    Args:
        supernet: The model.
        make_iteration: (candidates in each half) -> an iteration that is not prepared yet.
        find_obstacle: () -> what is against it before anything is tried, or None.
    """

    def __init__(
        self, supernet: Supernet, make_iteration: Callable[[int], Iteration], find_obstacle: Callable[[], str | None]
    ) -> None:
        self._supernet, self._make_iteration, self._find_obstacle = supernet, make_iteration, find_obstacle
        self._iteration: Iteration | None = None
        self._captures = self._misfits = 0
        self._refused = self._warned_of_plain = False
        self.cost: dict[str, float] = {}  # of the last capture
        self._is_current = False  # the iteration knows which weights are touched, and their momentum

    def step(
        self, train: Sequence[Values], train_batch: Any, valid: Sequence[Values], n: int, valid_batch: Any
    ) -> tuple[list[Numbers], list[Numbers]] | None:
        """The numbers of the candidates; None where the plain path has to run them.

        `n` candidates were drawn for each half; those that are feasible are trained and judged.
        """
        iteration = self._find_iteration(n, train_batch, valid_batch) if train else None
        if iteration is None:
            self.leave()
            return None
        if not self._is_current:
            iteration.update.load()
            self._is_current = True
        return iteration.step(train, train_batch, valid, valid_batch)

    def _find_iteration(self, n: int, train_batch: Any, valid_batch: Any) -> Iteration | None:
        """The iteration for such batches, captured if need be."""
        if self._refused:
            return None
        change = None if self._iteration is None else self._iteration.update.find_change()
        if self._misfits == MAX_MISFITS:
            change = "the shape of batches"
        if self._iteration is None or change is not None:
            self.store()
            self._iteration = None  # which frees its memory
            self._iteration = self._capture_iteration(n, train_batch, valid_batch, change)
        if self._iteration is None or self._iteration.fits(n, train_batch, valid_batch):
            self._misfits = 0
            return self._iteration
        self._misfits += 1
        if reason := self._iteration.find_change(n, train_batch, valid_batch):
            self.store()
            self._iteration, self._is_current = None, False
            self._refuse(reason)
        return None

    @property
    def unread_decisions(self) -> list[str]:
        """The decisions that the captured step does not read."""
        return [] if self._iteration is None else self._iteration.unread_decisions

    def store(self) -> None:
        """Leave gradients and momentum where the plain path and checkpoints look for them."""
        if self._iteration is not None and self._is_current:
            self._iteration.update.store()

    def leave(self) -> None:
        """Let the plain path run a step."""
        self.store()
        self._is_current = False

    def run_plain(self, reason: str) -> None:
        """Let the plain path run a step that is never captured; warns once."""
        self.leave()
        if not self._refused and not self._warned_of_plain:
            self._warned_of_plain = True
            self._warn(reason)

    def forget(self) -> None:
        """Take over gradients and momentum before the next step: they were loaded."""
        self._is_current = False

    def release(self) -> None:
        """Free the memory of the graph; that capture does not count."""
        self.leave()
        if self._iteration is not None:
            self._iteration, self._captures = None, self._captures - 1

    def _capture_iteration(self, n: int, train_batch: Any, valid_batch: Any, change: str | None) -> Iteration | None:
        if self._captures == MAX_CAPTURES:
            reason = f"it was captured {MAX_CAPTURES} times, and {change} changes again"
        else:
            reason = self._find_obstacle() or ""
        if not reason:
            self._captures += 1
            try:
                return self._try_capture(n, train_batch, valid_batch)
            except _switch.BrokenCapture:
                raise
            except Exception as error:  # what is wrong with the model itself, the plain path raises again
                reason = _explain(error, self._supernet)
            free_memory()  # plain steps may need what the capture took
        self._refuse(reason)
        return None

    def _try_capture(self, n: int, train_batch: Any, valid_batch: Any) -> Iteration:
        start = time.perf_counter()
        free_memory()  # as a capture does: what it frees is not its own
        reserved = self._reserved_bytes()
        iteration = self._make_iteration(n)
        iteration.prepare(train_batch, valid_batch)
        iteration.capture()
        self._is_current = False
        gigabytes = (self._reserved_bytes() - reserved) / 1e9
        self.cost = {"capture_seconds": time.perf_counter() - start, "capture_gb": gigabytes}
        return iteration

    def _reserved_bytes(self) -> int:
        """Of the device that the weights are on; 0 of a CPU."""
        device = next(self._supernet.model.parameters()).device
        return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0

    def _refuse(self, reason: str) -> None:
        self._refused = True
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        """Warn, of several processes in one, at the line of the user's program, which called `step` or `nas.search`."""
        if not _distributed.is_rank0():
            return
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "asng":
            frame, level = frame.f_back, level + 1
        warnings.warn(f"the step is not captured as a CUDA graph, but runs as usual: {reason}", stacklevel=level)


def _explain(error: Exception, supernet: Supernet) -> str:
    """An error in one line, and the module in which it was raised."""
    reason = first_line(error)
    if isinstance(error, Refused):
        return reason
    modules = running_modules(error, supernet)
    where = "the loss or the judge"
    if modules:
        where = f"{supernet.paths[modules[-1]] or 'the model'} ({type(modules[-1]).__name__})"
    if "in-place" in reason:  # torch does not let the inputs of a case be overwritten
        reason = f"{reason.rstrip('.')}; leave out inplace=True"
    if "synchronizing" in reason:
        reason = (
            f"{reason.rstrip('.')}; leave out code that reads numbers of a tensor, such as item(), float() or an if"
        )
    return f"{reason} (in {where})"


def find_obstacle(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], amp_dtype: torch.dtype | None
) -> str | None:
    """Return why the steps of a model, perhaps in a wrapper, cannot be captured; None if nothing is known."""
    if len(optimizers) > 1:
        return "there are several weight optimizers"
    (optimizer,) = optimizers
    devices = {parameter.device for group in optimizer.param_groups for parameter in group["params"]}
    if {device.type for device in devices} != {"cuda"} or len(devices) > 1:
        return f"the weights are on {', '.join(sorted(map(str, devices)))}, and not on one CUDA device"
    if unwrap(model) is not model:
        return f"the model is wrapped in {type(model).__name__}"
    if _distributed.is_distributed():
        return "there are several processes"
    if amp_dtype is torch.float16:
        return "gradients are scaled, as float16 needs it"
    return unsupported_reason(optimizer) or unavailable_reason(*devices)
