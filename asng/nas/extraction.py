"""From a model with decisions to a plain one: from the outside in, with copies of the weights it needs."""

import copy

from torch import nn

from asng.nas.decision import Decision, Sized
from asng.nas.selection import Decisions, Values


def extract(model: nn.Module, values: Values) -> nn.Module:
    """A plain module that equals the selected model, with copies of the weights it needs and no decision.

    The model may be another one with the same decisions, such as a deeper one to train from scratch.
    A module with a `freeze()` method is replaced by what that returns, from the outside in, while its
    own decisions are still there. The model stays as it is.

    >>> from asng.nas import OneOf
    >>> extract(nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()])), {"act": 1})
    Sequential(
      (0): Tanh()
    )
    """
    with Decisions(model).selected(values):
        return copy.deepcopy(frozen(model))


def frozen(model: nn.Module) -> nn.Module:
    """A model without decisions under its selected values, made of its own parameters; it stays as it is."""
    return _frozen(model, {})


def _frozen(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module not in done:
        result = module
        if any(isinstance(inner, (Decision, Sized)) for inner in module.modules()):
            replaced = _replaced(module)
            if replaced is not module:
                result = _frozen(replaced, done)
            else:
                result = copy.copy(module)
                children = module._modules.items()
                inside = {name: None if child is None else _frozen(child, done) for name, child in children}
                result.__dict__["_modules"] = inside  # the original keeps its own
        done[module] = result
    return done[module]


def _replaced(module: nn.Module) -> nn.Module:
    """What a module's own `freeze()` puts in its place; itself where it has none."""
    freeze = getattr(module, "freeze", None)
    if freeze is None:
        return module
    replaced = freeze()
    if not isinstance(replaced, nn.Module):
        raise TypeError(f"freeze() of {type(module).__name__} must return a module, got {replaced!r}")
    original = set(module.modules())
    for inner in replaced.modules():
        if inner not in original:
            inner.training = module.training
    return replaced
