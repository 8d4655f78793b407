"""Public objects are documented in Google's style, and their signatures name public types alone.

The rules hold for what `asng`, `asng.nas` and `asng.fused` export, for all that `asng.plot`, `asng.report` and, where
their libraries are installed, the modules of `asng.integrations` define, and for the public methods of these classes. A
method without a docstring has that of the method it overrides. Methods of torch's protocol, such as forward, need no
sections: the class says what it is called with.
"""

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import asng
from asng import fused, nas, plot, report


def integrations() -> Iterator[ModuleType]:
    for name in ("optuna", "tensorboard"):
        if find_spec(name) is not None:
            yield import_module(f"asng.integrations.{name}")


EXPORTED = {name: getattr(module, name) for module in (asng, nas, fused) for name in module.__all__} | {
    name: thing
    for module in (plot, report, *integrations())
    for name, thing in vars(module).items()
    if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
}
CLASSES = {name: thing for name, thing in EXPORTED.items() if inspect.isclass(thing)}
ALIASES = {
    "Judge",
    "LossFn",
    "Measure",
    "Seed",
    "SizeLike",
    "Values",
}  # of types: they have no docstrings, a string below them describes them
ERRORS = {"ValueError", "TypeError", "RuntimeError"}


class Member(NamedTuple):
    """A method or property, the docstring that a user sees, and whether it is of torch's protocol of modules."""

    value: Any
    text: str
    of_torch: bool


class Documented(NamedTuple):
    """A function, and the docstring that a user sees."""

    function: Callable[..., Any]
    text: str


@cache
def members() -> dict[str, Member]:
    """The public methods and properties of public classes that the package defines, each once."""
    found = {}
    for kind in CLASSES.values():
        for base in kind.__mro__:
            if base.__module__.startswith("asng"):
                for name, value in vars(base).items():
                    kinds = (property, cached_property, classmethod, staticmethod)
                    if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, kinds)):
                        of_torch = issubclass(base, nn.Module) and hasattr(nn.Module, name)
                        text = inspect.getdoc(getattr(kind, name)) or ""
                        found[f"{base.__qualname__}.{name}"] = Member(value, text, of_torch)
    return found


def functions() -> dict[str, Documented]:
    """The public functions and methods; `parameters` is called as one."""
    found = {
        name: Documented(thing, inspect.getdoc(thing) or "")
        for name, thing in EXPORTED.items()
        if inspect.isfunction(thing)
    }
    found["parameters"] = Documented(type(nas.parameters).__call__, inspect.getdoc(nas.parameters) or "")
    return found | {
        path: Documented(value, text)
        for path, (value, text, of_torch) in members().items()
        if inspect.isfunction(value) and not of_torch
    }


def constructors() -> dict[str, Documented]:
    """The constructors of public classes, which the docstrings of the classes describe; not torch's of any modules."""
    made = {name: kind.__new__ if hasattr(kind, "_fields") else kind.__init__ for name, kind in CLASSES.items()}
    return {
        name: Documented(function, inspect.getdoc(CLASSES[name]) or "")
        for name, function in made.items()
        if inspect.isfunction(function) and function not in (nn.Module.__init__, nn.Sequential.__init__)
    }


def named_in(sections: str, text: str) -> set[str]:
    """The names that sections of a docstring describe; several names may share a description.

    >>> sorted(named_in("Args", "Add.\\n\\nArgs:\\n    a, b: Numbers.\\n\\nReturns:\\n    c: Their sum.\\n"))
    ['a', 'b']
    """
    bodies = re.findall(rf"^(?:{sections}):\n((?: {{4}}.*\n?|\n)+)", text, flags=re.MULTILINE)
    entries = [entry for body in bodies for entry in re.findall(r"^ {4}(\w[\w, ]*):", body, flags=re.MULTILINE)]
    return {name.strip() for entry in entries for name in entry.split(",")}


def has_section(sections: str, text: str) -> bool:
    return re.search(rf"^(?:{sections}):\n {{4}}\S", text, flags=re.MULTILINE) is not None


def raises_itself(function: Any) -> bool:
    """Whether a raise statement for a wrong argument or state stands in the function's own body."""
    if function.__code__.co_filename.startswith("<"):  # generated, as constructors of records are
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id in ERRORS for call in calls)


def hints_of(thing: Any) -> dict[str, Any]:
    """The annotations of a function or a class; those of figures are not imported at run time."""
    return typing.get_type_hints(thing, localns={"Axes": Axes, "Figure": Figure})


def returns_something(function: Callable[..., Any]) -> bool:
    """Whether there is a result; context managers that yield nothing have none."""
    return hints_of(function).get("return") not in (None, type(None), Iterator[None])


def test_public_objects_and_their_members_have_docstrings():
    objects = [name for name, thing in EXPORTED.items() if name not in ALIASES and not inspect.getdoc(thing)]
    inherited = [name for name, kind in CLASSES.items() if not vars(kind).get("__doc__")]
    assert [objects, inherited, [path for path, (_, text, _) in members().items() if not text]] == [[], [], []]


def test_all_arguments_of_functions_and_methods_are_explained():
    missing = {
        path: set(inspect.signature(function).parameters) - {"self"} - named_in("Args", text)
        for path, (function, text) in functions().items()
    }
    assert {path: names for path, names in missing.items() if names} == {}


def test_all_arguments_of_constructors_are_explained():
    """Dataclasses and named tuples that are records say `Attributes`, since they are read more than made."""
    records = {name for name, kind in CLASSES.items() if is_dataclass(kind) or hasattr(kind, "_fields")}
    missing = {
        name: set(inspect.signature(CLASSES[name]).parameters)
        - named_in("Args|Attributes" if name in records else "Args", text)
        for name, (_, text) in constructors().items()
    }
    assert {name: names for name, names in missing.items() if names} == {}


def test_results_are_explained():
    found = functions().items()
    assert [path for path, (f, text) in found if returns_something(f) and not has_section("Returns|Yields", text)] == []


def test_errors_are_explained():
    found = {**functions(), **constructors()}
    for name, kind in CLASSES.items():
        if "__post_init__" in vars(kind):
            found[f"{name}.__post_init__"] = Documented(vars(kind)["__post_init__"], inspect.getdoc(kind) or "")
    assert len(found) > 100
    assert [path for path, (f, text) in found.items() if raises_itself(f) and not has_section("Raises", text)] == []


def test_public_classes_and_functions_have_examples():
    assert [
        n for n, thing in EXPORTED.items() if n not in ALIASES and ">>> " not in (inspect.getdoc(thing) or "")
    ] == []


def types_in(annotation: Any) -> Iterator[Any]:
    """An annotation and all that it consists of."""
    yield annotation
    for argument in typing.get_args(annotation):
        for part in argument if isinstance(argument, list) else [argument]:
            yield from types_in(part)


def test_types_that_public_signatures_name_are_public():
    signatures: dict[str, Any] = {path: f for path, (f, _) in {**functions(), **constructors()}.items()}
    for path, (value, *_) in members().items():
        signatures[path] = value.fget if isinstance(value, property) else getattr(value, "func", value)
    named = {path: list(hints_of(f).values()) for path, f in signatures.items()}
    for name, kind in CLASSES.items():
        named[f"{name}'s attributes"] = [h for n, h in hints_of(kind).items() if not n.startswith("_")]
    own = {
        (path, part.__qualname__)
        for path, hints in named.items()
        for hint in hints
        for part in types_in(hint)
        if inspect.isclass(part) and part.__module__.startswith("asng")
    }
    assert {name for _, name in own} > {"Optimizer", "Size"}
    assert {(path, name) for path, name in own if name not in EXPORTED} == set()
