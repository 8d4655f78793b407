"""Limits on the costs of architectures, and their violations; each network is measured once."""

import math
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from typing import Any, SupportsFloat

from torch import nn

from asng._checks import as_float
from asng._untrusted import shorten
from asng._violations import FEASIBLE, Violation
from asng.nas import _distributed
from asng.nas._candidates import FAILURES
from asng.nas._checks import check_arguments
from asng.nas._devices import find_device
from asng.nas._extract import StaticBuild
from asng.nas._measures import StaticMeasure, device_name, measure_static
from asng.nas._preserve import is_from_asng, preserve_state
from asng.nas.supernet import Supernet, Values

Measure = Callable[[nn.Module, Values], SupportsFloat]
"""A measure of an architecture: (model, values) -> a number."""

MAX_NETWORKS = 10_000  # networks whose costs are remembered, those asked for last
MAX_WHOLE = 1e15  # up to which whole numbers are shown with all digits


@dataclass(frozen=True)
class Limit:
    """A hard limit on the cost of architectures: an upper bound, a lower bound, or both.

    A relation between decisions is a limit, too: `Limit(lambda model, values: values["inner"] - values["outer"], 0)`.

    Args:
        measure: `parameters`, `Flops`, `Latency`, or any function (model, values) -> number. It may use the model,
            which is restored afterwards, except for values that it writes into weights.
        at_most: The largest feasible cost, in the unit of the measure: a count, operations, seconds.
        at_least: The smallest feasible cost.
        name: The name in messages; by default that of the measure.

    Raises:
        ValueError: The measure is not such a function, its `fingerprint` or the name is not a string, or a bound is not
            finite, is missing, or contradicts the other one.

    >>> from asng.nas import parameters
    >>> limit = Limit(parameters, 100_000, at_least=50_000)
    >>> limit.name, limit.violation(150_000), limit.violation(75_000), limit.violation(25_000)
    ('parameters', 0.5, 0.0, 0.5)
    """

    measure: Measure
    at_most: float | None = None
    _: KW_ONLY
    at_least: float | None = None
    name: str = None  # type: ignore[assignment]  # which becomes a text

    def __post_init__(self) -> None:
        if not callable(self.measure):
            raise ValueError(f"a limit needs a function (model, values) -> number, got {shorten(self.measure)}")
        if isinstance(self.measure, type):
            kind = self.measure.__name__
            raise ValueError(f"a limit needs a measure, got the class {kind}; make one, such as {kind}(example_input)")
        check_arguments(self.measure, "measure", "model", "values")
        if not isinstance(self.name, (str, type(None))):
            raise ValueError(f"the name of a limit must be text, got {self.name!r}")
        if not self.name:
            object.__setattr__(self, "name", getattr(self.measure, "__name__", type(self.measure).__name__))
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        if not bounds:
            raise ValueError(f"the limit of {self.name} has no bound; give at_most, at_least or both")
        for bound in bounds:
            if not isinstance(bound, numbers.Real) or not math.isfinite(as_float(bound, "a bound must be a number")):
                raise ValueError(f"the limit of {self.name} must be a finite number, got {bound!r}")
        if bounds != sorted(bounds):
            raise ValueError(
                f"no cost can be {format_bounds(self.at_least, self.at_most)}; swap the bounds of {self.name}"
            )
        fingerprint = getattr(self.measure, "fingerprint", None)
        if not isinstance(fingerprint, (str, type(None))):
            raise ValueError(f"the fingerprint of {self.name} must be text, got {fingerprint!r}")

    def violation(self, cost: float) -> float:
        """Compute how far a cost is beyond the limit.

        Args:
            cost: A result of the measure; infinity if it could not be measured.

        Returns:
            The violation, relative to the absolute value of the bound unless that is 0; 0 if the limit is met.

        Raises:
            ValueError: The cost is not a number.
        """
        cost = as_float(cost, f"the cost of {self.name} must be a number")
        if math.isinf(cost):
            return math.inf
        above = 0.0 if self.at_most is None else (cost - self.at_most) / (abs(self.at_most) or 1.0)
        below = 0.0 if self.at_least is None else (self.at_least - cost) / (abs(self.at_least) or 1.0)
        return max(0.0, above, below)


def format_bounds(at_least: float | None, at_most: float | None) -> str:
    """The bounds of a limit as text.

    >>> format_bounds(100, 200)
    'at least 100 and at most 200'
    """
    bounds = {"at least": at_least, "at most": at_most}
    return " and ".join(f"{which} {format_cost(bound)}" for which, bound in bounds.items() if bound is not None)


def format_cost(number: float) -> str:
    """A cost or a bound as text: whole numbers with all digits, which may be all that tells one from the other.

    >>> format_cost(1_000_001.0), format_cost(0.00412345678)
    ('1000001', '0.00412346')
    """
    number = float(number)  # a bound may be a fraction
    return f"{number:.0f}" if number.is_integer() and abs(number) < MAX_WHOLE else f"{number:.6g}"


class Costs:
    """Costs of a model's architectures under limits: measured in order, up to the first violated limit, and cached.

    Architectures that differ only in inactive decisions are one network. Each network is measured once, with inactive
    decisions at their most likely initial values. The cache keeps the most recently used networks.

    Args:
        supernet: The index of the model; `OneShot.costs` has that of `OneShot.supernet`.
        limits: A list of limits.

    Attributes:
        supernet: As given.
        limits: The limits, as a tuple.
        known: The cache: costs by the key of the network, the most recently used last.

    Raises:
        ValueError: `limits` is not a list of limits.

    >>> from asng import nas
    >>> model = nas.Linear(3, nas.Width("units", 2, 8))
    >>> costs = Costs(nas.Supernet(model), [Limit(nas.parameters, 20)])
    >>> costs.measure({"units": 4}), costs.violation({"units": 4}).amount
    ((16.0,), 0.0)
    >>> round(costs.violation({"units": 6}).amount, 3)
    0.2
    """

    def __init__(self, supernet: Supernet, limits: Sequence[Limit]) -> None:
        if not isinstance(limits, Sequence) or not all(isinstance(limit, Limit) for limit in limits):
            raise ValueError(f"limits must be a list of limits, such as [Limit(parameters, 100_000)], got {limits!r}")
        self.supernet = supernet
        self.limits: tuple[Limit, ...] = tuple(limits)
        self.known: dict[str, tuple[float, ...]] = {}  # by network, those asked for last at the end
        self._nearest: tuple[dict[str, Any], tuple[float, ...]] | None = None  # values and costs

    def measure(self, values: Values) -> tuple[float, ...]:
        """Measure the costs of an architecture, or look them up.

        All processes have to call it together; rank 0 measures and broadcasts.

        Args:
            values: One value for each decision, by name.

        Returns:
            One cost for each limit, in order, up to the first violated one.

        Raises:
            ValueError: The values do not fit, or a measure did not return a number.
        """
        network = self.supernet.canonicalize(values)
        key = self.supernet.key(network)
        costs = self.known.pop(key, ())
        if not self._is_complete(costs):
            costs = _distributed.broadcast_object(
                self._measure_missing(network, costs) if _distributed.is_rank0() else None
            )
        self.known[key] = costs
        if len(self.known) > MAX_NETWORKS:
            del self.known[next(iter(self.known))]
        if self._nearest is None or self._violation(costs) <= self._violation(self._nearest[1]):
            self._nearest = dict(values), costs
        return costs

    def violation(self, values: Values) -> Violation:
        """Compute by how much an architecture violates the limits.

        Args:
            values: One value for each decision, by name.

        Returns:
            The violation; the smaller of two is nearer to feasible.

        Raises:
            ValueError: As in `measure`.
        """
        return self._violation(self.measure(values)) if self.limits else FEASIBLE

    def describe(self, values: Values) -> list[dict[str, Any]]:
        """Return each limit with the cost of an architecture, as plain data.

        Args:
            values: One value for each decision, by name.

        Returns:
            For each limit its `name`, `at_least`, `at_most` and the `cost`; the cost is None after the first violated
            one. A latency is only as exact as its limit required.

        Raises:
            ValueError: As in `measure`.
        """
        costs = [*self.measure(values), *[None] * len(self.limits)] if self.limits else []
        return [
            {"name": limit.name, "at_least": limit.at_least, "at_most": limit.at_most, "cost": cost}
            for limit, cost in zip(self.limits, costs, strict=False)
        ]

    def _is_complete(self, costs: Sequence[float]) -> bool:
        """Whether these costs decide if the limits are met."""
        return len(costs) == len(self.limits) or self._violation(costs) != FEASIBLE

    def _violation(self, costs: Sequence[float]) -> Violation:
        for index, (limit, cost) in enumerate(zip(self.limits, costs, strict=False)):
            if amount := limit.violation(cost):
                return Violation(len(self.limits) - index - 1, amount)
        return FEASIBLE

    def nearest(self) -> dict[str, Any] | None:
        """Return the architecture that is nearest to feasible.

        Returns:
            Of all architectures measured so far, the newest with the smallest violation; None if there is none.
        """
        return None if self._nearest is None else self._nearest[0]

    def _measure_missing(self, values: Values, costs: tuple[float, ...]) -> tuple[float, ...]:
        """All costs of a network of which some are known, the violated limits' last."""
        build = cache(partial(StaticBuild, self.supernet, values))  # of which there is one for all measures
        for limit in self.limits[len(costs) :]:
            costs = (*costs, _measure(limit, self.supernet, values, build, _decisive_bound(limit)))
            if limit.violation(costs[-1]):
                break
        return costs

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Save the cache.

        Returns:
            The costs, with the device and the fingerprints of the measures that they hold for.
        """
        nearest = None
        if self._nearest is not None:
            values, costs = self._nearest
            with suppress(ValueError):  # JSON cannot hold all values
                nearest = {name: v.to_json(values[name]) for name, v in self.supernet.space.items()}, costs
        return {
            "device": device_name(find_device(self.supernet.model)),
            "measures": [_fingerprint(limit) for limit in self.limits],
            "known": dict(self.known),
            "nearest": nearest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore costs of the same measures on the same kind of device; others are measured again.

        All processes restore what rank 0 can use: hosts and devices may differ, but the caches must not.

        Args:
            state: What `state_dict()` returned.

        Raises:
            ValueError: The state is of other limits, or damaged; nothing is changed.
        """
        try:
            self.known, self._nearest = _distributed.broadcast_object(self._usable_part(state))
        except Exception as error:  # anything may be in it
            raise ValueError(f"the costs do not fit or are damaged ({type(error).__name__}: {error})") from None

    def _usable_part(self, state: Mapping[str, Any]) -> tuple[dict[str, tuple[float, ...]], Any]:
        """Costs of the same measures, and the nearest architecture, in a state that anybody may have written."""
        current = self.state_dict()
        pairs = zip(state["measures"], current["measures"], strict=True)
        same = [there is not None and there == here for there, here in pairs]
        usable = (*same, False).index(False) if state["device"] == current["device"] else 0
        known = {str(key): tuple(map(float, costs))[:usable] for key, costs in state["known"].items()}
        nearest = None
        if all(same) and usable and state["nearest"] is not None:
            data, costs = state["nearest"]
            values = {name: v.from_json(data[name]) for name, v in self.supernet.space.items()}
            nearest = values, tuple(map(float, costs))
            if not self._is_complete(nearest[1]):  # under raised limits
                nearest = None
        return {key: costs for key, costs in known.items() if costs}, nearest


def measure_all(supernet: Supernet, limits: Sequence[Limit], values: Values) -> tuple[float, ...]:
    """The exact costs of a network by the measures of all limits; rank 0 measures and broadcasts."""
    network = supernet.canonicalize(values)
    build = cache(partial(StaticBuild, supernet, network))
    costs = [_measure(limit, supernet, network, build, math.nan) for limit in limits] if _distributed.is_rank0() else ()
    return tuple(_distributed.broadcast_object(costs))


def _measure(limit: Limit, supernet: Supernet, values: Values, build: Callable[[], StaticBuild], bound: float) -> float:
    """The cost of a network, exact as far as it decides whether it is at most `bound`; infinite if out of memory."""
    measure = limit.measure
    try:
        if isinstance(measure, StaticMeasure):
            cost: Any = measure_static(measure, build(), bound)
        else:
            with supernet.preserve_selection() if is_from_asng(measure) else preserve_state(supernet):
                cost = measure(supernet.model, dict(values))  # its own
    except FAILURES:
        warnings.warn(
            f"{limit.name} of the architecture {dict(values)} ran out of memory; it counts as infeasible", stacklevel=3
        )
        cost = math.inf
    except Exception as error:
        error.add_note(f"in {limit.name} of the architecture {dict(values)}")
        raise
    return _as_cost(cost, limit, values)


def _fingerprint(limit: Limit) -> str | None:
    """The fingerprint of a limit's measure, and of its bound if that matters; None for measures without one."""
    fingerprint, bound = getattr(limit.measure, "fingerprint", None), _decisive_bound(limit)
    is_exact = getattr(limit.measure, "is_exact", True) or math.isnan(bound)
    return fingerprint if is_exact else f"{fingerprint}, under {bound}"


def _decisive_bound(limit: Limit) -> float:
    """The upper bound where it alone decides, so that costs need not be exact beyond it; else NaN."""
    return math.nan if limit.at_most is None or limit.at_least is not None else float(limit.at_most)


def _as_cost(cost: Any, limit: Limit, values: Values) -> float:
    try:
        number = float(cost)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{limit.name} must be a number, got {cost!r} for {dict(values)}") from None
    if math.isnan(number) or number == -math.inf:
        raise ValueError(f"{limit.name} must be a number, or infinity if infeasible, got {number} for {dict(values)}")
    return number
