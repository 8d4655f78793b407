"""A model is measured for a while, and is left as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from asng.nas.selection import Decisions


@contextmanager
def untouched(decisions: Decisions, device: torch.device | None = None) -> Iterator[None]:
    """Afterwards a model's selection and modes are as before, and so are torch's random numbers."""
    modes = [module.training for module in decisions.paths]
    with decisions.kept(), torch.random.fork_rng(_cuda_devices(decisions, device)):
        try:
            yield
        finally:
            for module, training in zip(decisions.paths, modes, strict=True):
                if module.training is not training:
                    module.training = training


def _cuda_devices(decisions: Decisions, device: torch.device | None) -> list[int]:
    """Where a model, and what is measured, may draw random numbers besides the CPU."""
    cuda: Any = torch.cuda
    devices = set() if device is None else {device}
    if cuda.is_initialized():
        held = (tensor for module in decisions.paths for tensor in module._parameters.values())
        devices |= {tensor.device for tensor in held if tensor is not None}
    return sorted({cuda.current_device() if d.index is None else d.index for d in devices if d.type == "cuda"})
