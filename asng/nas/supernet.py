"""The index of a model's decisions: space, selection, and which decisions are active."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from torch import nn

from asng._decoding import Space
from asng.nas._checks import check_not_sharded, describe_attribute, unregistered_modules
from asng.nas._decision import Decision, Searchable
from asng.nas.layers import ElasticLayer
from asng.space import Variable, family_of

Values = Mapping[str, Any]


class Supernet:
    """The index of a model's decisions, built once.

    Elastic layers learn their paths in the model, for error messages.

    >>> from asng.nas import OneOf, Repeat
    >>> model = nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()]), Repeat("depth", [nn.ELU(), nn.ELU()]))
    >>> supernet = Supernet(model)
    >>> supernet.space
    {'act': Categorical(choices=(0, 1)), 'depth': Integer(low=1, high=2)}
    >>> supernet.select({"act": 1, "depth": 2})
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.space: dict[str, Variable] = {}
        self._by_name: dict[str, list[Decision]] = {}
        self.paths = module_paths(model)
        check_not_sharded(self.paths)
        self.elastic_layers: list[ElasticLayer] = []
        declared: dict[str, str] = {}
        for module, path in self.paths.items():
            if isinstance(module, Decision):
                self._declare(module, path, declared)
            elif isinstance(module, ElasticLayer):
                module.path = path
                self.elastic_layers.append(module)
        # A Supernet made earlier of the same model uses the same dict.
        self._producers = self.elastic_layers[0].producers if self.elastic_layers else {}
        for layer in self.elastic_layers:
            layer.producers = self._producers
        self._check_registered()

    def _declare(self, decision: Decision, path: str, declared: dict[str, str]) -> None:
        name = decision.name
        first = self.space.setdefault(name, decision.variable)
        if first != decision.variable:
            raise ValueError(
                f"decision {name!r} is declared twice, differently: {first} at {declared[name] or 'the top'}, "
                f"{decision.variable} at {path}; give one of them another name"
            )
        declared.setdefault(name, path)
        self._by_name.setdefault(name, []).append(decision)

    def _check_registered(self) -> None:
        """Raise ValueError for decisions and elastic layers that torch does not see."""
        for holder, path in self.paths.items():
            for name, value, module in unregistered_modules(holder):
                if module in self.paths:
                    continue
                inside = module_paths(module)
                lost = [m for m in inside if isinstance(m, (Decision, ElasticLayer)) and m not in self.paths]
                if lost and holder not in inside:  # a reference to what is further out is no part of the model
                    what = type(lost[0]).__name__ + (f" {lost[0].name!r}" if isinstance(lost[0], Decision) else "")
                    raise ValueError(
                        f"{describe_attribute(path, name, value)} holds {what}, where torch does not see it; "
                        "use nn.ModuleList, nn.ModuleDict or an attribute, or keep it outside of the model"
                    )

    def select(self, values: Values) -> None:
        """Select a value for every decision; raises ValueError, changing nothing, if they do not fit."""
        self.check(values)
        self.choose(values)

    def check(self, values: Values) -> None:
        """Raise ValueError unless there is one possible value for each decision."""
        self._check_names(values)
        for name, variable in self.space.items():
            if not variable.contains(values[name]):
                raise _not_contained(name, variable, values[name])

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
        """Select values without checking them, such as those of `ask`."""
        self._producers.clear()
        for name, decisions in self._by_name.items():
            value = values[name]
            for decision in decisions:
                decision.choose(value)

    @contextmanager
    def selecting(self, values: Values) -> Iterator[None]:
        """Select values; restore the selection on exit."""
        with self.preserve_selection():
            self.select(values)
            yield

    @contextmanager
    def preserve_selection(self) -> Iterator[None]:
        """Restore the selection on exit."""
        decisions = [decision for same in self._by_name.values() for decision in same]
        before = [decision.selected for decision in decisions]
        try:
            yield
        finally:
            for decision, value in zip(decisions, before, strict=True):
                decision.__dict__["selected"] = value

    def active(self, values: Values) -> set[str]:
        """The names of the decisions that run, or are read, under these values; the others have no effect.

        A `Searchable` module says in `active_modules()` which of its children run; of others all do.
        """
        with self.selecting(values):
            modules = self.active_modules(self.searchable.__contains__)
            return {module.name for module in modules if isinstance(module, Decision)}

    def active_modules(
        self, predicate: Callable[[nn.Module], bool] = lambda module: True, root: nn.Module | None = None
    ) -> Iterator[nn.Module]:
        """The modules that run under the selected values, each once, from `root` (by default the model) on.

        Modules for which `predicate` is False are skipped, with all inside."""
        seen, waiting = set(), [self.model if root is None else root]
        while waiting:
            module = waiting.pop()
            if module not in seen and predicate(module):
                seen.add(module)
                yield module
                if isinstance(module, Searchable) and module in self.searchable:
                    waiting.extend(_check_modules(module.active_modules(), module))
                    # Easily forgotten there, and a limit would not see what depends on them.
                    waiting.extend(c for c in module._modules.values() if isinstance(c, Decision) and not c._modules)
                else:
                    waiting.extend(child for child in module._modules.values() if child is not None)

    @cached_property
    def searchable(self) -> set[nn.Module]:
        """Modules that are, or hold, a decision or an elastic layer."""
        seen: dict[nn.Module, bool] = {}
        return {module for module in self.paths if holds_decisions(module, seen)}

    def canonical(self, values: Values) -> Values:
        """The same network, with inactive decisions at a canonical value: the mode of the initial distribution."""
        active = self.active(values)
        if len(active) == len(self.space):
            return values
        return {name: values[name] if name in active else default for name, default in self._defaults.items()}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        family = family_of(self.space)
        return Space(self.space).decode(family.mode(family.initial())[None])[0]

    def key(self, values: Values) -> str:
        """An architecture as one line of text; choices by their index, since they may be any object.

        Raises ValueError for values that do not fit.

        >>> from asng.nas import OneOf
        >>> Supernet(OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})).key({"act": "tanh"})
        '[1]'
        """
        if values.keys() != self.space.keys():
            self._check_names(values)
        return json.dumps([_to_key(name, v, values[name]) for name, v in self.space.items()], default=repr)


def space_of(model: nn.Module) -> dict[str, Variable]:
    """The search space of a model: its decisions' names and variables, in the order of the model."""
    return Supernet(model).space


def select(model: nn.Module, values: Values) -> None:
    """Select an architecture: the model behaves as this network until the next call."""
    Supernet(model).select(values)


def selected(model: nn.Module) -> dict[str, Any]:
    """The values that a model is selected as, one for each decision; RuntimeError names the first without one.

    In a loss it tells the values of the candidate that runs.

    >>> from asng.nas import OneOf
    >>> model = OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})
    >>> select(model, {"act": "tanh"})
    >>> selected(model)
    {'act': 'tanh'}
    """
    decisions = [module for module in module_paths(model) if isinstance(module, Decision)]
    # Not by .value, the reads of which are watched; it only says what is wrong where there is none.
    return {decision.name: decision.selected[0] if decision.selected else decision.value for decision in decisions}


def module_paths(model: nn.Module) -> dict[nn.Module, str]:
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


def _check_modules(active: Iterable[nn.Module], module: nn.Module) -> list[nn.Module]:
    """What `active_modules()` of a module returned; raises TypeError where it holds anything else than modules."""
    modules = list(active)
    for inner in modules:
        if not isinstance(inner, nn.Module):
            raise TypeError(
                f"active_modules() of {type(module).__name__} must return modules, got {inner!r} among them"
            )
    return modules


def holds_decisions(module: nn.Module, seen: dict[nn.Module, bool]) -> bool:
    """True if a module is, or holds, a decision or an elastic layer; `seen` is a memo."""
    if module not in seen:
        inside = (holds_decisions(child, seen) for child in module._modules.values() if child is not None)
        seen[module] = isinstance(module, (Decision, ElasticLayer)) or any(inside)
    return seen[module]


def _to_key(name: str, variable: Variable, value: Any) -> Any:
    """A value of a decision as it stands in a key."""
    if not variable.contains(value):
        raise _not_contained(name, variable, value)
    return value if variable.values() is None else variable.index(value)


def _not_contained(name: str, variable: Variable, value: Any) -> ValueError:
    return ValueError(f"{value!r} is outside of {variable}, which is decision {name!r}")
