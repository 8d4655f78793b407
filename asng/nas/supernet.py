"""The index of a model's decisions: space, selection, active decisions, static networks."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Reversible
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

from torch import nn

from asng._decoding import Space
from asng._variable import Variable, check_values
from asng.fused import unfuse
from asng.nas._checks import check_module, check_not_sharded, unregistered_error, unregistered_modules, unwrap
from asng.nas._extract import StaticBuild, holds_decisions, walk
from asng.nas._preserve import forbid_changes
from asng.nas.decisions import Decision, Searchable
from asng.nas.layers import ElasticLayer
from asng.space import family_of

Values = Mapping[str, Any]
"""An architecture: one value for each decision, by name."""


class Supernet:
    """The index of a model's decisions, built once. `OneShot.supernet` is that of the searched model.

    After modules are added, removed or replaced, create a new one. Only `select` and `choose` change the model.

    Args:
        model: Any module with decisions.

    Attributes:
        model: The module itself.
        space: The decisions' names and variables, in the order of the model.
        paths: All modules with their paths, as `model.named_modules()` gives them.

    Raises:
        ValueError: Two decisions with one name differ; torch does not see a decision; or the model is sharded.

    >>> from asng.nas import OneOf, Repeat
    >>> model = nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()]), Repeat("depth", [nn.ELU(), nn.ELU()]))
    >>> supernet = Supernet(model)
    >>> supernet.space
    {'act': Categorical(choices=(0, 1)), 'depth': Integer(low=1, high=2)}
    >>> supernet.extract({"act": 1, "depth": 1})
    Sequential(
      (0): Tanh()
      (1): Chain(
        (0): ELU(alpha=1.0)
      )
    )
    """

    def __init__(self, model: nn.Module) -> None:
        check_module(model)
        self.model = model
        self.paths: dict[nn.Module, str] = {module: path for path, module in model.named_modules()}
        check_not_sharded(self.paths)
        self._by_name: dict[str, list[Decision]] = {}
        self._walked = False
        for module, path in self.paths.items():
            if isinstance(module, Decision):
                same = self._by_name.setdefault(module.name, [])
                same.append(module)
                if module.variable != same[0].variable:
                    raise ValueError(
                        f"decision {module.name!r} is declared twice, differently: {same[0].variable} at "
                        f"{self.paths[same[0]] or 'the top'}, {module.variable} at {path}; "
                        "give one of them another name"
                    )
        self.space: dict[str, Variable] = {name: same[0].variable for name, same in self._by_name.items()}
        self._check_registered()

    def _check_registered(self) -> None:
        """Raise ValueError for decisions and elastic layers that torch does not see."""
        for holder, path in self.paths.items():
            for name, value, module in unregistered_modules(holder):
                if module in self.paths:
                    continue
                held = dict.fromkeys(module.modules())
                lost = [m for m in held if isinstance(m, (Decision, ElasticLayer)) and m not in self.paths]
                if lost and holder not in held:  # a reference to what is further out is no part of the model
                    raise unregistered_error(f"{path}{'.' if path else ''}{name}", value, lost[0])

    def select(self, values: Values) -> None:
        """Select an architecture: the model behaves as this network until the next call.

        Args:
            values: One value for each decision, by name.

        Raises:
            ValueError: The values do not fit; nothing is changed.
        """
        check_values(values, self.space)
        self.choose(values)

    def choose(self, values: Values) -> None:
        """Select values without checking them, for values from `ask`.

        Args:
            values: One value for each decision, by name.
        """
        for name, decisions in self._by_name.items():
            first = decisions[0]
            first.choose(values[name])
            if len(decisions) > 1:
                selected = first.selected
                for decision in decisions:  # which may be hundreds
                    decision.__dict__["selected"] = selected

    @contextmanager
    def select_temporarily(self, values: Values) -> Iterator[None]:
        """Select values; restore the selection on exit.

        Args:
            values: One value for each decision, by name.

        Raises:
            ValueError: The values do not fit; nothing is changed.
        """
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
        """Find the decisions that have an effect; the others are inactive.

        `active_modules()` of a `Searchable` module returns the children that run; other modules run all of theirs.

        Args:
            values: One value for each decision, by name.

        Returns:
            The names of the decisions that run, or are read, under these values.

        Raises:
            ValueError: The values do not fit.
        """
        # The first walk shows whether a method of the user's changes the model; each walk would be slow.
        is_first, self._walked = not self._walked, True
        check = forbid_changes(self, "active_modules") if is_first else nullcontext()
        found: set[str] = set()
        with self.select_temporarily(values), check:
            for module in self.active_modules(self.searchable_modules.__contains__):
                if isinstance(module, Decision):
                    found.add(module.name)
                    if len(found) == len(self.space) and not is_first:
                        break
        return found

    def active_modules(
        self, predicate: Callable[[nn.Module], bool] = lambda module: True, root: nn.Module | None = None
    ) -> Iterator[nn.Module]:
        """Walk the modules that run under the selected values.

        Args:
            predicate: (module) -> whether to visit it; otherwise the module and its children are skipped.
            root: Where to start; by default the model.

        Returns:
            The modules, each once.

        Raises:
            ValueError: `predicate` is not a function, or `root` not a module.
        """
        if not callable(predicate):
            raise ValueError(f"predicate must be a function (module) -> bool, got {predicate!r}")
        root = self.model if root is None else root
        check_module(root)
        return walk(root, self._active_children, predicate)

    def _active_children(self, module: nn.Module) -> Reversible[nn.Module | None]:
        children = module._modules.values()
        if not isinstance(module, Searchable) or module not in self.searchable_modules:
            return children
        returned: Any = module.active_modules()
        if isinstance(returned, nn.Module) and not isinstance(returned, nn.ModuleList):
            name, kind = type(module).__name__, type(returned).__name__
            raise ValueError(f"active_modules() of {name} must return a list of modules, got a {kind}; return [it]")
        active = list(returned) if isinstance(returned, Iterable) else [returned]
        for inner in active:
            if not isinstance(inner, nn.Module):
                name = type(module).__name__
                raise ValueError(f"active_modules() of {name} must return a list of modules, got {inner!r}")
        # Easily forgotten there, and a limit would not see what depends on them.
        return active + [child for child in children if isinstance(child, Decision) and not child._modules]

    @cached_property
    def searchable_modules(self) -> set[nn.Module]:
        """The modules that are, or hold, a decision or an elastic layer."""
        seen: dict[nn.Module, bool] = {}
        return {module for module in self.paths if holds_decisions(module, seen)}

    def extract(self, values: Values | None = None) -> nn.Module:
        """Build the static network of an architecture, as `asng.nas.extract` does.

        Args:
            values: One value for each decision, by name; by default the selected ones.

        Returns:
            A module without decisions, with copies of the weights it needs.

        Raises:
            ValueError: The values do not fit, or a `build_static()` returned something invalid.
            RuntimeError: `values` are not given, and a decision has no value yet.
        """
        return unfuse(self._build(values).copy())

    def num_parameters(self, values: Values | None = None) -> int:
        """Count the parameters of the static network of an architecture, without copying any.

        Args:
            values: One value for each decision, by name; by default the selected ones.

        Returns:
            The number of parameters; shared ones count once.

        Raises:
            ValueError: The values do not fit.
            RuntimeError: `values` are not given, and a decision has no value yet.
        """
        return self._build(values).num_parameters()

    def _build(self, values: Values | None) -> StaticBuild:
        if values is None:
            values = {name: same[0].value for name, same in self._by_name.items()}
        return StaticBuild(self, values)

    def canonicalize(self, values: Values) -> Values:
        """Set inactive decisions to a canonical value, the mode of the initial distribution.

        Args:
            values: One value for each decision, by name.

        Returns:
            The values of the same network, equal for all architectures that differ only in inactive decisions.

        Raises:
            ValueError: The values do not fit.
        """
        active = self.active(values)
        if len(active) == len(self.space):
            return values
        return {name: values[name] if name in active else default for name, default in self._defaults.items()}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        family = family_of(self.space)
        return Space(self.space).decode(family.mode(family.initial())[None])[0]

    def network_key(self, values: Values) -> str:
        """Write the network of an architecture as one line of text.

        Args:
            values: One value for each decision, by name.

        Returns:
            A string that is equal for architectures of the same network: those that differ only in inactive decisions,
            or only in numbers that elastic layers round to the same sizes.

        Raises:
            ValueError: The values do not fit.

        >>> from asng.nas import Linear, Width
        >>> supernet = Supernet(Linear(4, Width("width", [2, 3, 4]) // 2))
        >>> supernet.network_key({"width": 2}) == supernet.network_key({"width": 3})
        True
        """
        read, sizes = set[Any]([self.model]), list[Any]()  # what is read in other ways than as a size, and the sizes
        with self.select_temporarily(values):
            for module in self.active_modules(self.searchable_modules.__contains__):
                parts: list[Any] = []
                if isinstance(module, ElasticLayer):
                    parts = [part for s in module.sizes.values() for part in (s if isinstance(s, tuple) else (s,))]
                    sizes.append([self.paths[module], [part() for part in parts if part.decisions]])
                read |= {*self._active_children(module)} - {decision for part in parts for decision in part.decisions}
        names = {module.name for module in read if isinstance(module, Decision)}
        canonical = {name: values[name] if name in names else default for name, default in self._defaults.items()}
        return f"{self.key(canonical)} {json.dumps(sizes)}"

    def key(self, values: Values) -> str:
        """Write an architecture as one line of text.

        Args:
            values: One value for each decision, by name.

        Returns:
            JSON with one entry for each decision; choices by their index, because they may be any objects.

        Raises:
            ValueError: A decision has no value, or another one than its choices.

        >>> from asng.nas import OneOf
        >>> Supernet(OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})).key({"act": "tanh"})
        '[1]'
        """
        try:
            pairs = [(variable, values[name]) for name, variable in self.space.items()]
        except Exception:
            check_values(values, self.space)  # says what is wrong
            raise
        return json.dumps([value if v.values() is None else v.index(value) for v, value in pairs], default=repr)


def space_of(model: nn.Module) -> dict[str, Variable]:
    """Collect the search space of a model.

    Args:
        model: Any module with decisions.

    Returns:
        The names and variables of its decisions, in the order of the model.

    Raises:
        ValueError: Two decisions with one name differ, or torch does not see a decision.

    >>> from asng.nas import OneOf
    >>> space_of(nn.Sequential(nn.Linear(2, 2), OneOf("act", [nn.ReLU(), nn.Tanh()])))
    {'act': Categorical(choices=(0, 1))}
    """
    return Supernet(model).space


def select(model: nn.Module, values: Values) -> None:
    """Select an architecture: the model behaves as this network until the next call.

    Each call indexes the model; in a loop, create a `Supernet` once and call its `select`.

    Args:
        model: Any module with decisions.
        values: One value for each decision, by name.

    Raises:
        ValueError: The values do not fit; nothing is changed.

    >>> import torch
    >>> from asng.nas import OneOf
    >>> model = OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})
    >>> select(model, {"act": "relu"})
    >>> model(torch.tensor([-1.0]))
    tensor([0.])
    """
    Supernet(model).select(values)


def selected(model: nn.Module) -> dict[str, Any]:
    """Read the selected values of a model; in a loss, those of the candidate that runs.

    Args:
        model: Any module with decisions.

    Returns:
        One value for each decision, by name.

    Raises:
        RuntimeError: A decision has no value yet; the message names the first one.

    >>> from asng.nas import OneOf
    >>> model = OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})
    >>> select(model, {"act": "tanh"})
    >>> selected(model)
    {'act': 'tanh'}
    """
    check_module(model)
    # Without an index of the model, which would take longer than the traversal: a loss may call this in every step.
    return {module.name: module.value for module in walk(model) if isinstance(module, Decision)}


def extract(model: nn.Module, values: Values | None = None) -> nn.Module:
    """Build the static network of an architecture, without decisions and with copies of its weights.

    `build_static()` replaces each `Searchable` module, from the outside in, while it still has its decisions; decisions
    in the replacement are replaced next. The model is not changed. Tied weights stay tied.

    Args:
        model: Any module with these decisions, also another one, such as a deeper model to train from scratch. Wrappers
            (torch.compile, DataParallel, DistributedDataParallel) are removed.
        values: One value for each decision, by name; by default the selected ones.

    Returns:
        A network of torch's modules (also in place of layers of `asng.fused`), your modules, and `Chain`, `Item` and
        `Constant`, for which torch has no equivalent.

    Raises:
        ValueError: The values do not fit, or a `build_static()` returned something invalid.
        RuntimeError: `values` are not given, and a decision has no value yet.

    >>> from asng.nas import OneOf
    >>> extract(nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()])), {"act": 1})
    Sequential(
      (0): Tanh()
    )
    """
    return Supernet(unwrap(model)).extract(values)
