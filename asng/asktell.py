"""Ask and tell: drawing candidates, checking what comes back, keeping and restoring the state.

A method derives from `AskTell` and adds its state and its update; nothing is overridden.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from asng.checks import count, flag, floats
from asng.families import family_of
from asng.space import Array, Space, Variable

Seed = int | np.random.SeedSequence | None
LARGEST_STEP = 1e6  # a radius of 1 is already large


@dataclass(slots=True, eq=False)
class Candidate:
    """One draw: evaluate `values`, and tell the loss. `x` is the raw draw, in the order of the space."""

    values: dict[str, Any]
    x: Array
    space: int | None = None  # a mark of the space it was drawn from


class Best(NamedTuple):
    """The lowest finite loss told so far."""

    values: dict[str, Any]
    loss: float


class AskTell(ABC):
    """What ASNG and its baselines share: drawing, checking, bookkeeping.

    A method says with which state it begins, a tuple of arrays of which the first is theta, and how it updates it.
    """

    _state: Any

    def __init__(
        self,
        space: Mapping[str, Variable],
        *,
        samples: int = 2,
        mirrored: bool = True,
        initial: Mapping[str, Any] | None = None,
        seed: Seed = None,
    ) -> None:
        self._space = Space(space)
        self._family = family_of(space, mirrored=mirrored)
        self._samples = count(samples, "samples", least=2)
        self._settings: dict[str, Any] = {"method": type(self).__name__, "mirrored": flag(mirrored, "mirrored")}
        self._generator = _generator(seed)
        self._best: tuple[Array, float] | None = None
        self._state = self._begin(self._theta_of({} if initial is None else initial))

    def _theta_of(self, initial: Mapping[str, Any]) -> Array:
        parameters = self._family.describe(self._family.initial())
        if not isinstance(initial, Mapping):
            raise ValueError(f"initial must be a dict of names and priors, got {initial!r}")
        for name, prior in initial.items():
            if name not in self._space.names:
                raise ValueError(f"initial names {name!r}, which is not in the space: {', '.join(self._space.names)}")
            index = self._space.names.index(name)
            try:
                parameters[index] = self._space.variables[index].raw_prior(prior)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"initial[{name!r}] = {prior!r} does not fit: {error}") from None
        theta = self._family.project(self._family.encode(parameters))
        if theta.shape != (self._family.size,) or not np.isfinite(theta).all():
            raise ValueError(f"initial leads to the impossible parameters {theta}; got {dict(initial)}")
        return theta

    @abstractmethod
    def _begin(self, theta: Array) -> Any:
        """The state before the first update."""

    @abstractmethod
    def _impossible(self, state: Any) -> str | None:
        """The name of a part of a loaded state, besides theta, that no run of this method leads to."""

    @abstractmethod
    def _update(self, x: Array, losses: list[float], active: Array | None) -> Any:
        """The state after learning from draws x (lambda, variables), their losses, and which variables count."""

    def ask(self, n: int | None = None) -> list[Candidate]:
        """Draw n candidates (by default `samples`); as often as wanted, nothing is left pending."""
        x = self._family.sample(self._state[0], self._samples if n is None else count(n, "n", least=1), self._generator)
        x.flags.writeable = False
        return list(map(Candidate, self._space.decode(x), x, repeat(self._space.mark)))

    def tell(
        self,
        candidates: Iterable[Candidate],
        losses: Iterable[Any],
        *,
        active: Iterable[Collection[str]] | None = None,
    ) -> None:
        """Learn from two or more candidates of any earlier ask; lower losses are better.

        Losses that are not finite, minus infinity too, count as worst. `active` names, per candidate,
        the variables that had an effect on its loss; the others are left out of what is learnt from
        it. By default all count, as in the paper.
        """
        drawn, numbers = self._drawn(candidates), floats(losses)
        n = len(drawn)
        if n != len(numbers):
            raise ValueError(f"got {n} candidates and {len(numbers)} losses; tell one loss for each candidate")
        if n < 2:
            raise ValueError(f"got {n} candidates; a ranking needs at least two, so ask for more before telling")
        x = np.array(drawn)
        self._state = self._update(x, numbers, None if active is None else self._mask(active, n))
        lowest = min(numbers)
        if lowest < math.inf and (self._best is None or lowest < self._best[1]):
            self._best = (x[numbers.index(lowest)].copy(), lowest)

    def _drawn(self, candidates: Iterable[Candidate]) -> list[Array]:
        """The raw draws of candidates, each a point of this space."""
        drawn, mark = [], self._space.mark
        try:
            for candidate in candidates:
                if candidate.space == mark:
                    drawn.append(candidate.x)
                elif self._space.holds(candidate.x):  # made or sent by hand
                    drawn.append(np.array(candidate.x, dtype=float))
                else:
                    raise ValueError(
                        f"{candidate!r} is no point of this space; tell candidates that this optimizer's ask returned"
                    )
        except (AttributeError, TypeError):
            raise ValueError(f"tell takes a list of the candidates that ask returned, got {candidates!r}") from None
        return drawn

    def _mask(self, active: Iterable[Collection[str]], n: int) -> Array:
        """Which variables count in which of n candidates, 0 or 1 (n, variables)."""
        every = list(active) if isinstance(active, Iterable) else []
        if len(every) != n or any(isinstance(names, str) or not isinstance(names, Collection) for names in every):
            raise ValueError(f"active holds a set of names for each of the {n} candidates, got {active!r}")
        for names in every:
            unknown = [name for name in names if name not in self._space.names]
            if unknown:
                raise ValueError(
                    f"active names {unknown[0]!r}, which is not in the space: {', '.join(self._space.names)}"
                )
        return np.array([[name in names for name in self._space.names] for names in every], dtype=float)

    @property
    def space(self) -> dict[str, Variable]:
        """Names and variables, in order."""
        return dict(zip(self._space.names, self._space.variables, strict=True))

    def mode(self) -> dict[str, Any]:
        """The most likely values: the largest probability, or the mean, of each variable."""
        return self._space.decode(self._family.mode(self.theta)[None])[0]

    @property
    def best(self) -> Best | None:
        """The values with the lowest finite loss told so far, or None."""
        if self._best is None:
            return None
        x, loss = self._best
        return Best(self._space.decode(x[None])[0], loss)

    def distribution(self) -> dict[str, Any]:
        """Per variable: the probabilities of its choices, or Normal(mean, std); fit for `initial`."""
        rows = zip(self._space.names, self._space.variables, self._family.describe(self.theta), strict=True)
        return {name: variable.readable(parameters) for name, variable, parameters in rows}

    @property
    def theta(self) -> Array:
        """The parameters of the distribution (size,), read-only."""
        return read_only(self._state[0])

    @property
    def generator_state(self) -> dict[str, Any]:
        """The part of `state_dict()` that `ask` changes, at a small part of its cost."""
        return dict(self._generator.bit_generator.state)

    def state_dict(self) -> dict[str, Any]:
        """All that later asks and tells depend on but `samples`, as plain values that JSON can hold."""
        best = None if self._best is None else {"x": self._best[0].tolist(), "loss": self._best[1]}
        return {
            "space": self._space.describe(),
            "settings": dict(self._settings),
            "state": {name: np.asarray(value).tolist() for name, value in self._state._asdict().items()},
            "generator": self.generator_state,
            "best": best,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`, bit for bit; raises ValueError, changing nothing, if it is another's."""
        new, generator, best = _loaded(state, self.state_dict(), self._state)
        with np.errstate(all="ignore"):
            allowed = np.allclose(self._family.project(new.theta), new.theta, rtol=1e-9, atol=0)
        wrong = self._impossible(new) if allowed else "theta"
        if wrong is not None:
            raise ValueError(f"the state is damaged: no run leads to its {wrong}, {getattr(new, wrong)}")
        if best is not None and not (self._space.holds(best[0]) and math.isfinite(best[1])):
            raise ValueError(f"the state is damaged: its best, {state['best']}, is no point of the space")
        self._state, self._generator, self._best = new, generator, best


def _generator(seed: Seed) -> np.random.Generator:
    try:
        return np.random.Generator(np.random.PCG64(seed))
    except (TypeError, ValueError):
        raise ValueError(f"seed must be a whole number >= 0, a SeedSequence or None, got {seed!r}") from None


def read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _loaded(state: Any, mine: dict[str, Any], current: Any) -> tuple[Any, np.random.Generator, Any]:
    """State, generator and best of a saved dict, checked against `mine`, the one saved from here."""
    if not isinstance(state, Mapping) or set(state) != set(mine):
        raise ValueError(f"a state holds {', '.join(mine)}; this is not one: {str(state)[:80]}")
    for what in ("space", "settings"):
        if state[what] != mine[what]:
            raise ValueError(
                f"the state is of an optimizer with another {what} ({_difference(state[what], mine[what])}); "
                "make this one in the same way before loading"
            )
    try:
        arrays = {name: np.array(state["state"][name], dtype=float) for name in current._fields}
        generator = np.random.Generator(np.random.PCG64())
        generator.bit_generator.state = state["generator"]
        saved = state["best"]
        best = None if saved is None else (np.array(saved["x"], dtype=float), float(saved["loss"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the state is damaged: {error!r}") from None
    for name, old in current._asdict().items():
        if arrays[name].shape != np.shape(old) or not np.isfinite(arrays[name]).all():
            raise ValueError(f"the state is damaged: {name} has to be {np.size(old)} finite numbers")
    return type(current)(*(a if a.ndim else float(a) for a in arrays.values())), generator, best


def _difference(there: Any, here: Any) -> str:
    """What differs first between two lists of pairs or two dicts."""
    try:
        there, here = dict(there), dict(here)
        name = next(name for name in {**here, **there} if there.get(name) != here.get(name))
        return f"{name}: {there.get(name)} there, {here.get(name)} here"
    except (TypeError, ValueError, StopIteration):
        return "in another order or damaged"
