"""Modules in plain lists, dicts and other objects, where torch does not look for them."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

from torch import nn

DEEP = 3  # how many containers inside each other are looked into
LONG = 1000  # and how many items of each: data may be kept in lists, too
TORCHS = frozenset(nn.Module().__dict__)  # what every module has
PLAIN = frozenset({bool, int, float, str, bytes, type(None), type})


def hidden_modules(module: nn.Module) -> Iterator[tuple[str, Any, nn.Module]]:
    """The modules that the plain attributes of a module hold: attribute, its value, module inside."""
    attributes = module.__dict__
    if len(attributes) == len(TORCHS) or (not module._modules and type(module).__module__.startswith("torch.nn.")):
        return  # nothing of its own, or one of torch's layers
    for name, value in attributes.items():
        if name not in TORCHS and type(value) not in PLAIN:
            for inner in _modules_in(value, DEEP):
                yield name, value, inner


def _modules_in(value: Any, deep: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif deep:
        items: Iterable[Any] = ()
        if isinstance(value, (list, tuple, set, frozenset)):
            items = value
        elif isinstance(value, Mapping):
            items = value.values()
        elif not isinstance(value, ModuleType):
            attributes = getattr(value, "__dict__", None)
            items = attributes.values() if isinstance(attributes, dict) else ()
        for item in islice(items, LONG):
            if type(item) not in PLAIN:
                yield from _modules_in(item, deep - 1)


def described(path: str, name: str, value: Any) -> str:
    """An attribute, for messages: where it is, and what."""
    return f"{path}{'.' if path else ''}{name}, a plain {type(value).__name__},"
