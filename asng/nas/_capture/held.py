"""What losses, judges and modules hold, as far as attributes, closures, globals and containers show it."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

MAX_DEPTH = 6  # of functions that call others, and of objects that hold others
MAX_ITEMS = 1000  # of lists and dicts that are looked into; longer ones hold data
LIBRARIES = ("torch", "numpy", "asng", "builtins")


def find_held(users: Iterable[Any]) -> list[Any]:
    """What functions, modules, and lists or dicts of them hold, and functions that these call by name."""
    found: dict[int, Any] = {}
    current = list(users)
    for _ in range(MAX_DEPTH):
        new = {id(thing): thing for thing in current if id(thing) not in found}
        found |= new
        current = [held for thing in new.values() for held in _held_by(thing)]
    return list(found.values())


def _held_by(thing: Any) -> Iterator[Any]:
    match thing:
        case FunctionType():
            for cell in thing.__closure__ or ():
                with suppress(ValueError):  # it is empty
                    yield cell.cell_contents
            yield from (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
            yield from () if _is_of_library(thing) else _globals_of(thing)
        case MethodType():
            yield from (thing.__func__, thing.__self__)
        case staticmethod() | classmethod():
            yield thing.__func__
        case partial():
            yield from (thing.func, *thing.args, *thing.keywords.values())
        case dict() if len(thing) <= MAX_ITEMS:
            yield from thing.values()
        case list() | tuple() | set() if len(thing) <= MAX_ITEMS:
            yield from thing
        case ModuleType() | type():
            return
        case _ if isinstance(thing, nn.Module) or (hasattr(thing, "__dict__") and not _is_of_library(type(thing))):
            yield from vars(thing).values()
            for kind in type(thing).__mro__:
                yield from () if _is_of_library(kind) else vars(kind).values()


def _globals_of(function: FunctionType) -> Iterator[Any]:
    """What a function, or one that is written inside it, names: globals, and attributes of modules among them."""
    names = set(_names_in(function.__code__))
    for name in names & function.__globals__.keys():
        thing = function.__globals__[name]
        yield thing
        if isinstance(thing, ModuleType) and thing.__name__.partition(".")[0] not in LIBRARIES:
            yield from (vars(thing)[attribute] for attribute in names & vars(thing).keys())


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_of_library(thing: Any) -> bool:
    return str(thing.__module__).partition(".")[0] in LIBRARIES
