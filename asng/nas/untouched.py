"""Foreign code looks at a model (a measure, a module's own `build_static()`), and the model is as before."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas.selection import Decisions


class Snapshot:
    """Submodules, tensors, modes and requires_grad of modules: put back by `restore`, which says what had changed.

    With `numbers` the contents of buffers and the gradients are put back, too: meanwhile there are no gradients.
    """

    def __init__(self, modules: Iterable[nn.Module], *, numbers: bool = False) -> None:
        self._held = [(m, dict(m._modules), dict(m._parameters), dict(m._buffers), m.training) for m in modules]
        parameters = _tensors(parameters for _, _, parameters, _, _ in self._held)
        buffers = _tensors(buffers for _, _, _, buffers, _ in self._held)
        self._tensors = [(tensor, tensor.requires_grad, _version(tensor)) for tensor in (*parameters, *buffers)]
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers] if numbers else []
        self._gradients = [(parameter, parameter.grad) for parameter in parameters] if numbers else []
        for parameter, _ in self._gradients:
            parameter.grad = None

    def restore(self) -> str | None:
        """Put back what can be; returns what was changed for good by whoever does not ask for that, or None."""
        changed = None
        for module, modules, parameters, buffers, training in self._held:
            module.training = training
            for kind, now, old in (
                ("modules", module._modules, modules),
                ("parameters", module._parameters, parameters),
                ("buffers", module._buffers, buffers),
            ):
                if (now or old) and ([*now] != [*old] or not all(map(is_, now.values(), old.values()))):
                    changed = changed or f"its {kind}"
                    now.clear()
                    now.update(old)  # type: ignore[arg-type]
        for tensor, requires_grad, version in self._tensors:
            if tensor.requires_grad is not requires_grad:
                changed = changed or "requires_grad of its parameters"
                tensor.requires_grad_(requires_grad)
            if _version(tensor) != version:
                changed = changed or "the numbers in its tensors"
        with torch.no_grad():
            for buffer, numbers in self._buffers:
                buffer.copy_(numbers)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return changed


def is_ours(function: Any) -> bool:
    """Whether a function is this package's, whose tests see to it that it leaves models alone."""
    return str(getattr(function, "__module__", "")).split(".")[0] == "asng"


def _tensors(held: Iterable[dict[str, Any]]) -> list[Tensor]:
    """Each tensor once."""
    return list({id(tensor): tensor for tensors in held for tensor in tensors.values() if tensor is not None}.values())


def _version(tensor: Tensor) -> int:
    """Counts the changes of a tensor in place; inference tensors do not."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def untouched(decisions: Decisions, device: torch.device | None = None) -> Iterator[None]:
    """Restore selection, submodules, modes, requires_grad, buffers, gradients and RNG state on exit."""
    with decisions.kept(), preserve_rng(decisions, device):
        snapshot = Snapshot(decisions.paths, numbers=True)
        try:
            yield
        finally:
            snapshot.restore()


def preserve_rng(decisions: Decisions, device: torch.device | None = None) -> AbstractContextManager[None]:
    """Restore torch's RNG state on exit, also on the GPUs of a model and of what is measured."""
    return torch.random.fork_rng(_cuda_devices(decisions, device))


def _cuda_devices(decisions: Decisions, device: torch.device | None) -> list[int]:
    """Where a model, and what is measured, may draw random numbers besides the CPU."""
    cuda: Any = torch.cuda
    devices = set() if device is None else {device}
    if cuda.is_initialized():
        held = (tensor for module in decisions.paths for tensor in module._parameters.values())
        devices |= {tensor.device for tensor in held if tensor is not None}
    return sorted({cuda.current_device() if d.index is None else d.index for d in devices if d.type == "cuda"})
