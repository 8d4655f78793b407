"""Unregistered modules: in lists, dicts and other objects, where torch does not look for them."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

from torch import nn

MAX_DEPTH = 3  # how many containers inside each other are looked into
MAX_ITEMS = 1000  # and how many items of each: data may be kept in lists, too
MODULE_ATTRIBUTES = frozenset(nn.Module().__dict__)  # what every module has
SCALAR_TYPES = frozenset({bool, int, float, str, bytes, type(None), type})


def unregistered_modules(module: nn.Module) -> Iterator[tuple[str, Any, nn.Module]]:
    """The unregistered modules in the attributes of a module: attribute, its value, module inside."""
    attributes = module.__dict__
    if len(attributes) == len(MODULE_ATTRIBUTES) or (
        not module._modules and type(module).__module__.startswith("torch.nn.")
    ):
        return  # nothing of its own, or one of torch's layers
    for name, value in attributes.items():
        if name not in MODULE_ATTRIBUTES and type(value) not in SCALAR_TYPES:
            for inner in _modules_in(value, MAX_DEPTH):
                yield name, value, inner


def _modules_in(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif depth:
        items: Iterable[Any] = ()
        if isinstance(value, (list, tuple, set, frozenset)):
            items = value
        elif isinstance(value, Mapping):
            items = value.values()
        elif not isinstance(value, ModuleType):
            attributes = getattr(value, "__dict__", None)
            items = attributes.values() if isinstance(attributes, dict) else ()
        for item in islice(items, MAX_ITEMS):
            if type(item) not in SCALAR_TYPES:
                yield from _modules_in(item, depth - 1)


def describe_attribute(path: str, name: str, value: Any) -> str:
    """Describe an attribute for messages: its path and type."""
    return f"{path}{'.' if path else ''}{name}, a plain {type(value).__name__},"
