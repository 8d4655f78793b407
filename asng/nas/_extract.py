"""From a model with decisions to a static network, from the outside in."""

import copy
from collections.abc import Callable, Iterator, Mapping, Reversible
from contextlib import nullcontext
from functools import cache
from inspect import getattr_static
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn

from asng.nas import _checks
from asng.nas._checks import MODULE_ATTRIBUTES, objects_in, unregistered_modules, unwrap
from asng.nas._preserve import forbid_changes, is_from_asng, label_of, preserve_rng, user_modules
from asng.nas._ties import Ties
from asng.nas.decisions import Decision, Searchable
from asng.nas.layers._base import Build, ElasticLayer, current_build, has_own_hooks

if TYPE_CHECKING:
    from asng.nas.supernet import Supernet

MAX_REPLACEMENTS = 20  # modules that replace each other, one after another
TENSORS_AND_MODULES = ("_parameters", "_buffers", "_modules")
IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None), torch.dtype, torch.device})


class StaticBuild:
    """The static network of an architecture, made in one traversal of the model; every module is replaced once.

    `network` is made of the model's own modules where they hold no decision, and of layers whose weights are views of
    the model's: to look at. `copy` returns one to keep or to run. The model, its selection and torch's RNG
    state are not changed.
    """

    def __init__(self, supernet: "Supernet", values: Mapping[str, Any]) -> None:
        self.supernet, self._values, self._original = supernet, values, supernet.paths
        self._replacements: dict[nn.Module, nn.Module] = {}
        self._in_progress: set[nn.Module] = set()
        self._makers: dict[nn.Module, frozenset[type]] = {}  # whose build_static() led to a new module
        self._seen: dict[nn.Module, bool] = {}  # which hold decisions; not the index: the model may have changed
        elastic = any(isinstance(module, ElasticLayer) for module in supernet.searchable_modules)
        may_untie = elastic or user_modules(supernet, "build_static")  # by slices or copies of weights
        self._ties = Ties(supernet.paths if may_untie else {})
        self._views, self._copies = (Build(copies, self._ties.slice, self._original) for copies in (False, True))
        with supernet.select_temporarily(values), preserve_rng(supernet), torch.no_grad():
            with forbid_changes(supernet, "build_static"):
                self.network = self._make_static(supernet.model)
            self._ties.check(self.network.named_modules())

    def num_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        held = {id(p): p for module in walk(self.network) for p in module._parameters.values() if p is not None}
        return sum(parameter.numel() for parameter in held.values())

    def copy(self, *, share_weights: bool = False) -> nn.Module:
        """A deep copy of the network; its parameters may share the model's memory.

        Attributes that refer to a module of the model refer to its replacement, or None if it was dropped. It is what
        copy.deepcopy does, with the attributes of most modules copied here, which is several times as fast.
        """
        memo: dict[int, Any] = {}
        kept = list(walk(self.network))
        ordinary = [module for module in kept if _is_ordinary(module.__class__)]  # type: ignore[arg-type]
        for module in ordinary:
            memo[id(module)] = type(module).__new__(type(module))
        for module in kept:
            _copy_tensors(module, memo, share_weights)
        with self.supernet.select_temporarily(self._values):
            memo = self._substitute(memo, set(kept))
        for module in reversed(ordinary):  # those inside first: what copies itself, as a GraphModule, looks at them
            attributes = memo[id(module)].__dict__
            for name, value in module.__dict__.items():
                try:
                    attributes[name] = _copy_attribute(name, value, memo)
                except Exception as error:  # such as a lock or a file, which nothing copies
                    error.add_note(f"while copying the attribute {name!r} of {label_of(module, self._original)}")
                    raise
        network: nn.Module = copy.deepcopy(self.network, memo)
        for path, module in network.named_modules():
            module._compiled_call_impl = None  # which would run the module of the model
            self._check_functions(module, path)
        return network

    def _check_functions(self, module: nn.Module, path: str) -> None:
        """Raise ValueError for attributes of a copy that still use modules of the model, as deepcopy kept them."""
        for name, value in module.__dict__.items():
            if type(value) in IMMUTABLE or (name in MODULE_ATTRIBUTES and (not value or name in TENSORS_AND_MODULES)):
                continue
            for holder in objects_in(value, (FunctionType, ref)):
                for captured in _checks.captured_modules(holder):
                    if captured in self._original:
                        what = "weak reference to" if isinstance(holder, ref) else "function that captures"
                        raise ValueError(
                            f"{name.lstrip('_')} of {label_of(module, {module: path})} has a {what} "
                            f"{label_of(captured, self._original)}, and would still use it instead of its copy; use "
                            "a method, or give it the module as an argument"
                        )

    def _substitute(self, memo: dict[int, Any], kept: set[nn.Module]) -> dict[int, Any]:
        """Map the modules that do not stay to their replacements in the copy."""
        others = {id(module): unwrap(module) for module in kept if _checks.is_optimized(module)}
        for module in self._original:
            if module not in kept:
                after = self._replacements.get(module)
                if after is None and isinstance(module, Decision) and not module._modules:
                    memo[id(module)] = module.build_static()  # a value that other modules may read
                elif after is None or id(after) in memo:
                    memo[id(module)] = memo.get(id(after))
                else:
                    others[id(module)] = after
        return _Memo(memo, others) if others else memo

    def _make_static(self, module: nn.Module) -> nn.Module:
        if module not in self._replacements:
            if module in self._in_progress:
                label = label_of(module, self._original)
                raise ValueError(f"{label} is inside the module that its own build_static() returned")
            self._in_progress.add(module)
            result = module
            if holds_decisions(module, self._seen):
                replacement = self._replacement(module)
                if replacement is not module:
                    result = self._make_static(replacement)
                else:
                    result = copy.copy(module)
                    children = module._modules.items()
                    static = {name: None if child is None else self._make_static(child) for name, child in children}
                    result.__dict__["_modules"] = static  # the original keeps its own
            self._replacements[module] = result
        return self._replacements[module]

    def _replacement(self, module: nn.Module) -> nn.Module:
        """The replacement of a module: the result of its `build_static()`, or itself if it is not Searchable."""
        if not isinstance(module, Searchable):
            return unwrap(module)
        from_asng = is_from_asng(type(module).build_static)
        own = _own_code(module)  # before build_static() runs, which may hook it
        token = current_build.set(self._views if from_asng else self._copies)
        try:
            with nullcontext() if from_asng else self.supernet.preserve_selection():
                static = module.build_static()
        finally:
            current_build.reset(token)
        if not isinstance(static, nn.Module):
            label = label_of(module, self._original)
            raise TypeError(f"build_static() of {label} must return a module, its replacement, got {static!r}")
        self._adopt(module, static)
        if own and static is not module:
            raise ValueError(
                f"{label_of(module, self._original)} has a {own[0]}, which its replacement "
                f"{type(static).__name__} would not have; {own[1]}"
            )
        if not from_asng:
            active = self.supernet.active_modules(root=module)
            self._ties.record_lost(active, static, label_of(module, self._original))
            if static is module:
                self._check_itself(module)
        return static

    def _check_itself(self, module: Searchable) -> None:
        """Raise ValueError if a module that replaces itself keeps a decision, or modules that do not run."""
        kind: Any = type(module)
        active = set(self.supernet.active_modules(root=module))
        kept = module if _is_searched(kind) else _first_inactive(module, active)
        if kept is not None:
            inside = f"keeps {label_of(kept, self._original)}, which does not run"
            raise ValueError(
                f"build_static() of {label_of(module, self._original)} returned the module itself, which "
                f"{'is a decision' if kept is module else inside}; return another module with only the parts that run"
            )

    def _adopt(self, module: Searchable, static: nn.Module) -> None:
        """Check the new modules in the replacement of a module, and set their training mode."""
        makers, label = self._makers.get(module, frozenset()) | {type(module)}, label_of(module, self._original)
        for inner in walk(static, predicate=lambda inner: inner not in self._original and inner not in self._makers):
            self._makers[inner] = makers
            inner.__dict__["training"] = module.training
            if (type(inner) in makers or len(makers) > MAX_REPLACEMENTS) and holds_decisions(inner, self._seen):
                raise ValueError(
                    f"build_static() of {label} returned a {type(inner).__name__} with decisions in it, "
                    "which would be replaced without end; return a module of another class, which runs what is "
                    "selected and has no decisions of its own"
                )
            for name, value, lost in () if isinstance(module, Decision) else unregistered_modules(inner):
                if lost not in set(static.modules()):
                    where = f"build_static() of {label} returned a {type(inner).__name__} whose {name}"
                    raise _checks.unregistered_error(where, value, lost)


class _Memo(dict[int, Any]):
    """A memo of deepcopy with modules, by id, of which another one is copied when they are met."""

    def __init__(self, memo: dict[int, Any], others: dict[int, nn.Module]) -> None:
        super().__init__(memo)
        self._others = others

    def get(self, key: int, default: Any = None) -> Any:
        other = self._others.get(key)
        return super().get(key, default) if other is None else copy.deepcopy(other, self)


def walk(
    root: nn.Module,
    children: Callable[[nn.Module], Reversible[nn.Module | None]] = lambda module: module._modules.values(),
    predicate: Callable[[nn.Module], bool] = lambda module: True,
) -> Iterator[nn.Module]:
    """The modules that meet a predicate, each once, in the order of `modules()`, which is several times as slow."""
    seen: set[nn.Module] = set()
    waiting: list[nn.Module | None] = [root]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in seen and predicate(module):
            seen.add(module)
            yield module
            waiting.extend(reversed(children(module)))


def _own_code(module: nn.Module) -> tuple[str, str] | None:
    """What a module runs besides the code of its class, and what to do about it."""
    if has_own_hooks(module):
        return "forward hook", "register it on the surrounding module, or remove it first"
    if _has_patched_forward(module):
        return "forward of its own", "put it into the surrounding module, or del module.forward first"
    return None


def _has_patched_forward(module: nn.Module) -> bool:
    """True if a function that its class does not have was set as its forward."""
    patch = vars(module).get("forward")
    own = isinstance(patch, MethodType) and patch.__self__ is module
    return patch is not None and not (own and getattr_static(type(module), patch.__name__, None) is patch.__func__)


def holds_decisions(module: nn.Module, seen: dict[nn.Module, bool]) -> bool:
    """True if a module is, or holds, a decision or an elastic layer; `seen` is a memo.

    A `Searchable` also holds what it reads through its plain attributes, such as a configuration.
    """
    known = seen.get(module)
    if known is None:
        kind: Any = type(module)
        known = _is_searched(kind) or (isinstance(module, Searchable) and _reads_decisions(module))
        children = () if known else module._modules.values()
        seen[module] = known = known or any(child is not None and holds_decisions(child, seen) for child in children)
    return known


def _reads_decisions(module: nn.Module) -> bool:
    return any(isinstance(m, Decision) for _, _, held in unregistered_modules(module) for m in held.modules())


def _first_inactive(module: nn.Module, active: set[nn.Module]) -> nn.Module | None:
    """The first module inside another that is not active, and is no container of active ones."""
    for child in module.children():
        if child not in active:
            inside = _first_inactive(child, active) if child._modules else child
            if inside is not None:
                return inside
    return None


@cache
def _is_searched(kind: Any) -> bool:
    return issubclass(kind, (Decision, ElasticLayer))  # which is slow for abstract classes


@cache
def _is_ordinary(kind: Any) -> bool:
    """True if copy.deepcopy copies the attributes of such modules one by one, and does nothing else."""
    same = all(
        getattr(kind, name) is getattr(nn.Module, name) for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )
    # Those of torch's layers add what is missing in the pickles of older versions, and that of torch.compile a number.
    is_torchs = kind.__setstate__.__module__.startswith(("torch.nn", "torch._dynamo"))
    return same and not hasattr(kind, "__deepcopy__") and is_torchs


def _copy_tensors(module: nn.Module, memo: dict[int, Any], share_weights: bool) -> None:
    """Put copies of buffers, of tensors that torch does not copy, and shared weights into a memo of deepcopy."""
    for buffer in module._buffers.values():
        if type(buffer) is Tensor and id(buffer) not in memo:  # a copy of a view would hold all of its memory
            memo[id(buffer)] = buffer.detach().clone().requires_grad_(buffer.requires_grad)
    for name, value in module.__dict__.items():
        if type(value) not in IMMUTABLE and name not in MODULE_ATTRIBUTES:
            for tensor in objects_in(value, Tensor):
                if not tensor.is_leaf and id(tensor) not in memo:
                    memo[id(tensor)] = tensor.detach().clone()
    if share_weights:
        for parameter in module._parameters.values():
            if type(parameter) is nn.Parameter and id(parameter) not in memo:
                memo[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)


def _copy_attribute(name: str, value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in IMMUTABLE or (kind is tuple and all(type(item) in IMMUTABLE for item in value)):
        return value
    if name in MODULE_ATTRIBUTES and not value:  # hooks, most of the time
        return kind()
    if kind is MethodType and isinstance(value.__self__, nn.Module):
        return _copy_method(value, memo)
    return copy.deepcopy(value, memo)


def _copy_method(method: MethodType, memo: dict[int, Any]) -> Any:
    """A bound method, that of the same name where its module was replaced; None if the module was dropped."""
    module, function, name = method.__self__, method.__func__, method.__name__
    owner = copy.deepcopy(module, memo)
    if owner is None or type(owner) is type(module):  # as deepcopy does, also of functions that no class has
        return owner if owner is None else MethodType(function, owner)
    if getattr_static(type(module), name, None) is not function or not hasattr(owner, name):
        raise ValueError(
            f"the method {name} of a {type(module).__name__} is an attribute, but its replacement "
            f"{type(owner).__name__} has no such method; call the module instead"
        )
    return getattr(owner, name)
