"""What passes of a model and its loss leave behind: found, refused where a graph would not do it, and put back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from asng.nas._capture import host_rng
from asng.nas._capture.cases import Refused
from asng.nas._capture.held import find_held
from asng.nas._preserve import can_be_written, location_of
from asng.nas.supernet import Supernet


class Effects:
    """Modes, buffers, other tensors and host generators of a model, of functions that call it, and of what these hold.

    Args:
        supernet: The model, before its first pass.
        functions: The loss and the judge.
        device: Where a graph runs.
    """

    def __init__(self, supernet: Supernet, functions: Iterable[Any], device: torch.device) -> None:
        self._supernet, self._is_training = supernet, supernet.model.training
        self._users = [*functions, *supernet.paths]
        held = find_held(self._users)
        self._generators = host_rng.host_generators(device, held)
        self._states: list[Any] = []  # of the generators
        self._holders = [
            each for each in held if hasattr(each, "__dict__") and not isinstance(each, (type, ModuleType))
        ]
        others = [thing for thing in held if isinstance(thing, nn.Module) and thing not in supernet.paths]
        self._buffers = [
            (module, name, buffer, None if buffer is None else location_of(buffer))
            for module in dict.fromkeys([*supernet.paths, *chain(*(other.modules() for other in others))])
            for name, buffer in module._buffers.items()
        ]

    def buffers(self) -> list[Tensor]:
        """The buffers that can be written."""
        return [buffer for _, _, buffer, _ in self._buffers if buffer is not None and can_be_written(buffer)]

    def held_tensors(self) -> list[Tensor]:
        """All tensors that the model and the functions hold now."""
        return [thing.detach() for thing in find_held(self._users) if isinstance(thing, Tensor)]

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Restore the states of generators, and which buffers there are, on exit; what these hold is left."""
        self._states = host_rng.snapshot(self._generators)
        with host_rng.restore(self._generators):
            try:
                yield
            finally:
                for module, name, buffer, _ in self._buffers:
                    module._buffers[name] = buffer

    def check(self) -> None:
        """Refuse a pass that makes new buffers: a graph would write into the same ones, and read the first ones.

        Also one with gradients of its own, which would not be added to those of the iteration, one that ends in
        evaluation mode, and one with random numbers that a graph would not draw again.
        """
        states = zip(self._generators, self._states, host_rng.snapshot(self._generators), strict=True)
        for (name, _), before, state in states:
            if state != before:
                raise Refused(
                    f"the model, the loss or the judge draws from {name}, and a graph would repeat these numbers; draw "
                    "them by torch, on the device of the model"
                )
        if self._is_training and not self._supernet.model.training:
            raise Refused("loss_fn leaves the model in evaluation mode; leave out eval() in it")
        for name, parameter in self._supernet.model.named_parameters():
            if parameter._post_accumulate_grad_hooks:
                raise Refused(f"parameter {name} has a hook on its accumulated gradient, which a graph does not call")
            if parameter.grad is not None:
                raise Refused("the loss calls backward(); return the sum of these losses instead")
        for module, name, buffer, location in self._buffers:
            if module._buffers[name] is not buffer or (buffer is not None and location_of(buffer) != location):
                path = self._path_of(module)
                raise Refused(f"{path} replaces its buffer {name!r}; write into it, such as by {name}.copy_(...)")

    @contextmanager
    def refuse_replacements(self) -> Iterator[None]:
        """Refuse passes that look at a tensor and put another one in its place.

        A graph would read the first one again, or a pass of it what another one, beside it, has not made yet.
        """
        before = self._attributes()
        with _RecordReads() as reads:
            yield
        for thing, name, tensor in before:
            if vars(thing).get(name) is not tensor and tensor in reads:
                path = self._path_of(thing)
                raise Refused(f"{path} replaces its tensor {name!r}; write into it, such as by {name}.copy_(...)")

    @contextmanager
    def put_back_if_refused(self) -> Iterator[None]:
        """Leave tensors of the model and the loss to plain steps as they were; a graph reads what passes keep."""
        before = self._attributes()
        try:
            yield
        except BaseException:
            for thing, name, tensor in before:
                vars(thing)[name] = tensor
            raise

    def _attributes(self) -> list[tuple[Any, str, Tensor]]:
        """The tensors that are attributes of modules, of the loss and of what these hold, but no buffers."""
        held = ((thing, name, value) for thing in self._holders for name, value in vars(thing).items())
        return [(thing, name, value) for thing, name, value in held if isinstance(value, Tensor)]

    def _path_of(self, thing: Any) -> str:
        return self._supernet.paths.get(thing, type(thing).__name__) or "the model"


class _RecordReads(TorchFunctionMode):
    """Records which tensors functions are given, also those that ask for a shape."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: set[int] = set()

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._ids

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._ids.update(id(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        return function(*args, **(kwargs or {}))
