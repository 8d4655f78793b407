"""From an existing model to one with decisions, with its weights."""

import copy
from collections.abc import Callable

from torch import nn

from asng.nas._checks import check_module, unregistered_modules, unwrap
from asng.nas.layers import ElasticLayer

Replace = Callable[[str, nn.Module], nn.Module | None]
"""(path, module) -> what takes its place, or None."""


def convert(model: nn.Module, replace: Replace) -> nn.Module:
    """Copy a model and replace some of its modules, such as layers by elastic ones or a list of blocks by a `Repeat`.

    `replace` is called for every module of the copy, children before their parents; replacements are not visited. It
    may also change a module in place. An elastic layer takes the weights of the torch layer that it replaces. All other
    weights are kept if the replacement contains the module or its children, as `OneOf(path, [module, nn.Identity()])`
    or `Repeat(path, module)` do.

    Args:
        model: Any module; it is not changed. Wrappers (torch.compile, DataParallel, DistributedDataParallel) are
            removed.
        replace: (path, module) -> its replacement, or None to keep it; `path` as in `named_modules()`.

    Returns:
        The converted copy. Parameters that layers share are shared in it too.

    Raises:
        ValueError: `model` is not a module; `replace` is not a function, or does not return a module; an elastic layer
            cannot take the weights, because its largest size differs; or the model refers to a replaced module where
            torch does not see it.

    >>> from asng import nas
    >>> def replace(path, module):
    ...     if isinstance(module, nn.ReLU):
    ...         return nas.OneOf(path, {"relu": module, "gelu": nn.GELU()})
    >>> nas.space_of(nas.convert(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), replace))
    {'1': Categorical(choices=('relu', 'gelu'))}
    """
    check_module(model)
    if not callable(replace):
        raise ValueError(f"replace must be a function (path, module) -> module or None, got {replace!r}")
    replaced: dict[nn.Module, nn.Module] = {}
    converted = _convert(copy.deepcopy(unwrap(model)), "", replace, replaced)
    for path, holder in converted.named_modules():
        for name, value, held in unregistered_modules(holder):
            if replaced.get(held, held) is not held:
                where = f"{path}.{name}" if path else name
                raise ValueError(
                    f"{where}, a plain {type(value).__name__}, holds a {type(held).__name__} that is replaced "
                    "elsewhere, and would still use it; hold it in an nn.ModuleList, or replace the surrounding module"
                )
    return converted


def _convert(module: nn.Module, path: str, replace: Replace, replaced: dict[nn.Module, nn.Module]) -> nn.Module:
    """Replace modules inside of a module and then itself; `replaced` is a memo."""
    if module not in replaced:
        replaced[module] = module
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = _convert(child, f"{path}.{name}" if path else name, replace, replaced)
        before = set(module.modules())
        new = replace(path, module)
        if new is not None and not isinstance(new, nn.Module):
            raise ValueError(f"replace() must return a module for {path or 'the model'!r}, or None, got {new!r}")
        if new is not None and new is not module:
            if isinstance(new, ElasticLayer) and isinstance(module, new.torch_layer):
                new.adopt_weights(module)
            for inner in set(new.modules()) - before:
                inner.training = module.training
            replaced[module] = new
    return replaced[module]
