"""Learning-rate schedules of a search: the user's, or a cosine to 0."""

import math
import warnings
from collections.abc import Iterable
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau

from asng.nas._identity import length_of
from asng.nas._weight_optimizers import as_list, check_alike

INTERVALS = ("epoch", "step")


class Schedules:
    """The schedulers of a search, stepped after every epoch or after every step.

    Args:
        weight_optimizer: The optimizer, or a list of several.
        epochs: Of the search.
        given: A scheduler or a list of them; None for a cosine to 0 for each optimizer.
        interval: "epoch" or "step".
        train_loader: Whose length is that of an epoch in steps.

    Raises:
        ValueError: A scheduler is of another optimizer or ends too early, the interval is another word, or a length
            is unknown.
    """

    def __init__(
        self,
        weight_optimizer: Any,
        epochs: int,
        *,
        given: Any = None,
        interval: str = "epoch",
        train_loader: Iterable[Any] = (),
    ) -> None:
        if interval not in INTERVALS:
            raise ValueError(f'scheduler_interval must be "epoch" or "step", got {interval!r}')
        for scheduler in [] if given is None else as_list(given):
            if not any(getattr(scheduler, "optimizer", None) is one for one in as_list(weight_optimizer)):
                raise ValueError(
                    "lr_scheduler belongs to another optimizer; pass the one it was made with as weight_optimizer"
                )
        self._per_step = interval == "step"
        self._optimizers, self._epochs, self._train_loader = as_list(weight_optimizer), epochs, train_loader
        self._is_default = given is None
        self._schedulers: list[Any] = self._cosines(epochs) if given is None else as_list(given)
        steps = length_of(train_loader) or 0
        for scheduler in self._schedulers:
            _check_cycle(scheduler, epochs * (steps if self._per_step else 1))
            if not self._per_step and steps > 1:
                _warn_of_steps(scheduler, epochs, epochs * steps)

    def _cosines(self, epochs: int) -> list[CosineAnnealingLR]:
        length = epochs
        if self._per_step:
            steps = length_of(self._train_loader)
            if steps is None:
                raise ValueError(
                    "train_loader has no length, which the default schedule needs for scheduler_interval='step'; pass "
                    "an lr_scheduler"
                )
            length = epochs * steps
        return [CosineAnnealingLR(optimizer, length) for optimizer in self._optimizers]

    def end_step(self, score: float) -> None:
        """Step what is stepped after every step; `score`: its mean score, NaN if nothing was judged."""
        if self._per_step:
            self._step(score)

    def end_epoch(self, score: float) -> None:
        """Step what is stepped after every epoch; `score`: its mean score."""
        if not self._per_step:
            self._step(score)

    def _step(self, score: float) -> None:
        with warnings.catch_warnings():  # there may have been no step of the weights yet
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for scheduler in self._schedulers:
                _check_cycle(scheduler, scheduler.last_epoch + 1)
                if not isinstance(scheduler, ReduceLROnPlateau):
                    scheduler.step()
                elif not (self._per_step and math.isnan(score)):
                    scheduler.step(score)

    def state_dict(self) -> Any:
        """The state of the scheduler, or a list of those of several."""
        states = [scheduler.state_dict() for scheduler in self._schedulers]
        return states[0] if len(states) == 1 else states

    def load_state_dict(self, state: Any, done: int) -> None:
        """Restore such a state, after as many epochs as are done; the optimizers have theirs already.

        Where the default schedule ended and there are more epochs to come, it starts over for these.
        """
        for scheduler, saved in zip(self._schedulers, as_list(state), strict=True):
            check_alike(saved, scheduler.state_dict(), "lr_scheduler")
            scheduler.load_state_dict(saved)
        if self._is_default and done < self._epochs and self._schedulers[0].last_epoch == self._schedulers[0].T_max:
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"]
            self._schedulers = self._cosines(self._epochs - done)


def _check_cycle(scheduler: Any, steps: int) -> None:
    """Raise ValueError for a OneCycleLR that ends before so many steps."""
    if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < steps:
        raise ValueError(
            f"OneCycleLR ends after total_steps={scheduler.total_steps} and cannot go on, but this search steps it "
            f"{steps} times; search for fewer epochs, or begin again with more total_steps and another checkpoint"
        )


def _warn_of_steps(scheduler: Any, epochs: int, steps: int) -> None:
    """Warn of a schedule that has the length of all steps, but is stepped after every epoch."""
    length = getattr(scheduler, "total_steps", getattr(scheduler, "T_max", None))
    if length == steps:
        warnings.warn(
            f"{type(scheduler).__name__} is made for {steps} steps, as many as this search has, but is stepped after "
            f"each of {epochs} epochs; pass scheduler_interval='step'",
            stacklevel=4,
        )
