"""How far candidates are beyond limits: infeasible ones are ranked behind all others by it."""

import math
from collections.abc import Sequence
from typing import NamedTuple

WORST_LOSS = 1e300  # told for what has no finite loss; all others are taken to be below it


class Violation(NamedTuple):
    """The violation of limits by a candidate; the smaller of two, compared as tuples, is nearer to feasible.

    Attributes:
        not_reached: The number of limits after the first violated one, which were not measured.
        amount: How far it is beyond the first violated limit, relative to the bound of an `asng.nas.Limit`; 0 for
            feasible candidates.

    >>> Violation(not_reached=0, amount=0.5) < Violation(not_reached=1, amount=0.1)
    True
    """

    not_reached: int
    amount: float


FEASIBLE = Violation(0, 0.0)


def rank_losses(losses: Sequence[float], violations: Sequence[Violation]) -> list[float]:
    """Losses of which the order is that of candidates: by loss, then those without a finite one, then by violation.

    >>> rank_losses([math.inf, 0.5, math.inf], [FEASIBLE, FEASIBLE, Violation(0, 2.0)])
    [1e+300, 0.5, 2e+300]
    """
    if all(violation == FEASIBLE for violation in violations):
        return [*losses]
    steps = sorted({FEASIBLE, *violations})
    return [
        loss if math.isfinite(loss) else WORST_LOSS * (1 + steps.index(violation))
        for loss, violation in zip(losses, violations, strict=True)
    ]
