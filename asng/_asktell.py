"""Ask and tell: draw candidates, check losses, save and restore the state.

A method derives from `Optimizer` and adds its state and its update.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple

import numpy as np

from asng._checks import MAX_CANDIDATES, as_float_array, as_int, as_losses, check_bool, check_int, take_list
from asng._decoding import Space
from asng._html import notebook, probability_bars, rows_table
from asng._ragged import Array
from asng._state import FLOAT64, check_finite, checksum, is_finite, read_state
from asng.families import Bounds, Family
from asng.space import Variable, family_of

Seed = int | np.random.SeedSequence | None
"""A seed: an integer of at least 0, a SeedSequence, or None for a random one."""

MAX_STEP_SIZE = 1e6  # a radius of 1 is already large


@dataclass(slots=True, eq=False)
class Candidate:
    """One draw: evaluate `values`, and tell the loss.

    Attributes:
        values: One value for each variable, by name.
        x: The raw draw (variables,), in the order of the space, read-only.

    >>> import asng
    >>> candidate = asng.ASNG({"op": asng.Categorical(["add", "mul"])}, seed=0).ask()[0]
    >>> candidate.values, candidate.x
    ({'op': 'mul'}, array([1.]))
    """

    values: dict[str, Any]
    x: Array


class Best(NamedTuple):
    """The lowest finite loss so far, and its values.

    Attributes:
        values: One value for each variable, by name.
        loss: Their loss.

    >>> import asng
    >>> optimizer = asng.ASNG({"n": asng.Integer(1, 3)}, seed=0)
    >>> optimizer.tell(optimizer.ask(), [0.5, 0.2])
    >>> optimizer.best.loss
    0.2
    """

    values: dict[str, Any]
    loss: float


class Optimizer(ABC):
    """Base class of ASNG and its baselines: ask, tell, state.

    A subclass defines its initial state, a tuple of arrays that starts with theta, and the update.

    Args:
        space: Names and variables.
        population_size: Candidates per ask (lambda), from 2 to a million.
        mirrored: Draw numbers in pairs mean + d, mean - d.
        initial: Prior knowledge by name: probabilities of choices, or (mean, std) of numbers.
        seed: An integer or a SeedSequence; None for a random one.

    Raises:
        ValueError: An argument does not fit; the message names it.

    >>> import asng
    >>> optimizer = asng.RandomSearch({"n": asng.Integer(1, 3)}, seed=0)
    >>> isinstance(optimizer, asng.Optimizer), optimizer.mode()
    (True, {'n': 2})
    """

    _state: Any
    _mode_prob: ClassVar[float | None] = None  # of `CategoricalFamily`
    _real_std_factor: float = 1.0  # of `family_of`; set before __init__

    def __init__(
        self,
        space: Mapping[str, Variable],
        *,
        population_size: int = 2,
        mirrored: bool = True,
        initial: Mapping[str, Any] | None = None,
        seed: Seed = None,
    ) -> None:
        self._space = Space(space)
        self._family = family_of(
            space, mirrored=mirrored, mode_prob=self._mode_prob, real_std_factor=self._real_std_factor
        )
        self._has_custom_family = any(isinstance(part, Family) for part in self._space.marginals)  # a user's own
        self._population_size = check_int(population_size, "population_size", min=2, max=MAX_CANDIDATES)
        self._settings: dict[str, Any] = {"method": type(self).__name__, "mirrored": check_bool(mirrored, "mirrored")}
        self._generator = _generator(seed)
        initial = {} if initial is None else initial
        self._origin = {"seed": seed, "initial": initial}  # as given
        self._best: tuple[Array, float] | None = None
        self._state = self._initial_state(self._initial_theta(initial))

    def _initial_theta(self, initial: Mapping[str, Any]) -> Array:
        parameters = self._family.describe(self._family.initial())
        if not isinstance(initial, Mapping):
            raise ValueError(f"initial must be a dict of names and priors, got {initial!r}")
        for name, prior in initial.items():
            if name not in self._space.names:
                raise ValueError(f"initial names {name!r}, which is not in the space: {', '.join(self._space.names)}")
            index = self._space.names.index(name)
            try:
                parameters[index] = self._space.variables[index].to_internal(prior)
            except Exception as error:  # a family of the user's own may raise anything
                raise ValueError(f"initial[{name!r}] = {prior!r} does not fit: {error}") from error
        theta = self._family.project(self._family.encode(parameters))
        if not is_finite(theta, (self._family.size,)):
            raise ValueError(f"initial leads to the impossible parameters {theta}; got {dict(initial)}")
        self._warn_if_projected(initial, parameters, self._family.describe(theta))
        return theta

    def _warn_if_projected(self, initial: Mapping[str, Any], given: list[Any], used: list[Any]) -> None:
        """Warn of priors that the projection changed by more than rounding."""
        rows = zip(self._space.names, self._space.variables, given, used, strict=True)
        for name, variable, before, after in rows:
            first, second = as_float_array(before), as_float_array(after)
            if name not in initial or first is None or second is None or first.shape != second.shape:
                continue  # not given, or parameters of the user's own family that are no numbers
            # Less is rounding, or hardly noticed; but a standard deviation may be a millionth of the draws.
            is_number = isinstance(variable.marginal(), Bounds)
            if not np.allclose(first, second, rtol=1e-3, atol=np.array([1e-3, 0]) if is_number else 1e-3):
                warnings.warn(
                    f"initial[{name!r}] = {initial[name]!r} becomes {variable.to_external(after)}, the nearest that "
                    "the search allows: every choice keeps a minimum probability, which falls as variables are added, "
                    "and standard deviations stay within bounds; pass these values to silence this",
                    stacklevel=5,
                )

    @abstractmethod
    def _initial_state(self, theta: Array) -> Any:
        """The state before the first update."""

    def _impossible_part(self, state: Any) -> str | None:
        """The part of a finite state, besides theta, that no run leads to, or None."""
        return None

    @abstractmethod
    def _update(self, x: Array, losses: list[float], active: Array | None) -> Any:
        """The state after an update from draws x (lambda, variables), their losses and the mask of active variables."""

    def _sample(self, n: int, generator: np.random.Generator) -> Array:
        """Raw draws (n, variables)."""
        return self._family.sample(self._state[0], n, generator)

    def ask(self, n: int | None = None) -> list[Candidate]:
        """Draw candidates; not all of them have to be told.

        Args:
            n: Number of candidates, from 1 to a million; by default `population_size`.

        Returns:
            A list of n candidates.

        Raises:
            ValueError: n is not such an integer.
        """
        n = self.population_size if n is None else check_int(n, "n", min=1, max=MAX_CANDIDATES)
        x = self._sample(n, self._generator)
        x.setflags(write=False)
        return list(map(Candidate, self._space.decode(x), x))

    def tell(
        self, candidates: Iterable[Candidate], losses: Iterable[Any], *, active: Iterable[Collection[str]] | None = None
    ) -> None:
        """Learn from candidates; only the order of their losses counts.

        Args:
            candidates: Two or more candidates of any earlier ask. They may be told again, for example with another loss
                under noise, or the best of the last population together with the next one: each call is a separate
                update.
            losses: One number for each, lower is better. Losses that are not finite, also minus infinity, count as
                worst.
            active: For each candidate, the names of the variables that had an effect on its loss; the update ignores
                the others. By default all count, as in the paper.

        Raises:
            ValueError: Candidates, losses or names do not fit; nothing is learned.
        """
        try:
            asked = candidates if type(candidates) is list else take_list(candidates, "candidates", MAX_CANDIDATES)
        except TypeError:
            raise ValueError(f"tell takes a list of the candidates that ask returned, got {candidates!r}") from None
        n = len(asked)
        numbers = as_losses(losses, n)
        if n < 2:
            raise ValueError(f"got {n} candidates; a ranking needs at least two, so ask for more before telling")
        x = self._draws(asked)
        mask = None if active is None else self._mask(active, n)
        try:
            state = self._update(x, numbers, mask)
        except ValueError:
            for candidate in asked:
                self._draw(candidate)  # names the one at fault
            raise
        if self._has_custom_family:
            check_finite(state, self._state)
        self._state = state
        lowest = min(numbers)
        if lowest < math.inf and (self._best is None or lowest < self._best[1]):
            self._best = (x[numbers.index(lowest)].copy(), lowest)

    def _draws(self, asked: list[Candidate]) -> Array:
        """Raw draws (n, variables) of candidates; `statistics` checks that they are possible."""
        try:
            x = np.array([candidate.x for candidate in asked])
        except Exception:  # no candidates, rows of several lengths, or no numbers
            x = np.empty(0)
        usable = x.dtype is FLOAT64 and x.shape == (len(asked), self._family.variables)
        if usable and (not self._has_custom_family or np.vdot(x, x) < math.inf):
            return x
        return np.array([self._draw(candidate) for candidate in asked])

    def _draw(self, candidate: Candidate) -> Array:
        """The raw draw of one candidate, or a ValueError that says what is wrong with it."""
        if not hasattr(candidate, "x"):
            raise ValueError(f"tell takes a list of the candidates that ask returned, got {candidate!r} in it")
        row, names = as_float_array(candidate.x), self._space.names
        if row is None or row.shape != (len(names),):
            fault = f"x = {' '.join(repr(candidate.x).split())}, which must be {len(names)} numbers,"
        else:
            wrong = [index for index in range(len(names)) if not self._can_draw(index, row[index])]
            if not wrong:
                return row
            fault = f"x = {row[wrong[0]]} for {names[wrong[0]]!r}"
        raise ValueError(
            f"a candidate with {fault} is not in this space; tell candidates that this optimizer's ask returned"
        )

    def _can_draw(self, index: int, number: float) -> bool:
        """Tell whether a number can be the raw draw of a variable."""
        point = np.array(self._family.mode(self.theta))  # a copy: a family may return theta itself
        point[index] = number
        return math.isfinite(number) and self._can_draw_row(point)

    def _can_draw_row(self, row: Array) -> bool:
        """Tell whether finite numbers (variables,) can be a raw draw."""
        try:
            self._family.statistics(row)
        except ValueError:
            return False
        return True

    def _mask(self, active: Iterable[Collection[str]], n: int) -> Array:
        """Mask (n, variables) of active variables, 0 or 1."""
        try:
            name_sets = list(islice(active, n + 1))
            fits = len(name_sets) == n and all(
                isinstance(names, Collection) and not isinstance(names, str) and len(names) >= 0 for names in name_sets
            )
        except Exception:  # not iterable, or an array without axes, a collection that has no length
            fits = False
        if not fits:
            raise ValueError(f"active must have a set of names for each of the {n} candidates, got {active!r}")
        for name in chain.from_iterable(name_sets):
            if not isinstance(name, str) or name not in self._space.names:
                raise ValueError(f"active names {name!r}, which is not in the space: {', '.join(self._space.names)}")
        return np.array([[name in names for name in self._space.names] for names in map(set, name_sets)], dtype=float)

    @property
    def population_size(self) -> int:
        """The number of candidates that the next ask returns."""
        return self._population_size

    @property
    def space(self) -> dict[str, Variable]:
        """Names and variables, in order."""
        return dict(zip(self._space.names, self._space.variables, strict=True))

    def mode(self) -> dict[str, Any]:
        """Return the most likely values.

        Returns:
            For each variable, by name, the choice of the largest probability, or the mean.
        """
        return self._space.decode(self._family.mode(self.theta)[None])[0]

    @property
    def best(self) -> Best | None:
        """The values with the lowest finite loss told so far, or None."""
        if self._best is None:
            return None
        x, loss = self._best
        return Best(self._space.decode(x[None])[0], loss)

    def distribution(self) -> dict[str, Any]:
        """Return the distribution that candidates are drawn from; it can be passed as `initial`.

        Returns:
            For each variable, by name, the probabilities of its choices (choices,), or `Normal(mean, std)` in the
            user's units.
        """
        return self._space.to_external(self._family.describe(self.theta))

    def _repr_html_(self) -> str:
        """The distribution as a table, for notebooks."""
        mode, now = self.mode(), describe_distribution(self)
        rows = [(name, probability_bars(parameters, mode[name])) for name, parameters in now.items()]
        return notebook(rows_table([("variable", "distribution"), *rows]))

    @property
    def theta(self) -> Array:
        """The parameters of the distribution (size,), read-only."""
        return read_only_view(self._state[0])

    @property
    def generator_state(self) -> dict[str, Any]:
        """The RNG state: the only part of `state_dict()` that `ask` changes, and much smaller."""
        return dict(self._generator.bit_generator.state)

    def state_dict(self) -> dict[str, Any]:
        """Save the state.

        Returns:
            Everything that later asks and tells depend on, except `population_size`, as JSON-safe values.
        """
        best = None if self._best is None else {"x": self._best[0].tolist(), "loss": self._best[1]}
        state = {
            "space": self._space.describe(),
            "settings": dict(self._settings),
            "state": {name: np.asarray(value).tolist() for name, value in self._state._asdict().items()},
            "best": best,
        }
        return {**state, "checksum": checksum(state), "generator": self.generator_state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state: the optimizer continues bit for bit.

        Args:
            state: The state from `state_dict()` of an optimizer with the same space and settings.

        Raises:
            ValueError: The state does not fit or is damaged; nothing is changed.
        """
        loaded, generator, best = read_state(state, self.state_dict(), self._state)
        theta = loaded[0]
        is_allowed = np.allclose(self._family.project(theta), theta, rtol=1e-6, atol=1e-9)
        impossible = self._impossible_part(loaded) if is_allowed else "theta"
        if best is not None and not self._can_draw_row(best[0]):
            impossible = "best"
        if impossible is not None:
            raise ValueError(f"the state is damaged: no run leads to its {impossible}")
        self._state, self._generator, self._best = loaded, generator, best


def _generator(seed: Seed) -> np.random.Generator:
    number = as_int(seed)  # NumPy itself would also take lists, and crash at one that holds itself
    if not (seed is None or isinstance(seed, np.random.SeedSequence) or (number is not None and number >= 0)):
        raise ValueError(f"seed must be an integer >= 0, a SeedSequence or None, got {seed!r}")
    return np.random.Generator(np.random.PCG64(seed if number is None else number))


def read_only_view(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def describe_distribution(optimizer: Optimizer, distribution: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The distribution as plain numbers: for each variable the probabilities by choice, or a mean and a std.

    Args:
        optimizer: Of the distribution.
        distribution: What its `distribution()` returned before, instead of the one now.

    >>> from asng import ASNG, Categorical, Integer
    >>> describe_distribution(ASNG({"act": Categorical(["relu", "tanh"]), "depth": Integer(1, 3)}))
    {'act': {'relu': 0.5, 'tanh': 0.5}, 'depth': {'mean': 2.0, 'std': 1.0}}
    """
    described: dict[str, Any] = {}
    for name, parameters in (optimizer.distribution() if distribution is None else distribution).items():
        choices = optimizer.space[name].values()
        if isinstance(parameters, np.ndarray) and choices is not None:
            labels = [str(choice) for choice in choices]
            if len({*labels}) < len(labels):  # such as of 1 and "1"
                labels = [str(index) for index in range(len(labels))]
            described[name] = dict(zip(labels, parameters.tolist(), strict=True))
        elif hasattr(parameters, "_asdict"):
            described[name] = {key: float(number) for key, number in parameters._asdict().items()}
        else:  # of a family of the user's own
            described[name] = {"parameters": str(parameters)}
    return described
