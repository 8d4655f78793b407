"""Tied weights: found in a model, and tied again in the extracted network."""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, starmap
from typing import Any

import torch
from torch import Tensor, nn

ViewLocation = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class _Slice:
    """The slice of a tied parameter that a layer uses: the location of a view, or the numbers of its entries."""

    part: Tensor  # kept alive: it is identified by its id
    whole: nn.Parameter
    path: str
    location: ViewLocation | None
    entries: Callable[[], Tensor]

    def equals(self, other: "_Slice") -> bool:
        if self.location is not None and other.location is not None:
            return self.location == other.location
        return torch.equal(self.entries(), other.entries())


@dataclass(frozen=True)
class _Use:
    """A parameter of the network, and the slice of the tied one that it is; None for all of it."""

    module: nn.Module
    name: str
    parameter: nn.Parameter
    path: str
    slice_: _Slice | None

    def equals(self, other: "_Use") -> bool:
        if self.slice_ is None or other.slice_ is None:
            return self.parameter.numel() == other.parameter.numel()
        return self.slice_.equals(other.slice_)


class Ties:
    """The parameters that modules of a model share with others, given the modules with their paths.

    During extraction elastic layers record their slices of tied parameters (`record`), and the results of users'
    `build_static()` are searched for them.
    """

    def __init__(self, paths: Mapping[nn.Module, str]) -> None:
        self._paths = paths
        uses: dict[int, int] = {}
        for module in paths:
            for parameter in module._parameters.values():
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        self._shared = {key for key, number in uses.items() if number > 1 and key != id(None)}
        self._slices: dict[int, _Slice] = {}
        self._lost: dict[int, list[str]] = {}  # shared parameters that build_static()s did not return, and whose

    def record(self, layer: Any, name: str, view: Tensor, part: nn.Parameter) -> None:
        """Record that `part` of a static layer is this view of a layer's parameter."""
        whole = layer._parameters.get(name)
        if id(whole) in self._shared:
            path = f"{self._paths.get(layer) or type(layer).__name__}.{name}"
            location = _view_location(whole, view)
            self._slices[id(part)] = _Slice(part, whole, path, location, lambda: _entries(copy.copy(layer), name))

    def record_lost(self, active: Iterable[nn.Module], static: nn.Module, label: str) -> None:
        """Record tied parameters of the active modules that a `build_static()` did not return."""
        if not self._shared:
            return
        used = Counter(id(p) for module in active for p in module._parameters.values())
        held = {id(parameter): parameter for parameter in static.parameters()}
        slices = (self._slices.get(key) for key in held)
        lost = (used.keys() & self._shared) - held.keys() - {id(slice_.whole) for slice_ in slices if slice_}
        for key in lost:
            self._lost.setdefault(key, []).append(label)
        new = [parameter for key, parameter in held.items() if key not in self._slices and key not in used]
        if any(used[key] > 1 for key in lost) and any(starmap(_are_copies, combinations(new, 2))):
            raise ValueError(
                f"build_static() of {label} returned two copies of one weight, which would be tied no more; "
                "make one parameter of it, and use it twice"
            )

    def retie(self, network: Iterable[tuple[str, nn.Module]]) -> None:
        """Tie the slices of one parameter in a network's modules again.

        Raises ValueError if they differ.
        """
        if not self._shared:
            return
        uses: dict[int, list[_Use]] = {}
        for path, module in network:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    slice_ = self._slices.get(id(parameter))
                    where = f"{self._paths.get(module, path)}.{name}" if slice_ is None else slice_.path
                    whole = parameter if slice_ is None else slice_.whole
                    uses.setdefault(id(whole), []).append(_Use(module, name, parameter, where, slice_))
        for key, labels in self._lost.items():
            paths = [*(use.path for use in uses.get(key, ())), *labels]
            if len(paths) > 1:
                raise ValueError(
                    f"{paths[0]} shares its weight with {paths[-1]}, whose build_static() does not return it, so they "
                    "would be tied no more; return the parameter itself, or give them weights of their own"
                )
        for same in uses.values():
            first = min(same, key=lambda use: use.slice_ is not None)  # the parameter itself, if it stays
            for use in same:
                if not use.equals(first):
                    raise ValueError(
                        f"{first.path} and {use.path} share one parameter, but this architecture needs "
                        f"{tuple(first.parameter.shape)} and {tuple(use.parameter.shape)} of it; give them sizes that "
                        "are always the same, or weights of their own"
                    )
                if use.parameter is not first.parameter:
                    use.module._parameters[use.name] = first.parameter  # only what was cut out stands elsewhere


def _are_copies(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, which are not all equal as in a new layer."""
    if one.ndim == other.ndim == 2 and one.shape != other.shape:
        other = other.T
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device) or one.is_meta:
        return False
    return torch.equal(one, other) and bool((one != one.flatten()[:1]).any())


def _view_location(whole: Tensor, part: Tensor) -> ViewLocation | None:
    """The location of a view in a tensor; None if it is not a view."""
    if part.untyped_storage()._cdata != whole.untyped_storage()._cdata:
        return None
    return int(part.storage_offset()), tuple(part.shape), part.stride()


def _entries(layer: Any, name: str) -> Tensor:
    """The numbers of the entries of a parameter that a layer uses."""
    layer.__dict__["_parameters"] = {
        key: None if parameter is None else torch.arange(parameter.numel()).view(parameter.shape)
        for key, parameter in layer._parameters.items()
    }
    entries: Tensor = layer.active_tensors()[name]
    return entries
