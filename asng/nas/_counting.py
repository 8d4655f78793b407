"""The parameters of the extracted network, counted in the model itself.

Every architecture is a walk of its own through the modules that stay under it. Nothing is copied but
what a module's own `build_static()` makes, and nothing is kept for the next one, so a model may change in
between.
"""

from typing import Any

import torch
from torch import nn

from asng.nas._decision import Searchable
from asng.nas._extract import StaticBuild
from asng.nas._preserve import preserve_rng
from asng.nas.decisions import OneOf, Pick, Repeat, Value, Width
from asng.nas.layers import ElasticLayer
from asng.nas.supernet import Supernet, Values

BUILT_IN_DECISIONS = frozenset({OneOf, Pick, Repeat, Value, Width})  # of which only that stays which runs inside


def count_parameters(supernet: Supernet, values: Values) -> int:
    """The number of parameters under values that are not checked; shared ones count once."""
    build = StaticBuild(supernet)
    with supernet.preserve_selection(), torch.no_grad():
        supernet.choose(values)
        with build.ties.record_slices(supernet.elastic_layers):
            modules = _static_modules(supernet, build)
        build.ties.retie((type(module).__name__, module) for module in modules)
    held = {id(parameter): parameter for module in modules for parameter in module._parameters.values()}
    return sum(parameter.numel() for parameter in held.values() if parameter is not None)


def _static_modules(supernet: Supernet, build: StaticBuild) -> list[nn.Module]:
    """The modules of the extracted network that may hold parameters."""
    walk = _Walk(supernet, build)
    walk.visit([supernet.model])
    if walk.user_built:
        with preserve_rng(supernet):
            for module in walk.user_built:  # which grows by those inside
                walk.replace(module)
    return walk.modules


class _Walk:
    """Visits modules from the outside in, as `StaticBuild` does; user modules with a `build_static()` are set aside."""

    def __init__(self, supernet: Supernet, build: StaticBuild) -> None:
        self.modules: list[nn.Module] = []
        self.user_built: list[nn.Module] = []
        self._supernet, self._build = supernet, build
        self._seen: set[nn.Module] = set()

    def visit(self, waiting: list[nn.Module | None]) -> None:
        """Visit modules and all inside; `waiting` grows by them."""
        seen, modules = self._seen, self.modules
        known, searchable = self._supernet.paths, self._supernet.searchable
        for module in waiting:
            if module is None or module in seen:
                continue
            seen.add(module)
            static = module not in searchable and (module in known or not self._build.holds_decisions(module))
            if not static and type(module) in BUILT_IN_DECISIONS:
                waiting.extend(module.active_modules())  # type: ignore[operator]
            elif static or not isinstance(module, Searchable):
                if module._parameters:
                    modules.append(module)
                if module._modules:
                    waiting.extend(module._modules.values())
            elif isinstance(module, ElasticLayer) and type(module).build_static is ElasticLayer.build_static:
                modules.append(_active_part(module))
            else:
                self.user_built.append(module)

    def replace(self, module: nn.Module) -> None:
        """Visit the replacement of a module that was set aside."""
        replacement = self._build.replacement(module)
        if replacement is not module:
            self.visit([replacement])
        else:
            self.modules.append(module)
            self.visit(list(module._modules.values()))


def _active_part(layer: ElasticLayer) -> nn.Module:
    """A module that holds the slices of an elastic layer's weights in use."""
    module = nn.Module()
    tensors: Any = layer.static_tensors(copy=False)
    module._parameters = {name: tensor for name, tensor in tensors.items() if name not in layer._buffers}
    return module
