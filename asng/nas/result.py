"""What a search has found: the most likely architecture that meets all limits, and how likely it is."""

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from asng.asktell import Optimizer
from asng.nas import processes
from asng.nas.extraction import extract
from asng.nas.oneshot import OneShot
from asng.nas.selection import Values, place_of
from asng.optimizer import ASNG
from asng.space import Categorical, Integer, Normal

DRAWS = 1000  # for an architecture inside the limits, where the most likely one is outside


class MostLikely(NamedTuple):
    """An architecture, and how sure a search is of it."""

    values: dict[str, Any]
    inside: bool  # whether it meets all limits
    probability: float  # of drawing this network: variables without effect on it, and real ones, do not count


@dataclass(frozen=True)
class Found:
    """What a search ends with."""

    values: dict[str, Any]  # the architecture: the most likely one that meets all limits
    inside: bool  # False where none met the limits, and a warning said so: then the nearest one
    probability: float  # of drawing this network from the final distribution, as in `MostLikely`
    model: nn.Module  # extracted, with the weights of the search; batch norms need `recalibrate`
    history: list[dict[str, float]]  # one record per epoch
    arch_optimizer: Optimizer


def found(oneshot: OneShot, history: Sequence[Mapping[str, float]] = ()) -> Found:
    """What a OneShot has found so far: its most likely architecture that meets all limits, extracted.

    Where none did that was drawn or met before, it is the nearest one, and a warning says how far outside.
    """
    likely = most_likely(oneshot)
    if not likely.inside and processes.is_first():
        warnings.warn(_too_much(oneshot, likely.values), stacklevel=2)
    model = extract(oneshot.model, likely.values)
    return Found(
        *likely, model=model, history=[dict(record) for record in history], arch_optimizer=oneshot.arch_optimizer
    )


def most_likely(oneshot: OneShot) -> MostLikely:
    """The most likely architecture that meets all limits, without extracting it; cheap enough for every epoch.

    Under limits that the most likely values do not meet, others are drawn and measured, up to a thousand.
    Of several processes all have to call it then, as the first one measures for all.
    """
    values = _choice(oneshot)
    arch_optimizer = oneshot.arch_optimizer
    active = oneshot.decisions.active(values)
    space = {name: variable for name, variable in arch_optimizer.space.items() if name in active}  # sums need an order
    return MostLikely(values, not oneshot.excess(values), probability(arch_optimizer.distribution(), space, values))


def _choice(oneshot: OneShot) -> dict[str, Any]:
    arch_optimizer = oneshot.arch_optimizer
    mode = arch_optimizer.mode()
    if not oneshot.excess(mode):
        return mode
    distribution, space = arch_optimizer.distribution(), arch_optimizer.space
    drawn = {oneshot.decisions.key(c.values): c.values for c in copy.deepcopy(arch_optimizer).ask(DRAWS)}
    for values in sorted(drawn.values(), key=lambda values: -probability(distribution, space, values)):
        if not oneshot.excess(values):
            return values
    return oneshot.costs.nearest() or mode


def _too_much(oneshot: OneShot, values: Values) -> str:
    pairs = zip(oneshot.costs.limits, oneshot.costs.of(values), strict=False)  # up to the first that is violated
    costs = ", ".join(f"{limit.name} {cost:.6g} of at most {limit.at_most:.6g}" for limit, cost in pairs)
    return (
        f"no architecture met all limits; the nearest has {costs}. "
        "Raise the limits, or let the model's decisions go smaller"
    )


def probability(distribution: Mapping[str, Any], space: Mapping[str, Any], values: Values) -> float:
    """The probability of the choices and integers of a space; real numbers, which have none, do not count."""
    logarithm = 0.0
    for name, variable in space.items():
        match variable:
            case Categorical():
                place = place_of(variable, values[name])
                assert place is not None
                logarithm += math.log(distribution[name][place])
            case Integer():
                logarithm += math.log(max(_mass(distribution[name], values[name], variable), 1e-300))
    return math.exp(logarithm)


def _mass(normal: Normal, value: int, variable: Integer) -> float:
    """Of the normal numbers that are clipped and rounded to a value."""
    low = -math.inf if value == variable.low else value - 0.5
    high = math.inf if value == variable.high else value + 0.5
    below = [0.5 * (1 + math.erf((edge - normal.mean) / (normal.std * math.sqrt(2)))) for edge in (low, high)]
    return below[1] - below[0]


def certainty(optimizer: Optimizer) -> dict[str, float]:
    """How far a search has come: the mean of the largest probabilities of its choices, and ASNG's step size."""
    largest = [float(np.max(p)) for p in optimizer.distribution().values() if isinstance(p, np.ndarray)]
    record = {"largest_probability": sum(largest) / len(largest)} if largest else {}
    return {**record, "delta": optimizer.delta} if isinstance(optimizer, ASNG) else record
