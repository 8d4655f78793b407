"""The result of a search: the most likely feasible architectures, and how likely they are."""

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from asng._asktell import Optimizer, describe_distribution
from asng._checks import check_int
from asng._convergence import MIN_CERTAINTY, MIN_STEPS, is_noise
from asng._decoding import Space
from asng._html import decisions_table, element, notebook, rows_table
from asng._untrusted import shorten
from asng._values import are_equal
from asng.baselines import RandomSearch
from asng.families import Bounds
from asng.nas import _distributed
from asng.nas._saving import MAX_EPOCHS, decision_rows, format_rounded, format_table, history_rows, save_result
from asng.nas.limits import format_bounds, format_cost
from asng.nas.oneshot import OneShot
from asng.nas.recalibration import norms_of, warn_of_statistics
from asng.nas.supernet import Values
from asng.optimizer import ASNG
from asng.space import Variable, family_of

DRAWS = 1000  # candidates drawn where the most likely values do not suffice


class Architecture(NamedTuple):
    """An architecture and its probability in a search.

    Attributes:
        values: One value for each decision, by name.
        probability: The probability of drawing this network; inactive and real variables do not count.
        feasible: Whether it meets all limits.
        certainty: The position of the probability, on a logarithmic scale, between that at the start (0, also if it has
            fallen since) and the largest one within the bounds of the distribution (1); NaN if all variables are real.
        inactive: The decisions without effect on this network.
        score: The mean score from `rerank` or `front`.
        costs: The costs from `front`, in the order of its measures.

    >>> Architecture({"act": "tanh"}, probability=0.75, feasible=True).values
    {'act': 'tanh'}
    """

    values: dict[str, Any]
    probability: float
    feasible: bool
    certainty: float = math.nan
    inactive: tuple[str, ...] = ()
    score: float | None = None
    costs: tuple[float, ...] = ()

    def __repr__(self) -> str:
        """Rounded, without what is not set."""
        fields = {
            name: v for name, v in self._asdict().items() if name in ("probability", "feasible") or v not in (None, ())
        }
        return f"Architecture({', '.join(f'{name}={format_rounded(value)}' for name, value in fields.items())})"

    def _repr_html_(self) -> str:
        """A table of the decisions for notebooks, and what is known of the architecture."""
        known = {name: value for name, value in self._asdict().items() if name not in ("values", "inactive")}
        shown = (f"{name} {format_rounded(value)}" for name, value in known.items() if value not in (None, ()))
        return notebook(decisions_table(self.values, {}, self.inactive, ""), element("p", ", ".join(shown)))


@dataclass(frozen=True, repr=False)
class Front:
    """A Pareto front: architectures that no other one dominates. It prints as a table.

    Attributes:
        points: The architectures of the front, each with `score` and `costs`, in the order of the first cost.
        others: All other scored architectures, each dominated by one of the front.
        measures: The names of the measures, in the order of the costs.

    >>> points = (Architecture({"n": 1}, 0.5, True, score=0.9, costs=(10.0,)),)
    >>> Front(points, others=(), measures=("parameters",))
    score  parameters  probability  values
    0.9    10          0.5          {'n': 1}
    """

    points: tuple[Architecture, ...]
    others: tuple[Architecture, ...]
    measures: tuple[str, ...]

    def __repr__(self) -> str:
        return format_table(self._rows())

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return notebook(rows_table(self._rows()))

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("score", *self.measures, "probability", "values")]
        for point in self.points:
            costs = (f"{cost:.6g}" for cost in point.costs)
            values = {name: value for name, value in point.values.items() if name not in point.inactive}
            rows.append((f"{point.score:.4g}", *costs, f"{point.probability:.2g}", format_rounded(values)))
        return rows


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The result of a search. It prints, and is shown in notebooks, as tables of decisions and epochs.

    Attributes:
        values: The architecture: the most likely feasible one, one value for each decision, by name.
        probability: The probability of drawing this network from the final distribution, as in `Architecture`.
        feasible: False if no architecture met the limits (with a warning). The result is then the measured architecture
            that is nearest to the limits, regardless of its probability.
        certainty: The position of the probability between that at the start (0) and the largest possible one (1), as in
            `Architecture`; even a fully decided search does not reach a probability of 1.
        inactive: The decisions without effect on this network, whose values do not matter.
        limits: Each limit as `name`, `at_least`, `at_most` and the `cost` of the architecture; the cost is None after a
            violated limit. A latency is only as exact as its limit required, often from two runs: call `nas.Latency`
            for a better measurement.
        model: The extracted network, with the weights of the search; batch norms need `recalibrate`.
        history: One record per epoch: `train_loss`; `valid_loss`, or `score` with a judge; under limits the share of
            `feasible` candidates; the means of metrics as `train_<metric>` and `valid_<metric>` (a metric named loss
            only from a judge); the mean largest probability; the final `distribution` (for each decision the
            probabilities by choice, or mean and std); the number of `steps` that moved the distribution; seconds.
        arch_optimizer: The optimizer of the architecture, with its final distribution.
        oneshot: The search itself, with the supernet and the state of the weight optimizer. `top`, `rerank` and `front`
            accept it or the result. It is None in a copied or unpickled result.

    >>> import torch
    >>> from asng import ASNG, nas
    >>> model = nn.Sequential(nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}), nn.Linear(2, 1))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> arch_optimizer = ASNG(nas.space_of(model), initial={"act": [0.25, 0.75]}, seed=0)
    >>> oneshot = nas.OneShot(model, arch_optimizer, sgd, lambda net, x: net(x).square().mean())
    >>> found = nas.result(oneshot)
    >>> found.feasible, found.model
    (True, Sequential(
      (0): Tanh()
      (1): Linear(in_features=2, out_features=1, bias=True)
    ))
    """

    values: dict[str, Any]
    probability: float
    feasible: bool
    certainty: float
    inactive: tuple[str, ...]
    limits: list[dict[str, Any]]
    model: nn.Module
    history: list[dict[str, Any]]
    arch_optimizer: Optimizer
    oneshot: OneShot | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "oneshot": None}  # large, and with functions that cannot be pickled

    def __repr__(self) -> str:
        largest = sharpest_distribution(self.arch_optimizer.space, self.values)
        decisions = format_table(decision_rows(self.arch_optimizer, self.values, self.inactive, largest))
        history = [format_table(history_rows(self.history))] if self.history else []
        return "\n\n".join([decisions, "\n".join(self._summary()), *history, *self._epochs_note()])

    def _repr_html_(self) -> str:
        """The decisions with the probabilities of their choices as bars, and the epochs, for notebooks."""
        decisions = decisions_table(self.values, describe_distribution(self.arch_optimizer), self.inactive, "")
        history = [rows_table(history_rows(self.history))] if self.history else []
        summary, note = ([element("p", line) for line in lines] for lines in (self._summary(), self._epochs_note()))
        return notebook(decisions, *summary, *history, *note)

    def _epochs_note(self) -> list[str]:
        """That the table of epochs is not whole, where it is not."""
        epochs = len(self.history)
        return [f"{MAX_EPOCHS} of {epochs} epochs; result.history has all"] if epochs > MAX_EPOCHS else []

    def _summary(self) -> list[str]:
        """How sure the search is, the costs under limits, and what is to be done before the network is evaluated."""
        kind = "feasible" if self.feasible else "infeasible, the nearest to the limits of all measured"
        costs = f"{kind}: {_format_costs(self.limits)}"
        norms = (
            "before model.eval() call nas.recalibrate(model, batches): batch norms have statistics of all candidates"
        )
        return [
            f"probability {self.probability:.3g}, certainty {self.certainty:.2f}",
            *([costs] if self.limits else []),
            *([norms] if any(norm.training for norm in norms_of(self.model)) else []),
        ]

    def save(
        self, folder: str | Path, settings: Mapping[str, Any] | None = None, *, front: Front | None = None
    ) -> None:
        """Save the result, without its weights, as the folder of a run for `asng.report.write`.

        Args:
            folder: A new folder, or one without a run.
            settings: Your settings for the report: a seed, learning rates, an `experiment` as its title. A report
                averages results whose settings differ only in `seed`.
            front: A front of this result, from `nas.front`, for the report.

        Raises:
            ValueError: `folder` is not a path or already holds a run, or JSON cannot hold the settings, or one of them
                is named `format` or `version`.

        >>> import tempfile, torch
        >>> from asng import ASNG, nas, report
        >>> model = nn.Sequential(nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}), nn.Linear(2, 1))
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> oneshot = nas.OneShot(model, ASNG(nas.space_of(model)), sgd, lambda net, x: net(x).square().mean())
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     nas.result(oneshot).save(f"{parent}/mine", {"seed": 0})
        ...     page = report.write([f"{parent}/mine"], f"{parent}/report.html").read_text()
        """
        save_result(self, folder, {} if settings is None else settings, front)


def result(oneshot: OneShot, history: Sequence[Mapping[str, Any]] = ()) -> SearchResult:
    """Extract the most likely feasible architecture of a search so far. Call it in all processes.

    Args:
        oneshot: A search, at any time.
        history: Records of its epochs, for the result; in them, `"distribution": arch_optimizer.distribution()` is for
            `plot.probabilities` and reports.

    Returns:
        The result. If no drawn or measured architecture is feasible, it is the nearest one, and a warning says how far
        it is from the limits.

    Raises:
        ValueError: `oneshot` is not a OneShot, or `history` not a list of records.

    >>> import torch
    >>> from asng import ASNG, nas
    >>> model = nn.Sequential(nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}), nn.Linear(2, 1))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> arch_optimizer = ASNG(nas.space_of(model), initial={"act": [0.25, 0.75]}, seed=0)
    >>> oneshot = nas.OneShot(model, arch_optimizer, sgd, lambda net, x: net(x).square().mean())
    >>> found = nas.result(oneshot)
    >>> found.values, round(found.probability, 3)
    ({'act': 'tanh'}, 0.75)
    >>> found
    decision  value  probability  at most  others
    act       tanh   0.750        0.750    relu 0.250
    <BLANKLINE>
    probability 0.75, certainty 1.00
    """
    return build_result(oneshot, history)


def build_result(oneshot: OneShot, history: Sequence[Mapping[str, Any]]) -> SearchResult:
    """`result` for functions that users call: a warning points at the line that called them."""
    oneshot = oneshot_of(oneshot)
    if not isinstance(history, Sequence) or not all(isinstance(record, Mapping) for record in history):
        raise ValueError(f"history must be a list of records, dicts of names and numbers, got {shorten(history)}")
    (architecture,) = top(oneshot)
    limits = oneshot.costs.describe(architecture.values)
    if not architecture.feasible and _distributed.is_rank0():
        warnings.warn(f"no architecture met all limits; {describe_nearest(limits)}", stacklevel=3)
    model = oneshot.supernet.extract(architecture.values)
    if _distributed.is_rank0():
        warn_of_statistics(model, norms_of(model), stacklevel=4)
    return SearchResult(
        *architecture[:5],  # without a score and costs
        limits=limits,
        model=model,
        history=[_with_plain_distribution(record, oneshot.arch_optimizer) for record in history],
        arch_optimizer=oneshot.arch_optimizer,
        oneshot=oneshot,
    )


def _with_plain_distribution(record: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """A copy of a record, in which a distribution as `optimizer.distribution()` returns it has plain numbers."""
    found = record.get("distribution")
    if not isinstance(found, Mapping) or found.keys() != optimizer.space.keys():
        return dict(record)
    is_plain = all(isinstance(parameters, Mapping) for parameters in found.values())
    return dict(record) if is_plain else {**record, "distribution": describe_distribution(optimizer, found)}


def oneshot_of(search: OneShot | SearchResult) -> OneShot:
    """The search itself, or that of a result; raises ValueError for anything else."""
    if isinstance(search, SearchResult) and search.oneshot is None:
        raise ValueError(
            "a copied or loaded result does not hold its search; pass the one that nas.search returned, or the OneShot"
        )
    oneshot = search.oneshot if isinstance(search, SearchResult) else search
    if not isinstance(oneshot, OneShot):
        got = type(oneshot).__name__
        raise ValueError(f"pass the OneShot of your loop, or what nas.search or nas.result returned, got a {got}")
    return oneshot


def top(oneshot: OneShot | SearchResult, k: int = 1) -> list[Architecture]:
    """Find the k most likely feasible architectures, without extracting them.

    The mode of the distribution comes first: the most probable choices, and the rounded means of integers. (A bound may
    be more probable than the mean, because draws beyond it are clipped.) With k = 1 and a feasible mode this is cheap
    enough for every epoch. Otherwise a thousand candidates are drawn from a copy of the optimizer, sorted by
    probability, and measured until k networks are feasible. Call it in all processes: rank 0 measures and broadcasts
    the costs.

    Args:
        oneshot: A search, at any time, or its result.
        k: The number of architectures, at least 1.

    Returns:
        At most k architectures of different networks, the mode first, the others by probability. Of values that lead to
        the same network, only the most likely ones are listed. If none is feasible, the nearest of all measured
        architectures, with `feasible` False.

    Raises:
        ValueError: k is not a positive integer, or `oneshot` is not a search.

    >>> import torch
    >>> from asng import ASNG, nas
    >>> model = nn.Sequential(nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}), nn.Linear(2, 1))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> arch_optimizer = ASNG(nas.space_of(model), initial={"act": [0.25, 0.75]}, seed=0)
    >>> oneshot = nas.OneShot(model, arch_optimizer, sgd, lambda net, x: net(x).square().mean())
    >>> [(architecture.values, round(architecture.probability, 3)) for architecture in nas.top(oneshot, k=2)]
    [({'act': 'tanh'}, 0.75), ({'act': 'relu'}, 0.25)]
    """
    oneshot = oneshot_of(oneshot)
    k = check_int(k, "k", min=1)
    supernet = oneshot.supernet
    found: dict[str, dict[str, Any]] = {}  # by network, each once
    for values in _iterate_by_probability(oneshot):
        if oneshot.is_feasible(values):
            found.setdefault(supernet.network_key(values), values)
        if len(found) == k:
            break
    mode = oneshot.arch_optimizer.mode()
    architectures = [architecture_of(oneshot, values) for values in found.values() or [oneshot.costs.nearest() or mode]]
    return sorted(architectures, key=lambda one: (one.values != mode, -one.probability))


def _iterate_by_probability(oneshot: OneShot) -> Iterator[dict[str, Any]]:
    """The most likely values, then those of candidates drawn from a copy of the optimizer, likely ones first."""
    arch_optimizer = oneshot.arch_optimizer
    yield arch_optimizer.mode()
    distribution, space = arch_optimizer.distribution(), arch_optimizer.space
    drawn = {oneshot.supernet.key(c.values): c.values for c in copy.deepcopy(arch_optimizer).ask(DRAWS)}
    yield from sorted(drawn.values(), key=lambda values: -probability(distribution, space, values))


def architecture_of(oneshot: OneShot, values: dict[str, Any]) -> Architecture:
    """An architecture with its probability, feasibility and certainty."""
    arch_optimizer = oneshot.arch_optimizer
    active = oneshot.supernet.active(values)
    space = {name: variable for name, variable in arch_optimizer.space.items() if name in active}  # sums need an order
    likely = probability(arch_optimizer.distribution(), space, values)
    return Architecture(
        values,
        likely,
        oneshot.is_feasible(values),
        _certainty_of(likely, arch_optimizer.space, space, values),
        tuple(name for name in arch_optimizer.space if name not in active),
    )


def _certainty_of(
    likely: float, whole: Mapping[str, Variable], active: Mapping[str, Variable], values: Values
) -> float:
    """The position of a probability from that of the start (0) to the largest possible one (1), in logarithms."""
    family = family_of(whole)
    first = probability(Space(whole).to_external(family.describe(family.initial())), active, values)
    largest = probability(sharpest_distribution(whole, values), active, values)
    if not 0 < first < largest:
        return math.nan
    return math.log(max(likely, first) / first) / math.log(largest / first)


def sharpest_distribution(space: Mapping[str, Variable], values: Values) -> dict[str, Any]:
    """The distribution, as `Optimizer.distribution()` gives it, that is as sure of some values as its bounds allow.

    >>> from asng import Categorical
    >>> sharpest_distribution({"op": Categorical(["add", "mul"])}, {"op": "mul"})
    {'op': array([0.25, 0.75])}
    """
    family = family_of(space)
    x = np.array(family.mode(family.initial()), dtype=float)
    for column, (name, variable) in enumerate(space.items()):
        if variable.values() is not None:
            marginal: Any = variable.marginal()
            value = values[name]
            x[column] = marginal.low + variable.index(value)
            if isinstance(marginal, Bounds) and not (
                x[column] <= marginal.high and are_equal(variable.decode(float(x[column])), value)
            ):  # draws in other units
                x[column] = variable.to_internal((value, 1.0))[0]
    return Space(space).to_external(family.describe(family.project(family.statistics(x))))


def warn_if_short(found: SearchResult, steps: int) -> None:
    """Warn, at the line that called the caller, of a search that ended undecided: equal scores, few steps, or noise."""
    optimizer, space = found.arch_optimizer, found.arch_optimizer.space
    free = family_of(space).dimension
    if not found.feasible or isinstance(optimizer, RandomSearch) or not found.certainty < MIN_CERTAINTY:
        return
    decisions = "1 decision such as this takes" if len(space) == 1 else f"{len(space)} decisions such as these take"
    if steps >= MIN_STEPS and isinstance(optimizer, ASNG) and not optimizer.path.any():
        warnings.warn(
            f"the distribution has not moved: in each of {steps} steps all candidates had the same score; check that "
            "the loss or the judge runs the model that it is given, and use larger validation batches",
            stacklevel=3,
        )
    elif steps < MIN_STEPS * free:
        warnings.warn(
            f"the search was too short: its certainty is {found.certainty:.2f} of 1 after {steps} steps, and "
            f"{decisions} at least {MIN_STEPS * free}; search for more epochs",
            stacklevel=3,
        )
    elif isinstance(optimizer, ASNG) and is_noise(optimizer.delta, steps, free):
        warnings.warn(
            f"the scores were mostly noise: the step size delta fell to {optimizer.delta:.2g} in {steps} steps, as it "
            "does for random scores; use larger validation batches, pass arch_optimizer=ASNG(nas.space_of(model), "
            f"population_size={2 * optimizer._population_size}), or use nas.rerank",
            stacklevel=3,
        )


def describe_nearest(limits: Sequence[Mapping[str, Any]]) -> str:
    """The costs of the architecture that is nearest to limits that it violates, and the cure."""
    is_upper = all(limit["at_least"] is None for limit in limits)
    cure = "Raise the limits, or add smaller choices to the model" if is_upper else "Widen the limits"
    return f"the nearest has {_format_costs(limits)}. {cure}"


def _format_costs(limits: Sequence[Mapping[str, Any]]) -> str:
    """The costs that were measured, each with its bounds."""
    measured = (limit for limit in limits if limit["cost"] is not None)
    return ", ".join(
        f"{limit['name']} {format_cost(limit['cost'])} of {format_bounds(limit['at_least'], limit['at_most'])}"
        for limit in measured
    )


def probability(distribution: Mapping[str, Any], space: Mapping[str, Variable], values: Values) -> float:
    """The probability of the choices and integers of a space; real numbers, which have none, do not count."""
    logarithm = 0.0
    for name, variable in space.items():  # sum() rounds differently in later versions of Python
        logarithm += variable.log_prob(distribution[name], values[name])
    return math.exp(logarithm)


def concentration(optimizer: Optimizer) -> dict[str, float]:
    """How far a distribution has narrowed: the mean of the largest probabilities of its choices; ASNG's step size."""
    largest = [float(np.max(p)) for p in optimizer.distribution().values() if isinstance(p, np.ndarray)]
    record = {"largest_probability": sum(largest) / len(largest)} if largest else {}
    return {**record, "delta": optimizer.delta} if isinstance(optimizer, ASNG) else record
