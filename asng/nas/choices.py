"""Decisions inside any `nn.Module`: declared by name, selected from outside, extracted into a plain module.

A decision knows its name and its variable. Names identify decisions: equal names share one variable,
wherever they stand, and an architecture is a plain dict of names and values. Only what is selected
runs.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from torch import nn

from asng.nas.decision import Decision as Decision
from asng.nas.decision import Sized, largest
from asng.nas.plain import Constant, Item
from asng.space import Categorical, Integer, Real, Variable

Values = Mapping[str, Any]


class OneOf(Decision):
    """One module among several: a list, chosen by index, or a dict, chosen by its names.

    >>> OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}).variable
    Categorical(choices=('relu', 'tanh'))
    """

    def __init__(self, name: str, modules: Sequence[nn.Module] | Mapping[str, nn.Module]) -> None:
        named = dict(modules) if isinstance(modules, Mapping) else dict(enumerate(modules))
        super().__init__(name, Categorical(tuple(named)))
        for key, module in named.items():
            if not isinstance(module, nn.Module):
                raise ValueError(f"OneOf {name!r} chooses among modules, got {module!r} for {key!r}")
        self.options = nn.ModuleList(named.values())
        self.places = {key: place for place, key in enumerate(named)}

    def _chosen(self) -> nn.Module:
        return self.options[self.places[self.value]]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._chosen()(*inputs, **named)

    def running(self) -> list[nn.Module]:
        return [self._chosen()]

    def freeze(self) -> nn.Module:
        return self._chosen()


class Pick(Decision):
    """One input among n: called with a list of n, it returns the chosen one.

    >>> pick = Pick("from", 3)
    >>> select(pick, {"from": 1})
    >>> pick(["x", "y", "z"])
    'y'
    """

    def __init__(self, name: str, n: int) -> None:
        super().__init__(name, Categorical(range(n)))
        self.n = n

    def forward(self, inputs: Sequence[Any]) -> Any:
        if len(inputs) != self.n:
            raise ValueError(f"Pick {self.name!r} chooses among {self.n} inputs, got {len(inputs)}")
        return inputs[self.value]

    def running(self) -> tuple[()]:
        return ()

    def freeze(self) -> Item:
        return Item(self.value)


class Repeat(Decision):
    """The first few of a list of blocks, one after another: from `low` of them to all.

    >>> Repeat("depth", [nn.ReLU(), nn.ReLU(), nn.ReLU()]).variable
    Integer(low=1, high=3)
    """

    def __init__(self, name: str, blocks: Sequence[nn.Module], low: int = 1) -> None:
        super().__init__(name, Integer(low, len(blocks)))
        if low < 0:
            raise ValueError(f"low must be at least 0, got {low}")
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Any) -> Any:
        for block in self.running():
            x = block(x)
        return x

    def running(self) -> Iterator[nn.Module]:
        return islice(self.blocks, self.value)

    def freeze(self) -> nn.Sequential:
        return nn.Sequential(*self.running())


class Value(Decision):
    """Any variable, read as `.value` in a module's own code or given to a layer as a kernel size.

    Arithmetic with whole numbers gives sizes that follow it: `Value("k", Integer(1, 3)) * 2 - 1` is
    a kernel of 1, 3 or 5.

    >>> rate = Value("rate", Real(0.0, 0.5))
    >>> select(rate, {"rate": 0.25})
    >>> rate.value
    0.25
    """

    def running(self) -> tuple[()]:
        return ()

    def freeze(self) -> Constant:
        return Constant(self.value)


class Width(Decision):
    """A number of channels or units: from `low` to `high`, or one of a list.

    >>> Width("hidden", [64, 128, 256]).variable
    Categorical(choices=(64, 128, 256))
    """

    def __init__(self, name: str, low: int | Sequence[int], high: int | None = None) -> None:
        if isinstance(low, Sequence):
            super().__init__(name, Categorical(low))
        elif high is None:
            raise ValueError(f"Width {name!r} needs the largest width too, or a list of widths, got {low!r} alone")
        else:
            super().__init__(name, Integer(low, high))
        largest(self, "a width")

    def running(self) -> tuple[()]:
        return ()

    def freeze(self) -> Constant:
        return Constant(self.value)


class Decisions:
    """All decisions of a model, found once; select as often as wanted.

    Layers that are given sizes know their path in the model from here on, for messages.

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
        self._given: dict[int, str] = {}
        self._inside: dict[nn.Module, list[nn.Module]] = {}  # the children of each module that hold decisions
        _holds_decisions(model, self._inside)
        paths: dict[str, str] = {}
        for path, module in model.named_modules():
            if isinstance(module, Decision):
                self._declare(module, path, paths)
            elif isinstance(module, Sized):
                module.path, module.given = path, self._given

    def _declare(self, decision: Decision, path: str, paths: dict[str, str]) -> None:
        name = decision.name
        first = self.space.setdefault(name, decision.variable)
        if first != decision.variable:
            raise ValueError(
                f"decision {name!r} is declared twice, differently: {first} at {paths[name] or 'the top'}, "
                f"{decision.variable} at {path}; give one of them another name"
            )
        paths.setdefault(name, path)
        self._of_name.setdefault(name, []).append(decision)

    def select(self, values: Values) -> None:
        """Select a value for every decision; raises ValueError, changing nothing, if they do not fit."""
        missing = [name for name in self.space if name not in values]
        if missing:
            raise ValueError(f"no value for {', '.join(map(repr, missing[:5]))}; a model needs one for each decision")
        unknown = [name for name in values if name not in self.space]
        if unknown:
            raise ValueError(
                f"the model has no decision {', '.join(map(repr, unknown[:5]))}; it has {list(self.space)[:9]}"
            )
        for name, variable in self.space.items():
            if not _allows(variable, values[name]):
                raise ValueError(f"{values[name]!r} is outside of {variable}, which is decision {name!r}")
        self.choose(values)

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
        before = [(decision, decision.selected) for same in self._of_name.values() for decision in same]
        self.select(values)
        try:
            yield
        finally:
            for decision, value in before:
                decision.__dict__["selected"] = value

    def active(self, values: Values) -> set[str]:
        """The names whose decisions run, or are read, under these values; the others are without effect.

        A module of your own that does not run all its children says which it does in a method
        `running()`.
        """
        with self.selected(values):
            running = _running(self.model, self._inside.__getitem__)
            return {module.name for module in running if isinstance(module, Decision)}


Children = Callable[[nn.Module], Iterable[nn.Module]]


def _running(model: nn.Module, children: Children = nn.Module.children) -> Iterator[nn.Module]:
    """A module and all inside that run under the selected values, each once."""
    seen, waiting = set(), [model]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            yield module
            running = getattr(type(module), "running", None)
            waiting.extend(running(module) if callable(running) else children(module))


def _holds_decisions(module: nn.Module, inside: dict[nn.Module, list[nn.Module]]) -> bool:
    """Whether a module is or holds a decision; fills in the children that do, for it and all inside."""
    if module not in inside:
        inside[module] = [child for child in module.children() if _holds_decisions(child, inside)]
    return isinstance(module, Decision) or bool(inside[module])


def _allows(variable: Variable, value: Any) -> bool:
    match variable:
        case Categorical():
            return any(
                value is choice or (type(value) is type(choice) and _equal(value, choice))
                for choice in variable.choices
            )
        case Integer():
            return isinstance(value, int) and not isinstance(value, bool) and variable.low <= value <= variable.high
        case Real():
            return (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and variable.low <= value <= variable.high
            )
        case _:
            return True  # only a family of the user's own knows


def _equal(value: Any, choice: Any) -> bool:
    return np.array_equal(value, choice) if hasattr(choice, "shape") else bool(value == choice)


def space_of(model: nn.Module) -> dict[str, Variable]:
    """The search space of a model: its decisions' names and variables, in the order of the model."""
    return Decisions(model).space


def select(model: nn.Module, values: Values) -> None:
    """Make a model behave as the architecture with these values, one for each decision."""
    Decisions(model).select(values)


def extract(model: nn.Module, values: Values) -> nn.Module:
    """A plain module that equals the selected model, with copies of the weights it needs and no decision.

    The model may be another one with the same decisions, such as a deeper one to train from scratch.
    A module with a `freeze()` method is replaced by what that returns, from the outside in, while its
    own decisions are still there. The model stays as it is.

    >>> extract(nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()])), {"act": 1})
    Sequential(
      (0): Tanh()
    )
    """
    with Decisions(model).selected(values):
        return copy.deepcopy(_frozen(model, {}))


def _frozen(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """The module without decisions, made of the original's parameters; the original stays as it is."""
    if module not in done:
        result = module
        if any(isinstance(inner, (Decision, Sized)) for inner in module.modules()):
            replaced = _replaced(module)
            if replaced is not module:
                result = _frozen(replaced, done)
            else:
                result = copy.copy(module)
                children = module._modules.items()
                frozen = {name: None if child is None else _frozen(child, done) for name, child in children}
                result.__dict__["_modules"] = frozen  # the original keeps its own
        done[module] = result
    return done[module]


def _replaced(module: nn.Module) -> nn.Module:
    """What a module's own `freeze()` puts in its place; itself where it has none."""
    freeze = getattr(module, "freeze", None)
    if freeze is None:
        return module
    replaced = freeze()
    if not isinstance(replaced, nn.Module):
        raise TypeError(f"freeze() of {type(module).__name__} must return a module, got {replaced!r}")
    original = set(module.modules())
    for inner in replaced.modules():
        if inner not in original:
            inner.training = module.training
    return replaced
