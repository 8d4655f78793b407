"""Weights that several layers share: found in a model, and shared again by what is cut out of them."""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Use:
    """Where a parameter stands, and which entries of the shared one it is: their numbers, or None for all."""

    module: nn.Module
    name: str
    parameter: nn.Parameter
    path: str
    entries: Tensor | None

    def equals(self, other: "_Use") -> bool:
        if self.entries is None or other.entries is None:
            return self.parameter.numel() == other.parameter.numel()
        return torch.equal(self.entries, other.entries)


class Ties:
    """The parameters that layers share with others, given the modules of a model with their paths.

    `layers` are those that can cut parts out of a parameter. While the model is extracted, they note
    what they cut out of shared ones.
    """

    def __init__(self, paths: Mapping[nn.Module, str], layers: Collection[nn.Module]) -> None:
        self._paths, self._layers = paths, layers
        uses = {id(parameter): 0 for layer in layers for parameter in layer._parameters.values()}
        uses.pop(id(None), None)
        for module in paths if uses else ():
            for parameter in module._parameters.values():
                if id(parameter) in uses:
                    uses[id(parameter)] += 1
        self._shared = {key for key, number in uses.items() if number > 1}
        self._cuts: dict[int, tuple[Tensor, nn.Parameter, str, Tensor]] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Meanwhile the layers call `note` when they cut a part out of a parameter."""
        layers = self._layers if self._shared else ()
        for layer in layers:
            layer.__dict__["ties"] = self
        try:
            yield
        finally:
            for layer in layers:
                layer.__dict__.pop("ties", None)

    def note(self, layer: Any, name: str, part: Tensor) -> None:
        """A layer has cut this part out of its parameter of this name."""
        whole = layer._parameters.get(name)
        if id(whole) in self._shared:
            twin = copy.copy(layer)  # one whose weights are the numbers of their entries
            twin.__dict__["_parameters"] = {
                key: None if parameter is None else torch.arange(parameter.numel()).view(parameter.shape)
                for key, parameter in layer._parameters.items()
            }
            self._cuts[id(part)] = (part, whole, f"{self._paths[layer]}.{name}", twin.needed()[name])

    def restore(self, network: Iterable[tuple[str, nn.Module]]) -> None:
        """Let those in a network's modules that were cut out of one parameter be one again.

        Raises ValueError where they cannot.
        """
        if not self._shared:
            return
        uses: dict[int, list[_Use]] = {}
        for path, module in network:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    where = f"{self._paths.get(module, path)}.{name}"
                    _, whole, where, entries = self._cuts.get(id(parameter), (None, parameter, where, None))
                    uses.setdefault(id(whole), []).append(_Use(module, name, parameter, where, entries))
        for same in uses.values():
            first = min(same, key=lambda use: use.entries is not None)  # the parameter itself, if it stays
            for use in same:
                if not use.equals(first):
                    raise ValueError(
                        f"{first.path} and {use.path} share one parameter, but this architecture needs "
                        f"{tuple(first.parameter.shape)} and {tuple(use.parameter.shape)} of it; give them sizes that "
                        "are always the same, or weights of their own"
                    )
                if use.parameter is not first.parameter:
                    use.module._parameters[use.name] = first.parameter  # only what was cut out stands elsewhere
