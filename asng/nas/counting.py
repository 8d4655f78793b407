"""The parameters of the extracted network, counted in the model itself.

Every architecture is a walk of its own through the modules that stay under it. Nothing is copied but
what a module's own `build_static()` makes, and nothing is kept for the next one, so a model may change in
between.
"""

from typing import Any

import torch
from torch import nn

from asng.nas.choices import OneOf, Pick, Repeat, Value, Width
from asng.nas.decision import Searchable, Sized
from asng.nas.extraction import StaticBuild
from asng.nas.selection import Decisions, Values
from asng.nas.untouched import preserve_rng

KINDS = frozenset({OneOf, Pick, Repeat, Value, Width})  # of which only that stays which runs inside


def count(decisions: Decisions, values: Values) -> int:
    """The number of parameters under values that are known to fit; what is shared counts once."""
    build = StaticBuild(decisions)
    with decisions.kept(), torch.no_grad():
        decisions.choose(values)
        with build.ties.noted(decisions.sized):
            modules = _staying(decisions, build)
        build.ties.restore((type(module).__name__, module) for module in modules)
    held = {id(parameter): parameter for module in modules for parameter in module._parameters.values()}
    return sum(parameter.numel() for parameter in held.values() if parameter is not None)


def _staying(decisions: Decisions, build: StaticBuild) -> list[nn.Module]:
    """All modules of the extracted network that may hold parameters."""
    walk = _Walk(decisions, build)
    walk.through([decisions.model])
    if walk.own:
        with preserve_rng(decisions):
            for module in walk.own:  # which grows by those inside
                walk.replace(module)
    return walk.staying


class _Walk:
    """From the outside in, as `StaticBuild` goes; modules with a `build_static()` of their own are set aside."""

    def __init__(self, decisions: Decisions, build: StaticBuild) -> None:
        self.staying: list[nn.Module] = []
        self.own: list[nn.Module] = []
        self._decisions, self._build = decisions, build
        self._seen: set[nn.Module] = set()

    def through(self, waiting: list[nn.Module | None]) -> None:
        """What stays of modules, and of all inside, which the list is made to hold, too."""
        seen, staying = self._seen, self.staying
        known, opened = self._decisions.paths, self._decisions.open
        for module in waiting:
            if module is None or module in seen:
                continue
            seen.add(module)
            static = module not in opened and (module in known or not self._build.is_open(module))
            if not static and type(module) in KINDS:
                waiting.extend(module.active_modules())  # type: ignore[operator]
            elif static or not isinstance(module, Searchable):
                if module._parameters:
                    staying.append(module)
                if module._modules:
                    waiting.extend(module._modules.values())
            elif isinstance(module, Sized) and type(module).build_static is Sized.build_static:
                staying.append(_in_use(module))
            else:
                self.own.append(module)

    def replace(self, module: nn.Module) -> None:
        """What stays of a module that was set aside."""
        replaced = self._build.replaced(module)
        if replaced is not module:
            self.through([replaced])
        else:
            self.staying.append(module)
            self.through(list(module._modules.values()))


def _in_use(layer: Sized) -> nn.Module:
    """In the place of an elastic layer, a module that holds the parts of its weights that are in use."""
    place = nn.Module()
    parts: Any = layer.parts(copied=False)
    place._parameters = {name: part for name, part in parts.items() if name not in layer._buffers}
    return place
