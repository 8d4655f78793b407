"""How far candidates are beyond limits: infeasible ones are ranked behind all others by it."""

from typing import NamedTuple

WORST_LOSS = 1e300  # told for infeasible candidates, which rank behind all finite losses


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
