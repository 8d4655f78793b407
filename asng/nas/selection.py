"""All decisions of a model: found by name, selected from outside, and which of them have an effect."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from asng.families import family_of
from asng.nas.decision import Decision, Searchable, Sized
from asng.nas.hidden import described, hidden_modules
from asng.nas.wrappers import check_not_sharded
from asng.space import Categorical, Integer, Real, Space, Variable

Values = Mapping[str, Any]


class Decisions:
    """All decisions of a model, found once; select as often as wanted.

    Layers that are given sizes know their path in the model from here on, for messages.

    >>> from asng.nas import OneOf, Repeat
    >>> model = nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()]), Repeat("depth", [nn.ELU(), nn.ELU()]))
    >>> decisions = Decisions(model)
    >>> decisions.space
    {'act': Categorical(choices=(0, 1)), 'depth': Integer(low=1, high=2)}
    >>> decisions.select({"act": 1, "depth": 2})
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.space: dict[str, Variable] = {}
        self._of_name: dict[str, list[Decision]] = {}
        self.paths = paths_of(model)
        check_not_sharded(self.paths)
        self.sized: list[Sized] = []
        declared: dict[str, str] = {}
        for module, path in self.paths.items():
            if isinstance(module, Decision):
                self._declare(module, path, declared)
            elif isinstance(module, Sized):
                module.path = path
                self.sized.append(module)
        self._given = self.sized[0].given if self.sized else {}  # that of an earlier look at the same model, too
        for layer in self.sized:
            layer.given = self._given
        self._check_none_hidden()

    def _declare(self, decision: Decision, path: str, declared: dict[str, str]) -> None:
        name = decision.name
        first = self.space.setdefault(name, decision.variable)
        if not same_variable(first, decision.variable):
            raise ValueError(
                f"decision {name!r} is declared twice, differently: {first} at {declared[name] or 'the top'}, "
                f"{decision.variable} at {path}; give one of them another name"
            )
        declared.setdefault(name, path)
        self._of_name.setdefault(name, []).append(decision)

    def _check_none_hidden(self) -> None:
        """Raise ValueError for decisions and elastic layers that torch does not see."""
        for holder, path in self.paths.items():
            for name, value, module in hidden_modules(holder):
                if module in self.paths:
                    continue
                inside = paths_of(module)
                lost = [m for m in inside if isinstance(m, (Decision, Sized)) and m not in self.paths]
                if lost and holder not in inside:  # a reference to what is further out is no part of the model
                    what = type(lost[0]).__name__ + (f" {lost[0].name!r}" if isinstance(lost[0], Decision) else "")
                    raise ValueError(
                        f"{described(path, name, value)} holds {what}, where torch does not see it; "
                        "use nn.ModuleList, nn.ModuleDict or an attribute, or keep it outside of the model"
                    )

    def select(self, values: Values) -> None:
        """Select a value for every decision; raises ValueError, changing nothing, if they do not fit."""
        self.check(values)
        self.choose(values)

    def check(self, values: Values) -> None:
        """Raise ValueError for values that do not fit: one for each decision, which it can have."""
        self._check_names(values)
        for name, variable in self.space.items():
            if not fits(variable, values[name]):
                raise _outside(name, variable, values[name])

    def _check_names(self, values: Values) -> None:
        unknown = [name for name in values if name not in self.space]  # first: a misspelled one is missing, too
        if unknown:
            raise ValueError(
                f"the model has no decision {', '.join(map(repr, unknown[:5]))}; it has {list(self.space)[:9]}"
            )
        missing = [name for name in self.space if name not in values]
        if missing:
            raise ValueError(f"no value for {', '.join(map(repr, missing[:5]))}; a model needs one for each decision")

    def choose(self, values: Values) -> None:
        """Select values that are known to fit, as those of `ask` are."""
        self._given.clear()
        for name, decisions in self._of_name.items():
            value = values[name]
            for decision in decisions:
                decision.choose(value)

    @contextmanager
    def selected(self, values: Values) -> Iterator[None]:
        """Select values for a while; what was selected before comes back."""
        with self.kept():
            self.select(values)
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever is selected meanwhile, what was selected before comes back."""
        decisions = [decision for same in self._of_name.values() for decision in same]
        before = [decision.selected for decision in decisions]
        try:
            yield
        finally:
            for decision, value in zip(decisions, before, strict=True):
                decision.__dict__["selected"] = value

    def active(self, values: Values) -> set[str]:
        """The names whose decisions run, or are read, under these values; the others are without effect.

        A `Searchable` module says in `active_modules()` which of its children run; of others all do.
        """
        with self.selected(values):
            running = self.running(self.open.__contains__)
            return {module.name for module in running if isinstance(module, Decision)}

    def running(
        self, wanted: Callable[[nn.Module], bool] = lambda module: True, inside: nn.Module | None = None
    ) -> Iterator[nn.Module]:
        """The model, or a part, and all inside that run under the selected values, each once; those that are wanted."""
        seen, waiting = set(), [self.model if inside is None else inside]
        while waiting:
            module = waiting.pop()
            if module not in seen and wanted(module):
                seen.add(module)
                yield module
                if isinstance(module, Searchable) and module in self.open:
                    waiting.extend(_checked(module.active_modules(), module))
                    # Easily forgotten there, and a limit would not see what depends on them.
                    waiting.extend(c for c in module._modules.values() if isinstance(c, Decision) and not c._modules)
                else:
                    waiting.extend(child for child in module._modules.values() if child is not None)

    @cached_property
    def open(self) -> set[nn.Module]:
        """The modules that are, or hold, a decision or an elastic layer."""
        seen: dict[nn.Module, bool] = {}
        return {module for module in self.paths if is_open(module, seen)}

    def canonical(self, values: Values) -> Values:
        """The same network, with the values of decisions without effect as they are most likely before a search."""
        active = self.active(values)
        if len(active) == len(self.space):
            return values
        return {name: values[name] if name in active else default for name, default in self._defaults.items()}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        family = family_of(self.space)
        return Space(self.space).decode(family.mode(family.initial())[None])[0]

    def key(self, values: Values) -> str:
        """An architecture as one line of text; choices by their place, since they may be anything.

        Raises ValueError for values that do not fit.

        >>> from asng.nas import OneOf
        >>> Decisions(OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})).key({"act": "tanh"})
        '[1]'
        """
        if values.keys() != self.space.keys():
            self._check_names(values)
        return json.dumps([_written(name, v, values[name]) for name, v in self.space.items()], default=repr)

    @cached_property
    def readable(self) -> bool:
        """Whether a key tells the values: those of a family of the user's own may be anything."""
        return all(isinstance(variable, (Categorical, Integer, Real)) for variable in self.space.values())

    def values(self, key: str) -> dict[str, Any]:
        """The architecture that `key` was given, where keys are readable."""
        pairs = zip(self.space.items(), json.loads(key), strict=True)
        return {name: v.choices[place] if isinstance(v, Categorical) else place for (name, v), place in pairs}


def space_of(model: nn.Module) -> dict[str, Variable]:
    """The search space of a model: its decisions' names and variables, in the order of the model."""
    return Decisions(model).space


def select(model: nn.Module, values: Values) -> None:
    """Make a model behave as the architecture with these values, one for each decision."""
    Decisions(model).select(values)


def selected(model: nn.Module) -> dict[str, Any]:
    """The values that a model is selected as, one for each decision; RuntimeError names the first without one.

    In a loss it tells the values of the candidate that runs.

    >>> from asng.nas import OneOf
    >>> model = OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})
    >>> select(model, {"act": "tanh"})
    >>> selected(model)
    {'act': 'tanh'}
    """
    decisions = [module for module in paths_of(model) if isinstance(module, Decision)]
    # Not by .value, the reads of which are watched; it only says what is wrong where there is none.
    return {decision.name: decision.selected[0] if decision.selected else decision.value for decision in decisions}


def paths_of(model: nn.Module) -> dict[nn.Module, str]:
    """All modules of a model with their paths, as torch's named_modules() gives them, but quickly."""
    paths: dict[nn.Module, str] = {}
    waiting = [(model, "")]
    while waiting:
        module, path = waiting.pop()
        if module not in paths:
            paths[module] = path
            prefix = path and path + "."
            children = reversed(module._modules.items())
            waiting.extend((child, prefix + name) for name, child in children if child is not None)
    return paths


def _checked(active: Iterable[nn.Module], module: nn.Module) -> list[nn.Module]:
    """What `active_modules()` of a module returned; raises TypeError where it holds anything else than modules."""
    modules = list(active)
    for inner in modules:
        if not isinstance(inner, nn.Module):
            raise TypeError(
                f"active_modules() of {type(module).__name__} must return modules, got {inner!r} among them"
            )
    return modules


def is_open(module: nn.Module, seen: dict[nn.Module, bool]) -> bool:
    """Whether a module is, or holds, a decision or an elastic layer; `seen` remembers it."""
    if module not in seen:
        inside = (is_open(child, seen) for child in module._modules.values() if child is not None)
        seen[module] = isinstance(module, (Decision, Sized)) or any(inside)
    return seen[module]


# Values of variables.


def fits(variable: Variable, value: Any) -> bool:
    """Whether a variable can have a value, of the same type; of a family of the user's own only that knows."""
    match variable:
        case Categorical():
            return place_of(variable, value) is not None
        case Integer():
            return isinstance(value, int) and not isinstance(value, bool) and variable.low <= value <= variable.high
        case Real():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return number and variable.low <= value <= variable.high
        case _:
            return True


def place_of(variable: Categorical, value: Any) -> int | None:
    """Which of the choices a value is; 1, 1.0 and True are three."""
    for place, choice in enumerate(variable.choices):
        if value is choice:  # as drawn, and quick
            return place
    for place, choice in enumerate(variable.choices):
        if type(value) is type(choice) and _equal(value, choice):
            return place
    return None


def same_variable(one: Variable, other: Variable) -> bool:
    """Whether two variables are equal; choices may also be arrays, which cannot be compared as other things are."""
    if isinstance(one, Categorical) and isinstance(other, Categorical):
        pairs = zip(one.choices, other.choices, strict=False)
        return len(one.choices) == len(other.choices) and all(a is b or _equal(a, b) for a, b in pairs)
    return one == other


def _equal(value: Any, choice: Any) -> bool:
    return bool(np.array_equal(value, choice)) if hasattr(choice, "shape") else bool(value == choice)


def _written(name: str, variable: Variable, value: Any) -> Any:
    """A value of a decision as it stands in a key."""
    if isinstance(variable, Categorical):
        place = place_of(variable, value)
        if place is not None:
            return place
    elif fits(variable, value):
        return value
    raise _outside(name, variable, value)


def _outside(name: str, variable: Variable, value: Any) -> ValueError:
    return ValueError(f"{value!r} is outside of {variable}, which is decision {name!r}")
