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

BUILT_IN_DECISIONS = frozenset({OneOf, Pick, Repeat, Value, Width})  # of which only that stays which runs inside


def count_parameters(decisions: Decisions, values: Values) -> int:
    """The number of parameters under values that are known to fit; what is shared counts once."""
    build = StaticBuild(decisions)
    with decisions.kept(), torch.no_grad():
        decisions.choose(values)
        with build.ties.noted(decisions.sized):
            modules = _static_modules(decisions, build)
        build.ties.restore((type(module).__name__, module) for module in modules)
    held = {id(parameter): parameter for module in modules for parameter in module._parameters.values()}
    return sum(parameter.numel() for parameter in held.values() if parameter is not None)


def _static_modules(decisions: Decisions, build: StaticBuild) -> list[nn.Module]:
    """All modules of the extracted network that may hold parameters."""
    walk = _Walk(decisions, build)
    walk.visit([decisions.model])
    if walk.user_built:
        with preserve_rng(decisions):
            for module in walk.user_built:  # which grows by those inside
                walk.replace(module)
    return walk.modules


class _Walk:
    """From the outside in, as `StaticBuild` goes; modules with a `build_static()` of their own are set aside."""

    def __init__(self, decisions: Decisions, build: StaticBuild) -> None:
        self.modules: list[nn.Module] = []
        self.user_built: list[nn.Module] = []
        self._decisions, self._build = decisions, build
        self._seen: set[nn.Module] = set()

    def visit(self, waiting: list[nn.Module | None]) -> None:
        """What stays of modules, and of all inside, which the list is made to hold, too."""
        seen, modules = self._seen, self.modules
        known, searchable = self._decisions.paths, self._decisions.open
        for module in waiting:
            if module is None or module in seen:
                continue
            seen.add(module)
            static = module not in searchable and (module in known or not self._build.is_open(module))
            if not static and type(module) in BUILT_IN_DECISIONS:
                waiting.extend(module.active_modules())  # type: ignore[operator]
            elif static or not isinstance(module, Searchable):
                if module._parameters:
                    modules.append(module)
                if module._modules:
                    waiting.extend(module._modules.values())
            elif isinstance(module, Sized) and type(module).build_static is Sized.build_static:
                modules.append(_active_part(module))
            else:
                self.user_built.append(module)

    def replace(self, module: nn.Module) -> None:
        """What stays of a module that was set aside."""
        replaced = self._build.replaced(module)
        if replaced is not module:
            self.visit([replaced])
        else:
            self.modules.append(module)
            self.visit(list(module._modules.values()))


def _active_part(layer: Sized) -> nn.Module:
    """In the place of an elastic layer, a module that holds the parts of its weights that are in use."""
    module = nn.Module()
    tensors: Any = layer.parts(copied=False)
    module._parameters = {name: tensor for name, tensor in tensors.items() if name not in layer._buffers}
    return module
