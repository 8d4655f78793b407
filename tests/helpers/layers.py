"""Which tests a layer has: those of files that import nothing above it, neither themselves nor through others."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ABOVE_NAS = frozenset({"asng.cli", "asng.experiments", "asng.runs", "matplotlib", "onnx", "PIL", "rich", "sklearn"})
ABOVE = {"core": ABOVE_NAS | {"torch"}, "nas": ABOVE_NAS}


def is_above(layer: str, path: Path) -> bool:
    """Whether a file needs more than a layer and those below it.

    >>> is_above("core", ROOT / "asng" / "space.py"), is_above("core", ROOT / "asng" / "nas" / "search.py")
    (False, True)
    """
    return not ABOVE[layer].isdisjoint(modules_loaded_by(path, set()))


def modules_loaded_by(path: Path, seen: set[Path]) -> Iterator[str]:
    """The names of all modules that a file loads as it is imported, itself or through files of this project."""
    seen.add(path)
    for name in imports_of(path):
        yield name
        for found in files_of(name):
            if found not in seen:
                yield from modules_loaded_by(found, seen)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The modules that a file imports outside of functions, with the packages around them."""
    names: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif not isinstance(node, ast.FunctionDef):
            nodes += ast.iter_child_nodes(node)
    return frozenset(name.rsplit(".", n)[0] for name in names for n in range(name.count(".") + 1))


def files_of(name: str) -> list[Path]:
    """The file of a module of this project; benchmarks are imported by their names alone.

    >>> [str(file.relative_to(ROOT)) for file in files_of("cifar10_searches")]
    ['benchmarks/cifar10_searches.py']
    """
    places = [top.joinpath(*name.split(".")) for top in (ROOT, ROOT / "benchmarks")]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return [file for file in files if file.is_file()]
