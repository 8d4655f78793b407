"""When a minimization has nothing left to find: it has converged, or its populations bring nothing new."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from asng._asktell import Optimizer
from asng._variable import Variable
from asng._violations import FEASIBLE, Violation
from asng.families import Bounds, Family
from asng.space import family_of

MAX_STALE = 10  # populations in a row that bring nothing new
MAX_INFEASIBLE = 1000  # populations in a row without an evaluation, some of them infeasible
NEAR = 0.2  # of the narrowest distribution, the distance that counts as having reached it
ENOUGH = 0.1  # of the smallest standard deviation of `Real`: reals as narrow as this may end it
FLAT = 1.0  # the same where all losses are equal, as nothing is learned there
SETTLED_EVALUATIONS = 10  # per variable, at the narrowest distribution, besides MAX_STALE populations


class StoppingRule:
    """Counts populations in a row without anything new, and those of a distribution that is narrow enough.

    A distribution is narrow enough when it cannot become much narrower. Reals could go on for long, each step a little
    better than the last: from a ten-thousandth of their range on this does not count any more, as restarts find more in
    as many evaluations.
    """

    def __init__(self, space: Mapping[str, Variable]) -> None:
        self._space = dict(space)
        parts = [variable.marginal() for variable in space.values()]
        self._has_reals = any(isinstance(part, Bounds) and part.is_real for part in parts)
        self._families: dict[float, Family] = {}
        self._stale = self._barren = self._settled = 0
        self._started = self._ended = 0  # evaluations until the last population

    def count(
        self,
        optimizer: Optimizer,
        losses: Sequence[tuple[float, Violation]],
        *,
        started: int,
        ended: int,
        best: int | None,
    ) -> None:
        """Take in a population that was told, the evaluations started and ended so far, and the index of the best."""
        if started > self._started:
            self._stale = self._barren = 0
        else:
            self._barren += 1
            self._stale += all(violation == FEASIBLE for _, violation in losses)
        improved = best is not None and best >= self._ended
        self._started, self._ended = started, ended
        is_narrow = self._is_narrow(optimizer, FLAT if len(set(losses)) == 1 else ENOUGH)
        could_go_on = self._has_reals and optimizer._real_std_factor < ENOUGH
        if improved and not (is_narrow and could_go_on):
            self._settled = 0
        else:  # noise drives the distribution away now and then
            self._settled = max(0, self._settled + (1 if is_narrow else -1))

    def _is_narrow(self, optimizer: Optimizer, factor: float) -> bool:
        """Whether the distribution is nearly as narrow as it may become, or as `family_of` has it with a larger factor.

        False for a family of the user's own.
        """
        if optimizer._has_custom_family:
            return False
        family = self._family(optimizer._mode_prob, max(factor, optimizer._real_std_factor))
        theta = family.project(optimizer.theta)
        narrowest = family.project(family.statistics(family.mode(theta)))
        distance = np.linalg.norm(family.whiten(narrowest, theta - narrowest))
        return bool(distance <= NEAR * family.root_dimension)

    def _family(self, mode_prob: float | None, factor: float) -> Family:
        if factor not in self._families:
            self._families[factor] = family_of(self._space, mode_prob=mode_prob, real_std_factor=factor)
        return self._families[factor]

    def reason(self, optimizer: Optimizer) -> str:
        """Why there is nothing left to find with this optimizer, or an empty text."""
        if self._stale >= MAX_STALE:
            return "nothing new"
        if self._barren >= MAX_INFEASIBLE:
            return "infeasible"
        patience = MAX_STALE + math.ceil(SETTLED_EVALUATIONS * len(self._space) / optimizer.population_size)
        return "converged" if self._settled >= patience else ""

    def restart(self) -> None:
        """Begin to count again, for a new optimizer."""
        self._stale = self._barren = self._settled = 0

    def state(self, *, in_flight: int) -> list[int]:
        """All counts; evaluations in flight are those that will be started again."""
        return [self._stale, self._barren, self._settled, self._started - in_flight, self._ended]

    def load_state(self, state: Sequence[int]) -> None:
        """Restore them."""
        self._stale, self._barren, self._settled, self._started, self._ended = state
