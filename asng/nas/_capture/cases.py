"""The cases of switches: what each decides and gives, which of them an architecture selects; and batches to run on."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, reduce
from numbers import Number
from traceback import clear_frames
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from asng.nas._size import Size
from asng.nas.supernet import Supernet

Assignment = tuple[tuple[str, int], ...]  # names of decisions and the positions of their values, in reading order
NumbersFn = Callable[..., list[int]]  # of values, and further arguments
Encoder = Callable[[Mapping[str, Any], Mapping[str, int]], list[int]]  # of values, and their positions


class Refused(Exception):
    """A model cannot run with its architecture open; says why."""


class Unswitchable(Refused):
    """A module cannot be a switch; a module around it may be, such as one that gives the same shapes in all cases."""

    module: nn.Module | None = None


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def close_frames(error: BaseException | None) -> None:
    """Drop the variables of the functions that an error, and those it was raised from, have ended.

    Among them may be a checkpoint of torch before 2.13, whose hooks on saved tensors end when it is collected.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__context__


def free_memory() -> None:
    """Collect what passes have left, such as those that an error has ended."""
    # Autograd's queue of this thread keeps what is left of a backward pass that failed, until the next one.
    torch.zeros((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
    gc.collect()
    torch.cuda.empty_cache()


class Mode(Enum):
    """The way to run a choice."""

    SWITCHED = "switched"  # a switch of its own
    CALLED = "called"  # a part of the case around it
    SHAPED = "shaped"  # with the first of its values, where only shapes are asked
    FIXED = "fixed"  # inside of such a choice


@dataclass
class Case:
    """One body of a switch, or a whole pass."""

    assignment: Assignment = ()
    outputs: list[Tensor] = field(default_factory=list)  # on the device "meta": shapes, strides and types
    spec: Any = None
    parameters: list[Tensor] = field(default_factory=list)  # that get a gradient
    sources: list[Tensor] = field(default_factory=list)  # that switches read and that get a gradient, on "meta"
    sites: "list[Site]" = field(default_factory=list)
    # Of the results of fused functions, in their order: which is the output, and which the gradients of leaves.
    output_number: int | None = None
    gradient_numbers: dict[int, int] = field(default_factory=dict)


@dataclass
class Site:
    """One switch of a pass."""

    label: str
    mode: Mode  # of the choices inside
    cases: list[Case]  # none: no switch, but maybe some inside
    outputs: list[Tensor]  # as those of a case
    column: int | None  # of the integers that switches read; None where there is one case


class Columns:
    """The integers that a pass reads: the case of each switch, and what functions make of the values."""

    def __init__(self, supernet: Supernet) -> None:
        self._finite = {name: variable for name, variable in supernet.space.items() if variable.values() is not None}
        # Values are drawn as they are listed, and found by their ids: the GPU waits while they would be compared.
        self._listed = {name: list(variable.values() or ()) for name, variable in self._finite.items()}
        self._positions = {name: {id(v): n for n, v in enumerate(values)} for name, values in self._listed.items()}
        self._starts: dict[Any, int] = {}  # by sets of cases, and by functions
        self._encoders: list[Encoder] = []
        self._length = 0
        self.unread_decisions = set(supernet.space)

    def __len__(self) -> int:
        return self._length

    def add_cases(self, cases: Sequence[Assignment]) -> int:
        """The column of a set of cases."""
        return self._add(tuple(cases), lambda: _case_finder(cases))

    def add_decision(self, name: str) -> int:
        """The column of a decision alone: the position of its value."""
        return self.add_cases([((name, position),) for position in range(len(self._finite[name].values() or ()))])

    def add_function(self, function: NumbersFn, args: tuple[Any, ...], length: int) -> int:
        """The first column of the integers that a function makes of the values and further arguments."""
        self.unread_decisions.clear()  # it may read any
        return self._add((function, args), lambda: lambda values, positions: function(values, *args), length)

    def add_size(self, size: Size) -> int:
        """The column of a size that follows decisions."""
        self.unread_decisions.difference_update(decision.name for decision in size.decisions)
        return self._add((Size, repr(size)), lambda: lambda values, positions: [size._size_under(values)])

    def _add(self, key: Any, make_encoder: Callable[[], Encoder], length: int = 1) -> int:
        """The first column of an encoder, which is made for a new key."""
        if key not in self._starts:
            self._starts[key] = self._length
            self._encoders.append(make_encoder())
            self._length += length
        return self._starts[key]

    def encode(self, values: Mapping[str, Any]) -> list[int]:
        """The row of an architecture."""
        positions = {name: known.get(id(values[name]), -1) for name, known in self._positions.items()}
        for name in [name for name, position in positions.items() if position < 0]:  # equal, but another object
            positions[name] = self._finite[name].index(values[name])
        return [number for encode in self._encoders for number in encode(values, positions)]


def _case_finder(cases: Sequence[Assignment]) -> Encoder:
    """A function that finds the number of the case of an architecture."""
    names = list(dict.fromkeys(name for assignment in cases for name, _ in assignment))

    @lru_cache(maxsize=4096)
    def find(*positions: int) -> int:
        selected = dict(zip(names, positions, strict=True))
        fitting = (number for number, case in enumerate(cases) if all(selected[name] == at for name, at in case))
        return next(fitting)

    return lambda values, positions: [find(*map(positions.__getitem__, names))]


def run_case(label: str, assignment: Assignment, call: Callable[[], Any]) -> Case:
    """Run a case, to see what comes out."""
    flat, spec = pytree.tree_flatten(call())
    for leaf in flat:
        if not isinstance(leaf, Tensor):
            raise Unswitchable(f"{label} gives {type(leaf).__name__}, and only tensors can be switched")
    return Case(assignment, [torch.empty_like(tensor, device="meta") for tensor in flat], spec)


def common_outputs(label: str, cases: Sequence[Case]) -> list[Tensor]:
    """Outputs that hold the results of all cases: the strides of the first, and a type for all."""
    for case in cases:
        if case.spec != cases[0].spec or _shapes(case) != _shapes(cases[0]):
            shapes = sorted({str(_shapes(case)) for case in cases})
            raise Unswitchable(f"the results of {label} differ in shape: {', '.join(shapes[:3])}")
    alike = zip(*(case.outputs for case in cases), strict=True)
    return [outputs[0].to(reduce(torch.promote_types, [o.dtype for o in outputs])) for outputs in alike]


def _shapes(case: Case) -> list[tuple[int, ...]]:
    return [tuple(output.shape) for output in case.outputs]


class StaticBatch:
    """A batch in fixed memory."""

    def __init__(self, batch: Any, device: torch.device) -> None:
        self._leaves, self._spec = pytree.tree_flatten(batch)
        for leaf in self._leaves:
            if not isinstance(leaf, (Tensor, Number, str, bytes, type(None))):
                kind = type(leaf).__name__
                raise Refused(f"a batch holds {kind}, and only tensors, numbers and strings can be captured")
        self._leaves = [leaf.to(device, copy=True) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        self.batch = pytree.tree_unflatten(self._leaves, self._spec)

    def fits(self, batch: Any) -> bool:
        leaves, spec = pytree.tree_flatten(batch)
        return bool(spec == self._spec) and all(map(_are_alike, leaves, self._leaves))

    def versions(self) -> list[int]:
        """Numbers by which writes into the batch show."""
        return [leaf._version for leaf in pytree.tree_leaves(self.batch) if isinstance(leaf, Tensor)]

    def find_change(self, batch: Any) -> str | None:
        leaves, spec = pytree.tree_flatten(batch)
        different = [pair for pair in zip(leaves, self._leaves, strict=False) if not _are_alike(*pair)]
        if spec != self._spec or not different or any(isinstance(leaf, Tensor) for pair in different for leaf in pair):
            return None
        return f"a batch holds {different[0][0]!r} instead of {different[0][1]!r}, and only tensors may change"

    def copy_(self, batch: Any) -> None:
        for target, source in zip(self._leaves, pytree.tree_flatten(batch)[0], strict=True):
            if isinstance(target, Tensor):
                target.copy_(source, non_blocking=True)


def _are_alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    return type(one) is type(other) and bool(one == other)
