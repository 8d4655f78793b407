"""Restore a model after user code (a measure, a module's own `build_static()`) has run on it."""

import gc
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from asng.nas.decisions import Searchable

if TYPE_CHECKING:
    from asng.nas.supernet import Supernet

Change = tuple[nn.Module, str]  # the module, and what of it
MISSING = object()
TRANSIENT = frozenset({"training", "selected"})  # changed and restored by asng itself


@contextmanager
def snapshot(modules: Iterable[nn.Module]) -> Iterator[list[Change]]:
    """Restore modules on exit; the list then holds what had changed.

    It restores attributes, submodules, hooks, tensors, modes, requires_grad, and the contents of buffers. Gradients
    are set aside. The contents of weights are not copied; `WriteGuard` protects them.
    """
    with _without_gc():
        saved = [(m, type(m), dict(m.__dict__), _contents(m)) for m in modules]
        parameters, buffers = (
            _tensors((m, getattr(m, held)) for m, *_ in saved) for held in ("_parameters", "_buffers")
        )
        tensors = [(m, t, t.requires_grad, location_of(t), t.detach()) for t, m in (*parameters, *buffers)]
        restore_numbers = _copy_numbers([buffer for buffer, _ in buffers if can_be_written(buffer)])
    gradients = [(parameter, parameter.grad) for parameter, _ in parameters]
    for parameter, _ in gradients:
        parameter.grad = None
    changes: list[Change] = []
    try:
        yield changes
    finally:
        with _without_gc():
            for module, kind, attributes, contents in saved:
                changes += [(module, what) for what in _restore_attributes(module, kind, attributes, contents)]
            for module, tensor, requires_grad, location, whole in tensors:
                if tensor.requires_grad is not requires_grad:
                    changes.append((module, "requires_grad"))
                    tensor.requires_grad_(requires_grad)
                if location_of(tensor) != location:  # replaced through .data
                    changes.append((module, "the numbers"))
                    tensor.data = whole
            restore_numbers()
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def _without_gc() -> Iterator[None]:
    """Pause the garbage collector: for thousands of new containers it would look through all objects several times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _copy_numbers(buffers: Sequence[Tensor]) -> Callable[[], None]:
    """Copy the contents of buffers, by few kernels for thousands of them; returns a function that writes them back."""
    groups: dict[Any, list[Tensor]] = {}
    for buffer in buffers:
        key = (buffer.dtype, buffer.device) if type(buffer) is Tensor else id(buffer)  # subclasses may not be joined
        groups.setdefault(key, []).append(buffer.detach())
    copies = [
        group[0].clone() if len(group) == 1 else torch.cat([b.reshape(-1) for b in group]) for group in groups.values()
    ]

    def restore() -> None:
        for group, copy in zip(groups.values(), copies, strict=True):
            parts = (copy,) if len(group) == 1 else torch.split(copy, [buffer.numel() for buffer in group])
            torch._foreach_copy_(group, [part.view(b.shape) for part, b in zip(parts, group, strict=True)])

    return restore


def _restore_attributes(
    module: nn.Module, kind: type, attributes: dict[str, Any], contents: dict[str, Any]
) -> list[str]:
    """Restore the class and the attributes of a module; returns what had changed."""
    now, changed = module.__dict__, []
    if not _same_objects(now, attributes):
        names = {**attributes, **now}.keys() - TRANSIENT
        changed = sorted(name for name in names if now.get(name, MISSING) is not attributes.get(name, MISSING))
        now.clear()
        now.update(attributes)
    if type(module) is not kind:
        changed.append("class")
        module.__class__ = kind
    for name, old in contents.items():
        held = attributes[name]
        if (len(held) or len(old)) and not _same_objects(held, old):
            changed += [] if name in TRANSIENT else [name.removeprefix("_")]
            held.clear()
            (held.extend if isinstance(held, list) else held.update)(old)
    return changed


class WeightsWritten(Exception):
    """An operation would write into the tensors of a module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module


class WriteGuard(TorchDispatchMode):
    """Raises WeightsWritten before an operation would write into a model's tensors, also through `.data`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model

    @cached_property
    def _owners(self) -> dict[int, list[tuple[range, nn.Module]]]:
        """By storage, several of the model's tensors may lie in one: their addresses and modules."""
        owners: dict[int, list[tuple[range, nn.Module]]] = {}
        for tensor, module in _tensors((m, {**m._parameters, **m._buffers}) for m in self._model.modules()):
            if tensor.layout is torch.strided:
                owners.setdefault(tensor.untyped_storage()._cdata, []).append((_addresses(tensor), module))
        return owners

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if hasattr(func, "_schema") and func._schema.is_mutable:
            for tensor in (*(args[0] if args and isinstance(args[0], list) else args[:1]), kwargs.get("out")):
                if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                    written = _addresses(tensor)
                    for held, module in self._owners.get(tensor.untyped_storage()._cdata, ()):
                        if written.start < held.stop and held.start < written.stop:
                            raise WeightsWritten(module)
        return func(*args, **kwargs)


@contextmanager
def forbid_changes(supernet: "Supernet", hook: str) -> Iterator[None]:
    """Raise ValueError if a hook of users' modules changed anything of a model; restore it in any case."""
    own = user_modules(supernet, hook)
    if not own:
        yield
        return
    with snapshot(supernet.paths) as changes:
        try:
            with WriteGuard(supernet.model):
                yield
        except WeightsWritten as error:
            changes.append((error.module, "the numbers"))
    if changes:
        owner, what = changes[0]
        suspects = [module for module in own if owner in set(module.modules())] or own
        names = " or ".join(sorted(label_of(module, supernet.paths) for module in suspects))
        raise ValueError(
            f"{hook}() of {names} changed {what} of {label_of(owner, supernet.paths)}; leave the model as it is, and "
            "change copies of its parts"
        )


def _contents(module: nn.Module) -> dict[str, Any]:
    """Copies of the dicts, lists and sets that are attributes of a module; () for empty ones, which most are."""
    held = module.__dict__.items()
    return {name: value.copy() if len(value) else () for name, value in held if isinstance(value, (dict, list, set))}


def _same_objects(now: Any, old: Any) -> bool:
    """True if two dicts, lists or sets hold the same objects, in the same order."""
    if isinstance(old, dict):
        return [*now] == [*old] and all(map(is_, now.values(), old.values()))
    return len(now) == len(old) and all(map(is_, now, old))


def set_training(model: nn.Module) -> None:
    """Put a model into training mode; in one that is, only call `train()` of modules whose class overrides it.

    By such a method a module keeps a part of itself, usually a pretrained one, in evaluation mode. A new model is in
    training mode although `train()` was never called. Modules that were put into evaluation mode explicitly stay in it.
    """
    if not model.training:
        model.train()
        return
    for module in model.modules():
        if module.training and type(module).train is not nn.Module.train:
            module.train()


def user_modules(supernet: "Supernet", hook: str) -> list[nn.Module]:
    """The searchable modules whose method `hook` is the user's."""
    searchable = (module for module in supernet.searchable_modules if isinstance(module, Searchable))
    return [module for module in searchable if not is_from_asng(getattr(type(module), hook))]


def label_of(module: nn.Module, paths: Mapping[nn.Module, str]) -> str:
    """A module in messages: its path, if it has one, and its class."""
    path, kind = paths.get(module), type(module).__name__
    return f"{path} ({kind})" if path else kind


def is_from_asng(function: Any) -> bool:
    """True if a function is from this package, which is tested to leave models unchanged."""
    return f"{getattr(function, '__module__', None)}.".startswith("asng.")


def _tensors(held: Iterable[tuple[nn.Module, dict[str, Any]]]) -> list[tuple[Tensor, nn.Module]]:
    """Each tensor once, with a module that has it."""
    return list({id(t): (t, module) for module, tensors in held for t in tensors.values() if t is not None}.values())


def location_of(tensor: Tensor) -> tuple[Any, ...]:
    """The storage of a tensor, and what it is a view of there."""
    if tensor.layout is not torch.strided:
        return tensor.dtype, tensor.shape
    storage = tensor.untyped_storage()._cdata
    return tensor.dtype, tensor.shape, storage, tensor.storage_offset(), tensor.stride()


def _addresses(tensor: Tensor) -> range:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())


def can_be_written(tensor: Tensor) -> bool:
    """False for sparse tensors, tensors of inference mode, and expanded ones, whose entries share memory."""
    if tensor.layout is not torch.strided or tensor.is_inference():
        return False
    return all(stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def hold_in_training(norms: Iterable[nn.Module]) -> None:
    """Put batch norms into training mode until their hooks are restored, also where user code calls eval()."""
    for norm in norms:
        norm.train()
        norm.register_forward_pre_hook(lambda module, _: module.__dict__.update(training=True))


def restore_modes(judge: Callable[[Any, Any], Any], modules: Collection[nn.Module]) -> Callable[[Any, Any], Any]:
    """A judge that leaves train/eval modes as they were; a warning, once, where it ran batch norms in evaluation."""
    warned: list[bool] = []

    def judge_and_restore(model: nn.Module, batch: Any) -> Any:
        modes = [(module, module.training) for module in modules]
        try:
            return judge(model, batch)
        finally:
            changed = [(module, mode) for module, mode in modes if module.training is not mode]
            for module, mode in changed:
                module.training = mode
            if not warned and any(mode and isinstance(m, nn.modules.batchnorm._BatchNorm) for m, mode in changed):
                warned.append(True)
                warnings.warn(
                    "the judge puts batch norms into evaluation mode, where they use running statistics, which average "
                    "over all candidates; leave out eval() in it",
                    stacklevel=2,
                )

    return judge_and_restore


@contextmanager
def preserve_state(supernet: "Supernet") -> Iterator[None]:
    """Restore selection, submodules, modes, requires_grad, buffers, gradients and RNG state on exit."""
    with supernet.preserve_selection(), preserve_rng(supernet), snapshot(supernet.paths):
        yield


def preserve_rng(supernet: "Supernet", device: torch.device | None = None) -> AbstractContextManager[None]:
    """Restore torch's RNG state on exit, also on the GPUs of a model and of what is measured."""
    cuda: Any = torch.cuda
    devices = set() if device is None else {device}
    if cuda.is_initialized():
        held = (tensor for module in supernet.paths for tensor in module._parameters.values())
        devices |= {tensor.device for tensor in held if tensor is not None}
    numbers = {cuda.current_device() if d.index is None else d.index for d in devices if d.type == "cuda"}
    return torch.random.fork_rng(sorted(numbers))


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Let torch's attention run without its fused kernels, and its encoders without nested tensors."""
    mha = torch.backends.mha
    enabled = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(enabled)
