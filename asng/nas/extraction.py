"""From a model with decisions to a plain one: from the outside in, with copies of the weights it needs."""

import copy
from typing import Any

from torch import nn

from asng.nas.decision import Decision
from asng.nas.hidden import described, hidden_modules
from asng.nas.selection import Decisions, Values, is_open, paths_of
from asng.nas.ties import Ties

TORCHS_GETATTR: Any = nn.Module.__getattr__  # wrappers, such as those of torch.compile, have one of their own


def extract(model: nn.Module, values: Values) -> nn.Module:
    """A plain module that equals the selected model, with copies of the weights it needs and no decision.

    The model may be another one with the same decisions, such as a deeper one to train from scratch.
    A module with a `freeze()` method is replaced by what that returns, from the outside in, while its
    own decisions are still there; whatever decisions are in what it returns are frozen after it. The
    model stays as it is. Weights that layers share are shared in the result too.

    >>> from asng.nas import OneOf
    >>> extract(nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()])), {"act": 1})
    Sequential(
      (0): Tanh()
    )
    """
    decisions = Decisions(model)
    with decisions.selected(values):
        freezing = Freezing(decisions)
        return copy.deepcopy(freezing.network(), freezing.memo())


class Freezing:
    """One passage through a model under its selected values, in which every module is frozen once."""

    def __init__(self, decisions: Decisions) -> None:
        self._model, self._original = decisions.model, decisions.paths
        self._became: dict[nn.Module, nn.Module] = {}
        self._decisions = decisions
        self._seen: dict[nn.Module, bool] = {}  # of those that freeze() made, which are open

    def network(self) -> nn.Module:
        """The model without decisions, made of its own modules where they have none; it stays as it is."""
        ties = Ties(self._original, self._decisions.sized)
        with ties.noted():
            network = self._frozen(self._model)
        ties.restore(network.named_modules())
        return network

    def memo(self) -> "_Memo":
        """For deepcopy: whoever keeps a list of modules of the model, has what became of them, or None."""
        staying = paths_of(self._frozen(self._model))
        instead: dict[int, nn.Module | None] = {}
        for module in self._original:
            if module not in staying:
                after = self._became.get(module)
                if after is None and isinstance(module, Decision) and not module._modules:
                    after = module.freeze()  # a value, for those who read it elsewhere
                instead[id(module)] = after
        return _Memo(instead)

    def _frozen(self, module: nn.Module) -> nn.Module:
        if module not in self._became:
            result = module
            if self.is_open(module):
                replaced = self.replaced(module)
                if replaced is not module:
                    result = self._frozen(replaced)
                else:
                    result = copy.copy(module)
                    children = module._modules.items()
                    inside = {name: None if child is None else self._frozen(child) for name, child in children}
                    result.__dict__["_modules"] = inside  # the original keeps its own
            self._became[module] = result
        return self._became[module]

    def is_open(self, module: nn.Module) -> bool:
        """Whether a module, of the model or made by `freeze()`, is or holds a decision or an elastic layer."""
        return module in self._decisions.open if module in self._original else is_open(module, self._seen)

    def replaced(self, module: nn.Module) -> nn.Module:
        """What a module's own `freeze()` puts in its place; itself where it has none."""
        if not has_freeze(module):
            return module
        replaced = module.freeze()  # type: ignore[operator]
        if not isinstance(replaced, nn.Module):
            raise TypeError(
                f"freeze() of {type(module).__name__} must return a module, which takes its place, got {replaced!r}; "
                "if it is for something else, give it another name"
            )
        waiting = [replaced]
        while waiting:
            inner = waiting.pop()
            if inner not in self._original:  # freeze() made it
                inner.training = module.training
                waiting.extend(child for child in inner._modules.values() if child is not None)
                for name, value, lost in () if isinstance(module, Decision) else hidden_modules(inner):
                    if lost not in paths_of(replaced):
                        raise ValueError(
                            f"freeze() of {type(module).__name__} returned a {type(inner).__name__} whose "
                            f"{described('', name, value)} holds {type(lost).__name__}, where torch does not see it; "
                            "use nn.ModuleList, nn.ModuleDict or an attribute"
                        )
        return replaced


def has_freeze(module: nn.Module) -> bool:
    """Whether a module has a method `freeze`; a child of that name is none, and torch looks slowly for one."""
    kind: Any = type(module)
    may_have = hasattr(kind, "freeze") or "freeze" in module.__dict__ or kind.__getattr__ is not TORCHS_GETATTR
    return may_have and callable(getattr(module, "freeze", None))


class _Memo(dict[int, Any]):
    """What deepcopy asks before it copies anything: some modules stand for others, by their ids."""

    def __init__(self, instead: dict[int, nn.Module | None]) -> None:
        super().__init__()
        self._instead = instead

    def get(self, key: int, default: Any = None) -> Any:
        if key in self._instead:
            return copy.deepcopy(self._instead[key], self)
        return super().get(key, default)
