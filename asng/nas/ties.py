"""Weights that several layers share: found in a model, and shared again by what is cut out of them."""

import copy
from collections.abc import Iterable, Iterator, Mapping
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
    """The parameters that modules of a model share with others, given the modules with their paths.

    While the model is extracted, elastic layers note what they cut out of shared parameters, and what a
    module's own `build_static()` made is searched for copies of them.
    """

    def __init__(self, paths: Mapping[nn.Module, str]) -> None:
        self._paths = paths
        self._uses: dict[int, int] = {}
        for module in paths:
            for parameter in module._parameters.values():
                self._uses[id(parameter)] = self._uses.get(id(parameter), 0) + 1
        self._shared = {key for key, number in self._uses.items() if number > 1 and key != id(None)}
        self._cuts: dict[int, tuple[Tensor, nn.Parameter, str, Tensor]] = {}
        self._copies: dict[int, tuple[nn.Parameter, nn.Parameter, str]] = {}

    @contextmanager
    def noted(self, layers: Iterable[nn.Module]) -> Iterator[None]:
        """Meanwhile these layers call `note` when they cut a part out of a parameter."""
        layers = list(layers) if self._shared else []
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

    def note_copies(self, module: nn.Module, label: str, made: Iterable[nn.Module]) -> None:
        """A module's own `build_static()` made these modules; their new parameters may be copies of shared ones."""
        if not self._shared:
            return
        shared = {id(p): p for p in module.parameters() if id(p) in self._shared}
        for inner in made if shared else ():
            for parameter in inner._parameters.values():
                if parameter is None or id(parameter) in self._uses or id(parameter) in self._cuts:
                    continue
                for whole in shared.values():
                    if _comes_from(parameter, whole):
                        self._copies[id(parameter)] = (parameter, whole, f"what build_static() of {label} returned")

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
                    _, whole, where = self._copies.get(id(parameter), (None, whole, where))
                    uses.setdefault(id(whole), []).append(_Use(module, name, parameter, where, entries))
        for same in uses.values():
            self._check_copies(same)
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

    def _check_copies(self, uses: list[_Use]) -> None:
        """Raise ValueError where one of several uses of a shared parameter is a copy."""
        copied = next((use for use in uses if id(use.parameter) in self._copies), None)
        if copied is not None and len({id(use.parameter) for use in uses}) > 1:
            other = next(use for use in uses if use.parameter is not copied.parameter)
            raise ValueError(
                f"{copied.path} holds a copy of a weight that {other.path} shares, so they would be tied no more; "
                "return the parameter itself, or give them weights of their own"
            )


def _comes_from(part: Tensor, whole: Tensor) -> bool:
    """Whether all numbers of a tensor are numbers of another one, as those of any part of it are."""
    fits = part.dim() == whole.dim() and all(a <= b for a, b in zip(part.shape, whole.shape, strict=True))
    if part.is_meta or whole.is_meta or part.is_complex() or whole.is_complex():
        return fits
    numbers = whole.detach().flatten().double()
    if part.numel() > numbers.numel() or part.device != whole.device:
        return False
    if bool((numbers == numbers[:1]).all()):  # any constant of the same number looks alike
        return fits and bool((part.detach().double() == numbers[:1]).all())
    return bool(torch.isin(part.detach().double(), numbers).all())
