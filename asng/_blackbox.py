"""The bookkeeping of a black-box minimization: what to evaluate next, what is known, when there is nothing left."""

import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypedDict

import numpy as np

from asng._asktell import Candidate, Optimizer, Seed
from asng._checks import MAX_CANDIDATES, as_float, as_int, check_bool, check_int
from asng._covariance import CovarianceASNG, black_box_optimizer, default_population_size
from asng._decoding import Space
from asng._evaluation import CallResult
from asng._ragged import Array
from asng._stopping import StoppingRule
from asng._untrusted import mismatch
from asng._values import copy_values, is_hashable
from asng._variable import Variable, stable_repr
from asng._violations import FEASIBLE, Violation, rank_losses

Limits = Sequence[Callable[[dict[str, Any]], Any]]
ELITES, ELITE_AGE = 1, 20  # how many of the best of the last populations are ranked with the next one
NOISY_ELITES, NOISY_ELITE_AGE = 2, 5  # the same where losses are noisy
MAX_RESTART_SIZE = 1000  # the population of restarts: doubled without end, it would only draw
MAX_LISTED = 10_000  # values of a space that is evaluated as a whole, if evaluations allow
MAX_FAILED_POPULATIONS = 5  # in a row


class Evaluation(NamedTuple):
    """One evaluation of a black box.

    Attributes:
        values: One value for each variable, by name.
        loss: The returned loss; infinity after a failure.
        error: The reason of a failure, or an empty string.

    >>> Evaluation({"n": 3}, 0.25)
    Evaluation(values={'n': 3}, loss=0.25, error='')
    """

    values: dict[str, Any]
    loss: float
    error: str = ""


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate to evaluate, the key of its values, and the index of the optimizer that drew it."""

    candidate: Candidate
    key: Hashable
    start: int


class Judged(NamedTuple):
    """A candidate with all that ranks it, and the key of its values where it is feasible."""

    x: Array
    loss: float
    violation: Violation
    key: Hashable = None


class SavedState(TypedDict):
    """A minimization in a checkpoint."""

    entropy: tuple[Any, list[int]]
    evaluations: int
    forgiven: int
    population_size: int
    optimizers: list[dict[str, Any]]
    history: list[tuple[list[float], int, float | None, str, list[str] | None]]
    queue: list[list[float]]
    judged: list[tuple[list[float], float | None, tuple[int, float | None]]]
    stopping: tuple[int, int, int, int, int]
    is_listing: bool
    first: int


class BlackBox:
    """One minimization: optimizers, history, and the candidates between ask and tell.

    A restart adds an optimizer with twice the population of the one before.
    """

    def __init__(
        self,
        space: Mapping[str, Variable],
        evaluations: int,
        population_size: int | None,
        initial: Mapping[str, Any] | None,
        seed: Seed,
        noisy: bool,
        limits: Limits,
        restarts: int | None,
    ) -> None:
        self._space = Space(space)
        self._variables, self._initial = dict(space), initial
        self._seed: Seed = seed if (number := as_int(seed)) is None else number
        self._noisy, self._limits = check_bool(noisy, "noisy"), tuple(limits)
        self._restarts: float = 0 if noisy else math.inf
        if restarts is not None:
            self._restarts = check_int(restarts, "restarts", min=0)
        self._given_size = population_size
        if population_size is None:
            self.population_size = default_population_size(space, evaluations, noisy=self._noisy)
            quiet_size = default_population_size(space, evaluations)
        else:
            quiet_size = check_int(population_size, "population_size", min=2, max=MAX_CANDIDATES)
            self.population_size = quiet_size
        # To learn under noise needs more evaluations; to see that all fail does not.
        self._max_failures = MAX_FAILED_POPULATIONS * quiet_size
        self.optimizers = [self._make_optimizer(0)]  # also checks the seed
        sequence = self._seed if isinstance(self._seed, np.random.SeedSequence) else np.random.SeedSequence(self._seed)
        self._entropy, self._spawn_key = _entropy_to_json(sequence.entropy), tuple(sequence.spawn_key)
        self.history: list[Evaluation] = []
        self._ended: list[Trial] = []  # one for each evaluation
        listed = [variable.values() for variable in space.values()]
        # Numbers are none of those that a function can change, nor are choices that can be hashed.
        self._changeable = [
            name
            for (name, variable), values in zip(space.items(), listed, strict=True)
            if variable.range() is None and (values is None or not is_hashable(values))
        ]
        is_listable = not noisy and all(values is not None for values in listed)
        self._n_values = math.prod(len(values or ()) for values in listed) if is_listable else math.inf
        self._losses: dict[Hashable, tuple[float, int]] = {}  # the sum of those of equal values, and their number
        self._violations: dict[Hashable, Violation] = {}  # of values of a small space
        self._active: dict[Hashable, frozenset[str]] = {}  # of values of which not all had an effect
        self._best: int | None = None
        self._nearest: tuple[Violation, dict[str, Any]] | None = None  # of infeasible candidates, since it was loaded
        self._evaluations = evaluations  # of the longest of the calls that share a checkpoint
        self._failures_in_row = 0
        self._forgiven = 0  # evaluations before the last extension of what failures had ended, which count no more
        self.first_cause: BaseException | None = None  # what the first failed evaluation raised, since it was loaded
        self._queue: deque[Candidate] = deque()
        self.trials: dict[Trial, list[Candidate]] = {}  # in flight, with candidates of the same values
        self._judged: list[Judged] = []
        self._elites, self._elite_age = elites_of(self.optimizer, noisy)
        self._stopping = StoppingRule(space)
        self._first = 0  # evaluations before the last restart
        self._is_listing = False  # whether the queue holds all values that are left
        self.is_whole = True  # False in the middle of a change
        self.is_waiting = False  # whether all values of the last population are in flight

    def _make_optimizer(self, start: int) -> Optimizer:
        seed = self._seed_of(start) if start else self._seed
        size = min(self.population_size * 2**start, max(self.population_size, MAX_RESTART_SIZE))
        settings: dict[str, Any] = {"population_size": size, "initial": self._initial, "seed": seed}
        return black_box_optimizer(self._variables, noisy=self._noisy, **settings)

    def _seed_of(self, start: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._entropy, spawn_key=(*self._spawn_key, start))

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that draws now."""
        return self.optimizers[-1]

    @property
    def best(self) -> Evaluation | None:
        """The evaluation of the lowest finite loss, or None."""
        return None if self._best is None else self.history[self._best]

    @property
    def nearest(self) -> tuple[str, float, dict[str, Any]] | None:
        """The limit that the nearest infeasible candidate missed, by how much, and its values."""
        if self._nearest is None:
            return None
        violation, values = self._nearest
        return limit_name(self._limits[-1 - violation.not_reached]), violation.amount, values

    @property
    def best_optimizer(self) -> Optimizer:
        """The optimizer that found the lowest loss."""
        return self.optimizer if self._best is None else self.optimizers[self._ended[self._best].start]

    @property
    def end_reason(self) -> str:
        """Why nothing is left to evaluate, or an empty text."""
        if self._is_listing:
            return "" if self._queue else "nothing new"
        return "nothing new" if len(self._losses) >= self._n_values else self._stopping.reason(self.optimizer)

    @property
    def failures(self) -> int:
        """The number of failures that ended it, or 0; with more evaluations it begins to count again."""
        return self._failures_in_row if self._failures_in_row >= self._max_failures else 0

    # From ask to tell.

    def next_trial(self) -> Trial | None:
        """A candidate to evaluate, of one new population at most; None where all of it is known or in flight."""
        self.is_waiting = True
        if not self._queue:
            self.is_whole = False
            self._queue.extend(self.optimizer.ask())
            self.is_whole = True
        trial = None
        while self._queue and trial is None:
            trial = self._take_first()
        return trial

    def _take_first(self) -> Trial | None:
        """Judge the first candidate of the queue without an evaluation, or make it a trial."""
        key = self._key(self._queue[0])
        violation = self._violation(key, self._queue[0].values)  # Ctrl-C in a limit leaves the candidate in the queue
        self.is_whole = False
        trial = self._take(self._queue.popleft(), key, violation)
        self.is_whole = True
        return trial

    def _take(self, candidate: Candidate, key: Hashable, violation: Violation) -> Trial | None:
        if violation != FEASIBLE:
            if self._nearest is None or violation < self._nearest[0]:
                self._nearest = violation, candidate.values
            self._judge(candidate.x, math.inf, violation)
            return None
        if not self._noisy:
            if key in self._losses:
                self._judge(candidate.x, self._mean_loss(key), FEASIBLE, key)
                return None
            for trial, others in self.trials.items():
                if trial.key == key:
                    others.append(candidate)
                    return None
        trial = Trial(candidate, key, len(self.optimizers) - 1)
        self.trials[trial] = []
        return trial

    def record(self, trial: Trial, outcome: CallResult) -> Evaluation:
        """Take the outcome of a trial in; a whole population is told."""
        self.is_whole = False
        others = self.trials.pop(trial)
        if unknown := set(outcome.active or ()) - self._variables.keys():
            outcome = CallResult(math.inf, f"it returned the active name {min(unknown)!r}, which is not in the space")
        if self.first_cause is None:
            self.first_cause = outcome.cause
        evaluation = self._remember(trial, outcome.loss, outcome.error, outcome.active)
        if trial.start == len(self.optimizers) - 1:
            for candidate in (trial.candidate, *others):
                self._judge(candidate.x, outcome.loss, FEASIBLE, trial.key)
        self.is_whole = True
        return evaluation

    def _remember(self, trial: Trial, loss: float, error: str, active: Collection[str] | None) -> Evaluation:
        if active is not None and len(active) < len(self._variables):
            self._active[trial.key] = frozenset(active)
        total, count = self._losses.get(trial.key, (0.0, 0))
        self._losses[trial.key] = total + loss, count + 1
        is_counted = error and len(self.history) >= self._forgiven  # infinity is a loss, not a failure
        self._failures_in_row = self._failures_in_row + 1 if is_counted else 0
        evaluation = Evaluation(trial.candidate.values, loss, error)
        self._ended.append(trial)
        self.history.append(evaluation)
        if math.isfinite(loss) and (self.best is None or loss < self.best.loss):
            self._best = len(self.history) - 1  # at last: Ctrl-C may come anywhere, and asks for it
        return evaluation

    def _judge(self, x: Array, loss: float, violation: Violation, key: Hashable = None) -> None:
        if self._is_listing:  # not drawn from the distribution
            return
        self.is_waiting = False
        self._judged.append(Judged(x, loss, violation, key))
        if len(self._judged) >= self.optimizer.population_size:
            self._tell()
            self._stopping.count(
                self.optimizer,
                losses=[(each.loss, each.violation) for each in self._judged],
                started=len(self.history) + len(self.trials),
                ended=len(self.history),
                best=self._best,
            )
            self._judged = []
            is_left = len(self._losses) < self._n_values
            if self.end_reason and is_left and len(self.optimizers) <= self._restarts:
                self._start_over()

    def _tell(self) -> None:
        judged = [*self._judged, *self._recent_best()]
        losses = rank_losses([each.loss for each in judged], [each.violation for each in judged])
        active = [self._active.get(each.key, self._variables.keys()) for each in judged] if self._active else None
        self.optimizer.tell([Candidate({}, each.x) for each in judged], losses, active=active)

    def _recent_best(self) -> list[Judged]:
        """The best that the optimizer drew of late, by mean loss, so that they are not lost again.

        Not the best ever: the distribution could not narrow elsewhere, and a noisy loss may have been a lucky one.
        """
        if not self._elites:
            return []
        recent = self._ended[-self._elite_age * self.optimizer.population_size :]
        known = {each.key for each in self._judged}
        own = [trial for trial in recent if trial.start == len(self.optimizers) - 1 and trial.key not in known]
        drawn = {trial.key: trial.candidate.x for trial in own}
        best = sorted(drawn, key=self._mean_loss)[: self._elites]
        return [Judged(drawn[key], self._mean_loss(key), FEASIBLE, key) for key in best]

    def _mean_loss(self, key: Hashable) -> float:
        total, count = self._losses[key]
        return total / count

    def _start_over(self) -> None:
        """Restart, or queue the rest of a small space: all of it at the end, as no other restart would be new."""
        is_small = self._n_values <= MAX_LISTED and not self.optimizer._has_custom_family
        begun = [trial.start for trial in (*self._ended[self._first :], *self.trials)]
        is_last = len(self.optimizers) - 1 not in begun or self.end_reason == "infeasible"
        if is_small and (is_last or self._n_values - len(self._losses) <= 2 * self.optimizer.population_size):
            self._is_listing = True
            self._queue = deque(self._unknown_values())
        elif not is_last:
            self.optimizers.append(self._make_optimizer(len(self.optimizers)))
            self._queue.clear()
            self._first = len(self.history)
            self._stopping.restart()

    def _unknown_values(self) -> list[Candidate]:
        """Candidates of all values that were not evaluated, in random order."""
        marginals: Any = self._space.marginals
        positions = product(*(range(len(variable.values() or ())) for variable in self._space.variables))
        unknown = np.array([position for position in positions if position not in self._losses], dtype=float)
        np.random.default_rng(self._seed_of(len(self.optimizers))).shuffle(unknown)
        return list(map(self._candidate, unknown + [marginal.low for marginal in marginals]))

    def finish(self) -> None:
        """Tell the rest of a population, at the end."""
        if len(self._judged) > 1:
            self._tell()
            self._judged = []

    # Values.

    def copy(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values that a function may change."""
        return copy_values(values, self._changeable)

    def _key(self, candidate: Candidate) -> Hashable:
        """Equal for candidates of equal values."""
        parts: list[Hashable] = []
        for x, (name, variable) in zip(candidate.x, self._variables.items(), strict=True):
            value = candidate.values[name]
            if variable.values() is not None:
                value = variable.index(value)
            parts.append(value if isinstance(value, (int, float, str)) else float(x))
        return tuple(parts)

    def _violation(self, key: Hashable, values: dict[str, Any]) -> Violation:
        """How the limits are missed; in a small space they are asked once for each of its values."""
        if key in self._losses:
            return FEASIBLE
        if key not in self._violations:
            violation = self._ask_limits(values)
            if self._n_values > MAX_LISTED:
                return violation
            self._violations[key] = violation
        return self._violations[key]

    def _ask_limits(self, values: dict[str, Any]) -> Violation:
        for index, limit in enumerate(self._limits):
            try:
                number = _to_violation(limit(self.copy(values)), limit_name(limit))
            except Exception as error:
                error.add_note(f"in limit {limit_name(limit)} of the values {values}")
                raise
            if number > 0:
                return Violation(len(self._limits) - index - 1, number)
        return FEASIBLE

    # State.

    def identity(self) -> dict[str, Any]:
        """Settings that a state and the run that loads it must share."""
        seed: Any = self._seed
        if isinstance(seed, np.random.SeedSequence):
            seed = [_entropy_to_json(seed.entropy), list(seed.spawn_key)]
        return {
            "space": self._space.describe(),
            "population_size": "default" if self._given_size is None else self.population_size,
            "initial": {name: stable_repr(prior) for name, prior in (self._initial or {}).items()},
            "seed": seed,
            "noisy": self._noisy,
            "limits": list(map(limit_name, self._limits)),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that later evaluations depend on, as JSON-safe values; what is in flight will be evaluated again."""
        flying = [c for trial, others in self.trials.items() for c in (trial.candidate, *others)]
        rows = zip(self.history, self._ended, strict=True)
        return {
            "entropy": [self._entropy, list(self._spawn_key)],
            "evaluations": self._evaluations,
            "forgiven": self._forgiven,
            "population_size": self.population_size,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "history": [
                [trial.candidate.x.tolist(), trial.start, _save_loss(e.loss), e.error, self._active_names(trial.key)]
                for e, trial in rows
            ],
            "queue": [candidate.x.tolist() for candidate in (*flying, *self._queue)],
            "judged": [
                [each.x.tolist(), _save_loss(each.loss), list(map(_save_loss, each.violation))] for each in self._judged
            ],
            "stopping": self._stopping.state(in_flight=len(self.trials)),
            "is_listing": self._is_listing,
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of the same identity, before any evaluation."""
        if fault := mismatch(state, SavedState):
            raise ValueError(fault)
        self._entropy, self._spawn_key = state["entropy"][0], tuple(state["entropy"][1])
        self._seed_of(0)  # checks both
        self._forgiven = state["forgiven"]
        self.population_size = check_int(state["population_size"], "population_size", min=2, max=MAX_CANDIDATES)
        if not state["optimizers"]:
            raise ValueError("no optimizer")
        self.optimizers = [self._make_optimizer(start) for start in range(len(state["optimizers"]))]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for x, start, loss, error, active in state["history"]:
            if not 0 <= start < len(self.optimizers):
                raise ValueError(f"an evaluation of start {start}, of which there are {len(self.optimizers)}")
            candidate = self._candidate(x)
            if active is not None and not self._variables.keys() >= set(active):
                raise ValueError(f"{active} are not all in the space")
            self._remember(Trial(candidate, self._key(candidate), start), _load_loss(loss), error, active)
        if self.failures and self._evaluations > state["evaluations"]:
            self._failures_in_row, self._forgiven = 0, len(self.history)
        self._evaluations = max(self._evaluations, state["evaluations"])
        self._queue.extend(map(self._candidate, state["queue"]))
        for x, loss, (first, second) in state["judged"]:
            candidate, violation = self._candidate(x), Violation(first, _load_loss(second))
            key = self._key(candidate) if violation == FEASIBLE else None
            self._judged.append(Judged(candidate.x, _load_loss(loss), violation, key))
        self._stopping.load_state(state["stopping"])
        self._is_listing, self._first = state["is_listing"], state["first"]

    def _active_names(self, key: Hashable) -> list[str] | None:
        return sorted(self._active[key]) if key in self._active else None

    def _candidate(self, x: Sequence[float] | Array) -> Candidate:
        draw = np.array(x, dtype=float)
        return Candidate(self._space.decode(draw[None])[0], draw)


def elites_of(optimizer: Optimizer, noisy: bool) -> tuple[int, int]:
    """How many of the best of how many last populations are ranked with the next one."""
    if isinstance(optimizer, CovarianceASNG):
        return 0, 1  # numbers would go on following a draw that is told again, and their spread stay wide
    return (NOISY_ELITES, NOISY_ELITE_AGE) if noisy else (ELITES, ELITE_AGE)


def limit_name(limit: Any) -> str:
    return str(getattr(limit, "__name__", type(limit).__name__))


def _to_violation(returned: Any, name: str) -> float:
    """A limit's result as a number. Truth values are refused: True, meant as met, would count as a violation of 1."""
    if isinstance(returned, (bool, np.bool_)):
        raise ValueError(
            f"limit {name} must return a number, 0 or less where it is met, got {returned}; write n - 3, not n <= 3"
        )
    number = as_float(returned, f"limit {name} must return a number")
    if math.isnan(number):
        raise ValueError(f"limit {name} must return a number or infinity, got nan")
    return number


def _entropy_to_json(entropy: Any) -> Any:
    """The entropy of a SeedSequence, an integer or several, as JSON holds it."""
    return as_int(entropy) if np.ndim(entropy) == 0 else [int(each) for each in entropy]


def _save_loss(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _load_loss(number: float | None) -> float:
    return math.inf if number is None else number
