"""Tied weights: found in a model, and tied in the extracted network, too."""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations, starmap
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas._preserve import location_of
from asng.nas.layers._base import owner_of


class Ties:
    """The parameters that modules of a model share with others, given the modules with their paths.

    During extraction elastic layers that use the same slice of one get the same parameter (`slice`), and the results
    of users' `build_static()` are searched for them.
    """

    def __init__(self, paths: Mapping[nn.Module, str]) -> None:
        self._paths = paths
        uses = Counter(id(p) for module in paths for p in module._parameters.values() if p is not None)
        self._shared = {key for key, number in uses.items() if number > 1}
        self._slices: dict[Any, nn.Parameter] = {}  # by shared parameter and location
        self._origins: dict[int, tuple[nn.Parameter, str]] = {}  # of slices: the shared parameter, and a path
        self._lost: dict[int, list[str]] = {}  # shared parameters that build_static()s did not return, and whose

    def slice(self, layer: Any, name: str, view: Tensor) -> nn.Parameter | None:
        """The parameter for a view of a layer's shared parameter, which is one for equal views; None if not shared."""
        owner, key = owner_of(layer, name)
        whole: Any = owner._parameters.get(key)
        if id(whole) not in self._shared:
            return None
        is_view = view.untyped_storage()._cdata == whole.untyped_storage()._cdata
        # The first channels of several groups are a copy.
        location = location_of(view) if is_view else _number_entries(layer).active_tensors()[name].numpy().tobytes()
        part: nn.Parameter = whole
        if location != location_of(whole):
            part = self._slices.setdefault((id(whole), location), nn.Parameter(view, whole.requires_grad))
            self._origins[id(part)] = whole, f"{self._paths.get(layer) or type(layer).__name__}.{name}"
        return part

    def record_lost(self, active: Iterable[nn.Module], static: nn.Module, label: str) -> None:
        """Record tied parameters of the active modules that a `build_static()` did not return."""
        if not self._shared:
            return
        used = Counter(id(p) for module in active for p in module._parameters.values())
        held = {id(parameter): parameter for parameter in static.parameters()}
        sliced = {id(self._origins[key][0]) for key in held if key in self._origins}
        lost = (used.keys() & self._shared) - held.keys() - sliced
        for key in lost:
            self._lost.setdefault(key, []).append(label)
        new = [parameter for key, parameter in held.items() if key not in self._origins and key not in used]
        if any(used[key] > 1 for key in lost) and any(starmap(_are_copies, combinations(new, 2))):
            raise ValueError(
                f"build_static() of {label} returned two copies of one weight, which would no longer be tied; "
                "use one parameter twice"
            )

    def check(self, network: Iterable[tuple[str, nn.Module]]) -> None:
        """Raise ValueError unless uses of a shared parameter are one parameter of a network, too."""
        if not self._shared:
            return
        uses: dict[int, dict[int, tuple[str, nn.Parameter]]] = {}  # by shared parameter: its slices with a path
        for path, module in network:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    use = parameter, f"{self._paths.get(module, path)}.{name}"
                    whole, where = self._origins.get(id(parameter), use)
                    uses.setdefault(id(whole), {}).setdefault(id(parameter), (where, parameter))
        for key, labels in self._lost.items():
            paths = [*(path for path, _ in uses.get(key, {}).values()), *labels]
            if len(paths) > 1:
                raise ValueError(
                    f"{paths[0]} shares its weight with {paths[-1]}, whose build_static() does not return it, so they "
                    "would no longer be tied; return the parameter itself, or give them weights of their own"
                )
        for slices in uses.values():
            (path, part), *others = slices.values()
            if others:
                other_path, other = others[0]
                raise ValueError(
                    f"{path} and {other_path} share one parameter, but this architecture needs {tuple(part.shape)} and "
                    f"{tuple(other.shape)} of it; give them sizes that are always the same, or weights of their own"
                )


def _are_copies(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, which are not all equal as in a new layer."""
    if one.ndim == other.ndim == 2 and one.shape != other.shape:
        other = other.T
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device) or one.is_meta:
        return False
    return torch.equal(one, other) and bool((one != one.flatten()[:1]).any())


def _number_entries(module: Any) -> Any:
    """A copy of a module, with the numbers of its entries in the place of each parameter."""
    twin = copy.copy(module)
    twin.__dict__["_parameters"] = {
        key: None if parameter is None else torch.arange(parameter.numel()).view(parameter.shape)
        for key, parameter in module._parameters.items()
    }
    twin.__dict__["_modules"] = {
        key: None if child is None else _number_entries(child) for key, child in module._modules.items()
    }
    return twin
