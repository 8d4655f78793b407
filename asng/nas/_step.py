"""The record of one iteration of one-shot search."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """The record of one iteration; that of a half, by `train_step` or `judge_step`, is empty for the other one.

    Attributes:
        train_losses: Of the candidates for the weights; inf: out of memory. Empty where none was feasible.
        valid_losses: Of the candidates that moved the distribution; None: infeasible, not run. Empty with a judge.
        train_metrics: One mapping per candidate; empty without metrics, and for those out of memory.
        valid_metrics: The same, by the judge if there is one; also empty for infeasible candidates.
        candidates: The values of the candidates that moved the distribution.
        violations: How far each is beyond the first limit that it violates, relative to it; 0: feasible.
        scores: The numbers that ranked the candidates: the judge's, or else the losses; None: infeasible, not run.

    >>> numbers = {"train_losses": (0.5, 0.7), "valid_losses": (0.4, None), "violations": (0.0, 0.1)}
    >>> step = Step(**numbers, scores=(0.4, None), candidates=({"act": 0}, {"act": 1}))
    >>> step.train_loss, step.valid_loss, step.score
    (0.6, 0.4, 0.4)
    """

    train_losses: tuple[float, ...] = ()
    valid_losses: tuple[float | None, ...] = ()
    train_metrics: tuple[dict[str, float], ...] = ()
    valid_metrics: tuple[dict[str, float], ...] = ()
    candidates: tuple[dict[str, Any], ...] = ()
    violations: tuple[float, ...] = ()
    scores: tuple[float | None, ...] = ()

    @property
    def train_loss(self) -> float:
        """The mean of the finite losses that moved the weights; NaN if there are none."""
        return finite_mean(self.train_losses)

    @property
    def valid_loss(self) -> float:
        """The mean of the finite losses that moved the distribution; NaN if there are none, as with a judge.

        `score` is the mean of the numbers that ranked the candidates, with a judge and without.
        """
        return finite_mean(self.valid_losses)

    @property
    def score(self) -> float:
        """The mean of the finite scores; NaN if there are none."""
        return finite_mean(self.scores)


def finite_mean(numbers: Iterable[float | None]) -> float:
    """The mean of the finite numbers; NaN if there are none.

    >>> finite_mean([1.0, None, math.inf, 3.0])
    2.0
    """
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    return sum(finite) / len(finite) if finite else math.nan
