"""From a model with decisions to a static one: from the outside in, with copies of the weights it needs."""

import copy
from typing import Any

from torch import Tensor, nn

from asng.nas._checks import describe_attribute, unregistered_modules, unwrap
from asng.nas._decision import Decision, Searchable
from asng.nas._preserve import Snapshot, is_from_asng, preserve_rng
from asng.nas._ties import Ties
from asng.nas.supernet import Supernet, Values, holds_decisions, module_paths

MAX_REPLACEMENTS = 20  # modules that replace each other, one after another


def extract(model: nn.Module, values: Values) -> nn.Module:
    """A static module that equals the selected model, with copies of the weights it needs and no decision.

    The model may be another one with the same decisions, such as a deeper one to train from scratch.
    A `Searchable` module is replaced by what its `build_static()` returns, from the outside in, while its
    own decisions are still there; decisions inside of the result are replaced next. The model is not
    changed. Weights that layers share are shared in the result too. Wrappers (torch.compile, DataParallel,
    DistributedDataParallel) are removed.

    >>> from asng.nas import OneOf
    >>> extract(nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()])), {"act": 1})
    Sequential(
      (0): Tanh()
    )
    """
    supernet = Supernet(unwrap(model))
    with supernet.selecting(values), preserve_rng(supernet):
        build = StaticBuild(supernet)
        return copy.deepcopy(build.network(), build.memo())


def borrow(supernet: Supernet, values: Values) -> nn.Module:
    """The same network for measurements: modules and buffers are copies, weights share the model's memory."""
    with supernet.selecting(values):
        build = StaticBuild(supernet)
        network, memo = build.network(), build.memo()
        models = {id(parameter): parameter for parameter in supernet.model.parameters()}
        for key, parameter in models.items():
            if type(parameter) is nn.Parameter:
                memo[key] = nn.Parameter(parameter.detach(), parameter.requires_grad)
        for layer in build.new_layers():
            if models.keys().isdisjoint(map(id, layer._parameters.values())):
                memo[id(layer)] = layer
        return copy.deepcopy(network, memo)


class StaticBuild:
    """One traversal of a model under its selected values; every module is replaced once."""

    def __init__(self, supernet: Supernet) -> None:
        self._model, self._original = supernet.model, supernet.paths
        self._replacements: dict[nn.Module, nn.Module] = {}
        self._in_progress: set[nn.Module] = set()
        self._makers: dict[nn.Module, frozenset[type]] = {}  # whose build_static() led to a new module
        self._supernet = supernet
        self._seen: dict[nn.Module, bool] = {}  # of the new ones, which are open
        self.ties = Ties(supernet.paths if _may_untie(supernet) else {})

    def network(self) -> nn.Module:
        """The static network, made of the model's own modules where they hold no decision; the model is not changed."""
        with self.ties.record_slices(self._supernet.elastic_layers):
            network = self._static(self._model)
        self.ties.retie(network.named_modules())
        return network

    def memo(self) -> "_SubstituteMemo":
        """deepcopy memo that maps each module that does not stay to its replacement (None if it was dropped)."""
        kept_modules = module_paths(self._static(self._model))
        substitutes: dict[int, nn.Module | None] = {}
        for module in self._original:
            if module not in kept_modules:
                after = self._replacements.get(module)
                if after is None and isinstance(module, Decision) and not module._modules:
                    after = module.build_static()  # a value that other modules may read
                substitutes[id(module)] = after
        memo = _SubstituteMemo(substitutes)
        for module in kept_modules:
            for value in module.__dict__.values():
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, Tensor) and not tensor.is_leaf:  # not a leaf: torch does not copy it
                        memo[id(tensor)] = tensor.detach().clone()
        return memo

    def new_layers(self) -> list[nn.Module]:
        """The new modules without children, which the model does not hold."""
        return [module for module in self._makers if not module._modules]

    def _static(self, module: nn.Module) -> nn.Module:
        if module not in self._replacements:
            if module in self._in_progress:
                raise ValueError(f"{self._label(module)} is inside of what its own build_static() returned")
            self._in_progress.add(module)
            result = module
            if self.holds_decisions(module):
                replacement = self.replacement(module)
                if replacement is not module:
                    result = self._static(replacement)
                else:
                    result = copy.copy(module)
                    children = module._modules.items()
                    inside = {name: None if child is None else self._static(child) for name, child in children}
                    result.__dict__["_modules"] = inside  # the original keeps its own
            self._replacements[module] = result
        return self._replacements[module]

    def holds_decisions(self, module: nn.Module) -> bool:
        """True if a module, of the model or made by `build_static()`, is or holds a decision or an elastic layer."""
        return module in self._supernet.searchable if module in self._original else holds_decisions(module, self._seen)

    def replacement(self, module: nn.Module) -> nn.Module:
        """The replacement of a module: the result of its `build_static()`, or itself if it is not Searchable."""
        if not isinstance(module, Searchable):
            return unwrap(module)
        if is_from_asng(type(module).build_static):
            static = module.build_static()
            self._adopt(module, static)
        else:
            static = self._build_user_static(module)
        return static

    def _build_user_static(self, module: Searchable) -> nn.Module:
        """The result of a `build_static()` of the user's; raises ValueError where it changed anything of the model."""
        snapshot = Snapshot(module_paths(module))
        try:
            with self._supernet.preserve_selection():
                static = module.build_static()
        finally:
            changed = snapshot.restore()
        if changed is not None:
            raise ValueError(
                f"build_static() of {self._label(module)} changed {changed}; return a new module, "
                "made of this one's parts, and leave this one as it is"
            )
        if not isinstance(static, nn.Module):
            raise TypeError(
                f"build_static() of {self._label(module)} must return a module, which takes its place, got {static!r}"
            )
        self._adopt(module, static)
        self.ties.record_lost(self._supernet.active_modules(root=module), static, self._label(module))
        return static

    def _adopt(self, module: Searchable, static: nn.Module) -> None:
        """Check the new modules in the replacement of a module, and set their training mode."""
        makers = self._makers.get(module, frozenset()) | {type(module)}
        waiting = [static]
        while waiting:
            inner = waiting.pop()
            if inner in self._original or inner in self._makers:
                continue
            self._makers[inner] = makers
            inner.training = module.training
            waiting.extend(child for child in inner._modules.values() if child is not None)
            if (type(inner) in makers or len(makers) > MAX_REPLACEMENTS) and self.holds_decisions(inner):
                raise ValueError(
                    f"build_static() of {self._label(module)} returned a {type(inner).__name__} with decisions in it, "
                    "which would have to be replaced again, and so on; return a module of another class, "
                    "which runs what is selected and reads no decision of its own"
                )
            for name, value, lost in () if isinstance(module, Decision) else unregistered_modules(inner):
                if lost not in module_paths(static):
                    raise ValueError(
                        f"build_static() of {self._label(module)} returned a {type(inner).__name__} whose "
                        f"{describe_attribute('', name, value)} holds {type(lost).__name__}, where torch does not see "
                        "it; use nn.ModuleList, nn.ModuleDict or an attribute"
                    )

    def _label(self, module: nn.Module) -> str:
        path = self._original.get(module)
        return f"{path} ({type(module).__name__})" if path else type(module).__name__


def _may_untie(supernet: Supernet) -> bool:
    """True if layers may be replaced by layers with slices or copies of their weights."""
    return bool(supernet.elastic_layers) or any(
        isinstance(module, Searchable) and not is_from_asng(type(module).build_static) for module in supernet.searchable
    )


class _SubstituteMemo(dict[int, Any]):
    """A deepcopy memo in which some modules, by their ids, are substituted by others."""

    def __init__(self, substitutes: dict[int, nn.Module | None]) -> None:
        super().__init__()
        self._substitutes = substitutes

    def get(self, key: int, default: Any = None) -> Any:
        if key in self._substitutes:
            return copy.deepcopy(self._substitutes[key], self)
        return super().get(key, default)
