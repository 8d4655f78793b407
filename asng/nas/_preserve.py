"""Restore a model after user code (a measure, a module's own `build_static()`) has run on it."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from asng.nas.supernet import Supernet

TRANSIENT = frozenset({"training", "selected"})  # changed and restored by asng itself


class Snapshot:
    """A snapshot of modules; `restore` restores it and says what had changed.

    It holds attributes, submodules, hooks, tensors, modes, requires_grad, and the contents of buffers. Gradients are
    set aside. The contents of weights are not copied, only compared by their version.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._saved = [(m, type(m), dict(m.__dict__), _contents(m)) for m in modules]
        parameters = _tensors(m._parameters for m, _, _, _ in self._saved)
        buffers = _tensors(m._buffers for m, _, _, _ in self._saved)
        tensors = (*parameters, *buffers)
        self._tensors = [(tensor, tensor.requires_grad, _version(tensor), tensor.detach()) for tensor in tensors]
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]
        for parameter, _ in self._gradients:
            parameter.grad = None

    def restore(self) -> str | None:
        """Restore the modules; returns what was changed, or None."""
        changed = None
        for module, kind, attributes, contents in self._saved:
            names = [name for name in {**attributes, **module.__dict__} if name not in TRANSIENT]
            now = module.__dict__
            lost = [
                name for name in names if name not in now or name not in attributes or now[name] is not attributes[name]
            ]
            if lost or type(module) is not kind:
                changed = changed or f"its {lost[0] if lost else 'class'}"
                module.__class__ = kind
            now.clear()
            now.update(attributes)
            for name, old in contents.items():
                if not _same_objects(attributes[name], old):
                    if name not in TRANSIENT:
                        changed = changed or f"its {name.removeprefix('_')}"
                    attributes[name].clear()
                    (attributes[name].extend if isinstance(old, list) else attributes[name].update)(old)
        in_tensors = self._restore_tensors()
        return changed or in_tensors

    def _restore_tensors(self) -> str | None:
        changed = None
        for tensor, requires_grad, version, whole in self._tensors:
            if tensor.requires_grad is not requires_grad:
                changed = changed or "requires_grad of its parameters"
                tensor.requires_grad_(requires_grad)
            if _version(tensor) != version:
                changed = changed or "the numbers in its tensors"
                if _version(tensor)[1:] != version[1:]:  # replaced through .data
                    tensor.data = whole
        with torch.no_grad():
            for buffer, numbers in self._buffers:
                buffer.copy_(numbers)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return changed


def _contents(module: nn.Module) -> dict[str, Any]:
    """Copies of the dicts, lists and sets that are attributes of a module."""
    held = module.__dict__.items()
    return {name: copy.copy(value) for name, value in held if isinstance(value, (dict, list, set))}


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


def is_from_asng(function: Any) -> bool:
    """True if a function is from this package, which is tested to leave models unchanged."""
    module = getattr(function, "__module__", None) or ""
    return module == "asng" or module.startswith("asng.")


def _tensors(held: Iterable[dict[str, Any]]) -> list[Tensor]:
    """Each tensor once."""
    return list({id(tensor): tensor for tensors in held for tensor in tensors.values() if tensor is not None}.values())


def _version(tensor: Tensor) -> tuple[int, torch.dtype, int, torch.Size]:
    """A version that changes when a tensor is modified or replaced; inference tensors count no modifications."""
    return 0 if tensor.is_inference() else tensor._version, tensor.dtype, tensor.data_ptr(), tensor.shape


@contextmanager
def preserve_state(supernet: "Supernet", device: torch.device | None = None) -> Iterator[None]:
    """Restore selection, submodules, modes, requires_grad, buffers, gradients and RNG state on exit."""
    with supernet.preserve_selection(), preserve_rng(supernet, device):
        snapshot = Snapshot(supernet.paths)
        try:
            yield
        finally:
            snapshot.restore()


def preserve_rng(supernet: "Supernet", device: torch.device | None = None) -> AbstractContextManager[None]:
    """Restore torch's RNG state on exit, also on the GPUs of a model and of what is measured."""
    return torch.random.fork_rng(_cuda_devices(supernet, device))


def _cuda_devices(supernet: "Supernet", device: torch.device | None) -> list[int]:
    """The CUDA devices of a model and of a measurement."""
    cuda: Any = torch.cuda
    devices = set() if device is None else {device}
    if cuda.is_initialized():
        held = (tensor for module in supernet.paths for tensor in module._parameters.values())
        devices |= {tensor.device for tensor in held if tensor is not None}
    return sorted({cuda.current_device() if d.index is None else d.index for d in devices if d.type == "cuda"})
