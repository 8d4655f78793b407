"""The cases of switches: what each decides and gives, and which of them an architecture selects."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from asng.nas.supernet import Supernet
from asng.space import Variable

Assignment = tuple[tuple[str, int], ...]  # names of decisions and the positions of their values, in reading order
NumbersFn = Callable[..., list[int]]  # of values, and further arguments
Tree = int | tuple[str, "dict[int, Tree]"]  # the number of a case, or a decision and what follows from its positions


class Refused(Exception):
    """A model cannot run with its architecture open; says why."""


class Unswitchable(Refused):
    """A module cannot be a switch; a module around it may be, such as one that gives the same shapes in all cases."""

    module: nn.Module | None = None


class Layout(NamedTuple):
    """What a tensor is like."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Mode(Enum):
    """How a choice is run."""

    SWITCHED = "switched"  # a switch of its own
    CALLED = "called"  # a part of the case around it
    DEFAULT = "default"  # the first of its values, where only shapes are asked


@dataclass
class Case:
    """One body of a switch, or a whole pass."""

    assignment: Assignment = ()
    outputs: list[Layout] = field(default_factory=list)
    spec: Any = None
    parameters: list[Tensor] = field(default_factory=list)  # that get a gradient
    sites: "list[Site]" = field(default_factory=list)


@dataclass
class Site:
    """One switch of a pass."""

    label: str
    mode: Mode  # of the choices inside
    cases: list[Case]  # none: no switch, but maybe some inside
    outputs: list[Layout]
    column: int | None  # of the integers that switches read; None where there is one case


class Columns:
    """The integers that a pass reads: the case of each switch, and what functions make of the values."""

    def __init__(self, supernet: Supernet) -> None:
        self._space = supernet.space
        self._starts: dict[Any, int] = {}  # by sets of cases, and by functions
        self._trees: list[Tree | NumbersFn] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, cases: Sequence[Assignment]) -> int:
        """The column of a set of cases."""
        key = tuple(cases)
        if key not in self._starts:
            self._append(key, _tree(list(enumerate(key))), 1)
        return self._starts[key]

    def of_decision(self, name: str) -> int:
        """The column of a decision alone: the position of its value."""
        return self.add([((name, position),) for position in range(len(self._space[name].values() or ()))])

    def of_function(self, function: NumbersFn, args: tuple[Any, ...], length: int) -> int:
        """The first column of the integers that a function makes of the values and further arguments."""
        key = function, args
        if key not in self._starts:
            self._append(key, lambda values: function(values, *args), length)
        return self._starts[key]

    def _append(self, key: Any, source: Tree | NumbersFn, length: int) -> None:
        self._starts[key] = self._length
        self._trees.append(source)
        self._length += length

    def encode(self, values: Mapping[str, Any]) -> list[int]:
        """The row of an architecture."""
        positions = {name: _position(variable, values[name]) for name, variable in self._space.items()}
        row: list[int] = []
        for tree in self._trees:
            row += tree(values) if callable(tree) else [_find_case(tree, positions)]
        return row


def _position(variable: Variable, value: Any) -> int:
    return -1 if variable.values() is None else variable.index(value)


def _tree(cases: Sequence[tuple[int, Assignment]], depth: int = 0) -> Tree:
    """Numbered cases as the questions that tell them apart."""
    number, first = cases[0]
    if depth == len(first):
        return number
    branches: dict[int, list[tuple[int, Assignment]]] = {}
    for case in cases:
        branches.setdefault(case[1][depth][1], []).append(case)
    return first[depth][0], {position: _tree(branch, depth + 1) for position, branch in branches.items()}


def _find_case(tree: Tree, positions: Mapping[str, int]) -> int:
    while not isinstance(tree, int):
        name, branches = tree
        tree = branches[positions[name]]
    return tree


def describe(assignment: Assignment, call: Callable[[], Any]) -> Case:
    """Run a case, and say what comes out."""
    flat, spec = pytree.tree_flatten(call())
    for leaf in flat:
        if not isinstance(leaf, Tensor):
            raise Unswitchable(f"a choice gives {type(leaf).__name__}, and only tensors can be switched")
    return Case(assignment, [Layout(tuple(t.shape), t.stride(), t.dtype) for t in flat], spec)


def common_layouts(label: str, cases: Sequence[Case]) -> list[Layout]:
    """The layouts that hold the results of all cases."""
    first = cases[0]
    for case in cases:
        if case.spec != first.spec or [o.shape for o in case.outputs] != [o.shape for o in first.outputs]:
            shapes = sorted({str([o.shape for o in case.outputs]) for case in cases})
            raise Unswitchable(f"the results of {label} differ in shape: {', '.join(shapes[:3])}")
    common = []
    for position, layout in enumerate(first.outputs):
        dtype = layout.dtype
        for case in cases:
            dtype = torch.promote_types(dtype, case.outputs[position].dtype)
        dense = [c.outputs[position].stride for c in cases if _is_dense(c.outputs[position])]
        stride = dense[0] if dense else torch.empty(layout.shape, device="meta").stride()
        common.append(Layout(layout.shape, stride, dtype))
    return common


def _is_dense(layout: Layout) -> bool:
    """Whether a tensor fills its memory without gaps, so that a buffer may have its strides."""
    expected = 1
    for stride, size in sorted(zip(layout.stride, layout.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return expected == math.prod(layout.shape)
