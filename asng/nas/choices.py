"""Decisions inside any `nn.Module`: declared by name, selected from outside, extracted into a plain module.

A decision knows its name and its variable. Names identify decisions: equal names share one variable,
wherever they stand, and an architecture is a plain dict of names and values. Only what is selected
runs.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from asng.nas.plain import Constant, Item
from asng.space import Categorical, Integer, Real

Variable = Categorical | Integer | Real
Values = Mapping[str, Any]


class Decision(nn.Module, ABC):
    """A named variable inside a network; `value` is what is selected."""

    def __init__(self, name: str, variable: Variable) -> None:
        super().__init__()
        if not isinstance(name, str) or not name:
            raise ValueError(f"a decision needs a name, got {name!r}")
        self.name = name
        self.variable = variable
        self.selected: tuple[Any, ...] = ()  # the value, once there is one

    def choose(self, value: Any) -> None:
        """Select a value, unchecked; `asng.nas.select` checks."""
        self.__dict__["selected"] = (value,)  # past nn.Module's bookkeeping, which is slow

    @property
    def value(self) -> Any:
        """The selected value."""
        if not self.selected:
            raise RuntimeError(f"decision {self.name!r} has no value yet; call asng.nas.select(model, values) first")
        return self.selected[0]

    @abstractmethod
    def running(self) -> Iterable[nn.Module]:
        """The modules inside that run under the selected value."""

    @abstractmethod
    def freeze(self) -> nn.Module:
        """A module without this decision that does the same under the selected value."""

    def extra_repr(self) -> str:
        return f"{self.name!r}, {self.variable}"

    def __mul__(self, factor: int) -> "Size":
        return Size(self) * factor

    def __add__(self, shift: int) -> "Size":
        return Size(self) + shift

    def __sub__(self, shift: int) -> "Size":
        return Size(self) - shift


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
    """One input among n: called with a list of n, it returns the chosen one."""

    def __init__(self, name: str, n: int) -> None:
        super().__init__(name, Categorical(range(n)))

    def forward(self, inputs: Sequence[Any]) -> Any:
        n = len(self.variable.choices)  # type: ignore[union-attr]
        if len(inputs) != n:
            raise ValueError(f"Pick {self.name!r} chooses among {n} inputs, got {len(inputs)}")
        return inputs[self.value]

    def running(self) -> tuple[()]:
        return ()

    def freeze(self) -> Item:
        return Item(self.value)


class Repeat(Decision):
    """The first few of a list of blocks, one after another: from `low` of them to all."""

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
        return iter(self.blocks[: self.value])

    def freeze(self) -> nn.Sequential:
        return nn.Sequential(*self.running())


class Value(Decision):
    """Any variable, read as `.value` in a module's own code or given to a layer as a kernel size.

    Arithmetic with whole numbers gives sizes that follow it: `Value("k", Integer(1, 3)) * 2 - 1` is
    a kernel of 1, 3 or 5.
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
        least = min(Size(self).all())
        if least < 1:
            raise ValueError(f"widths are at least 1, got {least} in Width {name!r}")

    def running(self) -> tuple[()]:
        return ()

    def freeze(self) -> Constant:
        return Constant(self.value)


class Size:
    """A whole number that follows a decision, scale * value + shift; or one that does not."""

    def __init__(self, of: "Decision | Size | int", scale: int = 1, shift: int = 0) -> None:
        self.decision: Decision | None = None
        self.scale, self.shift = 0, shift
        if isinstance(of, Size):
            self.decision, self.scale, self.shift = of.decision, of.scale * scale, of.shift * scale + shift
        elif isinstance(of, Decision):
            self.decision, self.scale = of, scale
            if any(not isinstance(value, int) for value in _possible(of.variable)):
                raise ValueError(f"a size follows whole numbers, but {of.name!r} is {of.variable}")
        else:
            self.shift += of * scale

    def __call__(self) -> int:
        """The size under the selected value."""
        return self.shift if self.decision is None else int(self.scale * self.decision.value + self.shift)

    def all(self) -> list[int]:
        """Every size there can be."""
        if self.decision is None:
            return [self.shift]
        return [self.scale * value + self.shift for value in _possible(self.decision.variable)]

    def __mul__(self, factor: int) -> "Size":
        return Size(self, scale=factor)

    def __add__(self, shift: int) -> "Size":
        return Size(self, shift=shift)

    def __sub__(self, shift: int) -> "Size":
        return Size(self, shift=-shift)

    def __repr__(self) -> str:
        if self.decision is None:
            return str(self.shift)
        factor = "" if self.scale == 1 else f"{self.scale} * "
        shift = "" if not self.shift else f" {'+' if self.shift > 0 else '-'} {abs(self.shift)}"
        return f"{factor}{self.decision.name!r}{shift}"


def _possible(variable: Variable) -> Sequence[Any]:
    if isinstance(variable, Integer):
        return range(variable.low, variable.high + 1)
    return variable.choices if isinstance(variable, Categorical) else (math.nan,)


class Decisions:
    """All decisions of a model, found once; select as often as wanted.

    Layers that are given sizes know their path in the model from here on, for messages.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.space: dict[str, Variable] = {}
        self._of_name: dict[str, list[Decision]] = {}
        paths: dict[str, str] = {}
        for path, module in model.named_modules():
            if isinstance(module, Decision):
                self._declare(module, path, paths)

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
        for name, decisions in self._of_name.items():
            value = values[name]
            for decision in decisions:
                decision.choose(value)

    def active(self, values: Values) -> set[str]:
        """The names whose decisions run, or are read, under these values; the others are without effect."""
        self.select(values)
        return {module.name for module in _running(self.model) if isinstance(module, Decision)}


def _running(module: nn.Module) -> Iterator[nn.Module]:
    """A module and all inside that run under the selected values."""
    yield module
    for child in module.running() if isinstance(module, Decision) else module.children():
        yield from _running(child)


def _allows(variable: Variable, value: Any) -> bool:
    match variable:
        case Categorical():
            return any(
                value is choice or (type(value) is type(choice) and value == choice) for choice in variable.choices
            )
        case Integer():
            return isinstance(value, int) and not isinstance(value, bool) and variable.low <= value <= variable.high
        case Real():
            return isinstance(value, (int, float)) and variable.low <= value <= variable.high


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
    own decisions are still there.
    """
    select(model, values)
    return copy.deepcopy(_frozen(model, {}))


def _frozen(module: nn.Module, done: dict[int, tuple[nn.Module, nn.Module]]) -> nn.Module:
    """The module without decisions, made of the original's parameters; the original stays as it is."""
    if id(module) not in done:
        result = module
        if any(isinstance(inner, Decision) for inner in module.modules()):
            replaced = _replaced(module)
            if replaced is not module:
                result = _frozen(replaced, done)
            else:
                result = copy.copy(module)
                children = {name: child and _frozen(child, done) for name, child in module._modules.items()}
                result.__dict__["_modules"] = children  # the original keeps its own
        done[id(module)] = (module, result)  # the module too, so that its id stays taken
    return done[id(module)][1]


def _replaced(module: nn.Module) -> nn.Module:
    """What a module's own `freeze()` puts in its place; itself where it has none."""
    freeze = getattr(module, "freeze", None)
    if freeze is None:
        return module
    replaced = freeze()
    if not isinstance(replaced, nn.Module):
        raise TypeError(f"freeze() of {type(module).__name__} must return a module, got {replaced!r}")
    return replaced
