"""Searchable modules, and the five kinds of decision.

A decision has a name and a variable. Names identify decisions: equal names share one variable anywhere in the
model, and an architecture is a dict of names and values. Only what is selected runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import nn

from asng._checks import MAX_ITEMS, as_int, check_int, take_list
from asng._untrusted import shorten
from asng.nas._size import AnySize, Arithmetic, Size, to_size
from asng.nas._static import Chain, Constant, Item
from asng.space import Categorical, Integer, Variable

CONTAINERS = {nn.Module.forward, nn.Sequential.forward, Chain.forward}  # that run their modules, or nothing, alone


class Searchable(nn.Module, ABC):
    """Base class of modules that define which of their children run, and their static equivalent.

    Decisions and elastic layers are such modules. Derive your own module from it if it holds decisions and does not
    simply run all of its children. Other modules are extracted child by child; apart from `forward`, none of their
    methods is called.

    >>> from asng import Integer, nas
    >>> class Body(nas.Searchable):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.depth = nas.Value("depth", Integer(1, 3))
    ...         self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    ...     def forward(self, x, mask):
    ...         for block in self.blocks[: self.depth.value]:
    ...             x = block(x) * mask
    ...         return x
    ...     def active_modules(self):
    ...         return [self.depth, *self.blocks[: self.depth.value]]
    ...     def build_static(self):
    ...         static = Static()
    ...         static.blocks = self.blocks[: self.depth.value]
    ...         return static
    >>> class Static(nn.Module):
    ...     def forward(self, x, mask):
    ...         for block in self.blocks:
    ...             x = block(x) * mask
    ...         return x
    >>> len(nas.extract(Body(), {"depth": 2}).blocks)
    2
    """

    def active_modules(self) -> Iterable[nn.Module]:
        """List the active modules under the selected values; must not change the model (the first call is checked).

        Returns:
            The children that run, and the decisions that are read; by default all children. Decisions that are
            attributes of this module always count as read.
        """
        return [child for child in self._modules.values() if child is not None]

    @abstractmethod
    def build_static(self) -> nn.Module:
        """Build the static equivalent of this module under the selected values; must not change the model.

        A change is undone and raises ValueError.

        Returns:
            A module that computes the same. It may contain modules of this one, also modules with decisions, which are
            replaced next.
        """


class Decision(Arithmetic, Searchable):
    """Base class of decisions: a named variable in a network, with the selected `value`.

    Arithmetic with numbers and other decisions gives a `Size`, such as `width * 2`.

    Args:
        name: Identifies the decision: equal names share one variable anywhere in the model.
        variable: The variable with the possible values.

    Raises:
        ValueError: The name is empty or not a string, or `variable` is not a variable.

    >>> from asng import nas
    >>> isinstance(nas.Width("units", 8, 32), nas.Decision)
    True
    """

    is_number: ClassVar[bool] = True  # sizes may follow it, if its values are numbers

    def __init__(self, name: str, variable: Variable) -> None:
        super().__init__()
        _check_name(name)
        if not isinstance(variable, Variable):
            raise ValueError(f"decision {name!r} needs a variable, such as asng.Integer(1, 3), got {variable!r}")
        self.name = name
        self.variable = variable
        self.selected: tuple[Any, ...] = ()  # the value, once there is one

    def choose(self, value: Any) -> None:
        """Select a value without checking it; `asng.nas.select` checks.

        Args:
            value: One of the variable's values.
        """
        attributes = self.__dict__  # past nn.Module's bookkeeping, which is slow
        before = attributes["selected"]
        # The second is the record of a search that watches which decisions are read.
        attributes["selected"] = (value,) if len(before) < 2 else (value, before[1])

    @property
    def value(self) -> Any:
        """The selected value.

        Raises:
            RuntimeError: No value is selected yet.
        """
        selected = self.selected
        if len(selected) != 1:
            if not selected:
                raise RuntimeError(
                    f"decision {self.name!r} has no value yet; call asng.nas.select(model, values) first, on a model "
                    "that holds it as an attribute or in an nn.ModuleList; __init__ is too early to read it"
                )
            if not torch.compiler.is_compiling():
                selected[1].add(self.name)  # the search records which decisions are read
        return selected[0]

    @property
    def index(self) -> Any:
        """The position of the selected value among all values, from 0.

        An int; during a captured step an int32 scalar tensor on the device.
        """
        selected: Any = self.selected
        if hasattr(selected, "index_tensor"):
            return selected.index_tensor()
        return self.variable.index(self.value)

    def branches(self) -> dict[str, nn.Module]:
        """List the options of the decision for reports.

        Returns:
            The modules by label, such as a value; the label "", the default, is for modules that always run.
        """
        return {"": nn.ModuleList(self.children())}

    def extra_repr(self) -> str:
        return f"{self.name!r}, {self.variable}"


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"a decision needs a name, got {name!r}; give one first, as in Width('units', [8, 16])")


SizeLike = Decision | Size | int
"""A size of a layer: a number, a decision among integers, or arithmetic with decisions."""


MAX_MODULES = 10_000  # that an iterable may give


class OneOf(Decision):
    """One of several modules with the same inputs and outputs.

    Args:
        name: The decision's name.
        modules: A list, or a dict. The choices are its indices or its keys.

    Raises:
        ValueError: There are no modules, or one is not a module.

    >>> OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}).variable
    Categorical(choices=('relu', 'tanh'))
    """

    is_number = False

    def __init__(self, name: str, modules: Iterable[nn.Module] | Mapping[str, nn.Module] | nn.ModuleDict) -> None:
        if isinstance(modules, (Mapping, nn.ModuleDict)):
            _check_container(modules, f"OneOf {name!r} chooses among modules")
            named: dict[Any, nn.Module] = dict(modules.items())
        else:
            cure = "give a list or a dict of them"
            named = dict(enumerate(_take_modules(modules, f"OneOf {name!r} chooses among modules", cure)))
        if not named:
            raise ValueError(f"OneOf {name!r} chooses among modules, got none")
        super().__init__(name, Categorical(tuple(named)))
        for key, module in named.items():
            if not isinstance(module, nn.Module):
                cure = "nn.Identity() skips" if module is None else "give instances"
                raise ValueError(f"OneOf {name!r} chooses among modules, got {module!r} for {key!r}; {cure}")
        self.options: nn.ModuleList = nn.ModuleList(named.values())
        self.positions: dict[Any, int] = {key: index for index, key in enumerate(named)}

    def _selected_module(self) -> nn.Module:
        options: Any = self._modules["options"]  # past torch's own ways, which are slow
        chosen: nn.Module = options._modules[str(self.positions[self.value])]
        return chosen

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the selected module."""
        return self._selected_module()(*inputs, **named)

    def active_modules(self) -> list[nn.Module]:
        return [self._selected_module()]

    def branches(self) -> dict[str, nn.Module]:
        return dict(zip(map(str, self.positions), self.options, strict=True))

    def build_static(self) -> nn.Module:
        return self._selected_module()


def _take_modules(modules: Any, purpose: str, cure: str) -> list[nn.Module]:
    """The modules of an iterable; ValueError for what is none, or has no end."""
    try:
        iter(modules)
    except TypeError:  # also an array without axes
        parts = modules.named_children() if isinstance(modules, nn.Module) else ()
        lists = [name for name, part in parts if isinstance(part, (nn.ModuleList, nn.Sequential))]
        hint = f", such as {lists[0]} of it" if lists else ""
        raise ValueError(f"{purpose}, got {shorten(modules)}; {cure}{hint}") from None
    _check_container(modules, purpose)
    return take_list(modules, f"{purpose}, but they", MAX_MODULES)


def _check_container(modules: Any, purpose: str) -> None:
    """ValueError for a module that does more than to hold those that are taken out of it."""
    if not isinstance(modules, nn.Module):
        return
    kind: Any = type(modules)
    found = ""
    if kind.forward not in CONTAINERS or "forward" in vars(modules):
        found = "a forward of its own"
    elif modules._forward_hooks or modules._forward_pre_hooks or modules._backward_hooks or modules._backward_pre_hooks:
        found = "a hook"
    elif own := [name for name, held in (modules._parameters | modules._buffers).items() if held is not None]:
        found = f"a tensor of its own, {own[0]}"
    if found:
        raise ValueError(
            f"{purpose}, got a {kind.__name__} with {found}, which would be lost; make the decision in its list of "
            "modules instead, or give list(...) of it if nothing is lost"
        )


class Pick(Decision):
    """One of n inputs: called with a list of n, it returns the selected one.

    Args:
        name: The decision's name.
        n: Number of inputs, from 1 to 100,000.

    Raises:
        ValueError: n is not such an integer; when called, the list has another length.

    >>> from asng.nas.supernet import select
    >>> pick = Pick("from", 3)
    >>> select(pick, {"from": 1})
    >>> pick(["x", "y", "z"])
    'y'
    """

    is_number = False

    def __init__(self, name: str, n: int) -> None:
        inputs = check_int(n, f"the number of inputs of Pick {name!r}", min=1, max=MAX_ITEMS)
        super().__init__(name, Categorical(range(inputs)))
        self.n = inputs

    def forward(self, inputs: Sequence[Any]) -> Any:
        """Return the selected input."""
        if not isinstance(inputs, Sized) or getattr(inputs, "ndim", 1) == 0:
            raise ValueError(
                f"Pick {self.name!r} chooses from a list of {self.n} inputs, got a {type(inputs).__name__}"
            )
        if len(inputs) != self.n:
            raise ValueError(f"Pick {self.name!r} chooses among {self.n} inputs, got {len(inputs)}")
        return inputs[self.value]

    def build_static(self) -> Item:
        return Item(self.value)


class Repeat(Decision):
    """The first blocks of a list, run in sequence; the decision is their number.

    Iteration, indexing and `len` give the selected blocks (`for block in repeat`, `repeat[0]`), also after extraction
    to a `Chain`. Code that runs its blocks itself, such as that of Hugging Face's models, needs no change.

    Args:
        name: The decision's name.
        blocks: Modules, each of which takes the output of the previous one. Further arguments are passed to each.
        low: The smallest number of blocks; with 0 blocks the input is returned.

    Raises:
        ValueError: `blocks` is not a list of modules, or `low` is not from 0 to the number of blocks less one.

    >>> import torch
    >>> from asng.nas.supernet import select
    >>> layers = Repeat("depth", [nn.Bilinear(2, 3, 2), nn.Bilinear(2, 3, 2), nn.Bilinear(2, 3, 2)])
    >>> layers.variable
    Integer(low=1, high=3)
    >>> select(layers, {"depth": 2})
    >>> layers(torch.zeros(4, 2), torch.zeros(4, 3)).shape, len(layers)
    (torch.Size([4, 2]), 2)
    """

    is_number = False

    def __init__(self, name: str, blocks: Iterable[nn.Module], low: int = 1) -> None:
        _check_name(name)
        blocks = _take_modules(blocks, f"Repeat {name!r} takes a list of blocks", "give one for each repetition")
        for index, block in enumerate(blocks):
            if not isinstance(block, nn.Module):
                raise ValueError(f"Repeat {name!r} runs modules, got {block!r} for block {index}; give instances")
        if as_int(low) is None or not 0 <= low < len(blocks):
            raise ValueError(
                f"Repeat {name!r} runs from low to all of its blocks, got low={low} and {len(blocks)} of them; "
                "low must be at least 0 and fewer than there are"
            )
        super().__init__(name, Integer(low, len(blocks)))
        self.blocks: nn.ModuleList = nn.ModuleList(blocks)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the selected blocks, each with the output of the previous one and with all further arguments."""
        for block in self.active_modules():
            x = block(x, *args, **kwargs)
        return x

    def __iter__(self) -> Iterator[nn.Module]:
        return self.active_modules()

    def __len__(self) -> int:
        return int(self.value)

    def __getitem__(self, index: Any) -> Any:
        blocks = list(self)
        try:
            return blocks[index]
        except IndexError:
            raise IndexError(
                f"Repeat {self.name!r} runs {len(blocks)} of its {len(self.blocks)} blocks now, not block {index}; "
                "iterate over it (for block in repeat), or over range(len(repeat))"
            ) from None

    def __bool__(self) -> bool:
        return True  # as other modules; also where no length is selected yet

    def active_modules(self) -> Iterator[nn.Module]:
        return islice(self.blocks, self.value)

    def branches(self) -> dict[str, nn.Module]:
        return {str(number): block for number, block in enumerate(self.blocks, start=1)}

    def build_static(self) -> Chain:
        return Chain(*self.active_modules())


class _FastPathBlock:
    """A hook that is never called, since the module that has it is not.

    In evaluation mode torch's transformer layers read the whole weights of the layers inside instead of calling these,
    unless a module in them has a hook.
    """

    def __call__(self, *_: Any) -> None:
        """Do nothing."""


class Value(Decision):
    """The value of any variable, read as `.value` by the code of a module, or passed to a layer as a kernel size.

    Arithmetic gives sizes: `Value("k", Integer(1, 3)) * 2 - 1` is a kernel of 1, 3 or 5.

    Args:
        name: The decision's name.
        variable: The variable with the possible values.

    Raises:
        ValueError: The name is empty or not a string, or `variable` is not a variable.

    >>> from asng.nas.supernet import select
    >>> from asng.space import Real
    >>> rate = Value("rate", Real(0.0, 0.5))
    >>> select(rate, {"rate": 0.25})
    >>> rate.value
    0.25
    """

    def __init__(self, name: str, variable: Variable) -> None:
        super().__init__(name, variable)
        self.register_forward_pre_hook(_FastPathBlock())

    def build_static(self) -> Constant:
        return Constant(self.value, None if self.variable.values() is None else self.index)


class Width(Value):
    """A number of channels or units. Arithmetic with it (`width * 2`, `heads * width`) gives further sizes.

    Args:
        name: The decision's name.
        low: The smallest width, or a list of widths to choose from.
        high: The largest width, if `low` is a number.

    Raises:
        ValueError: A width can be less than 1, or `low` is not below `high`.

    >>> Width("hidden", [64, 128, 256]).variable
    Categorical(choices=(64, 128, 256))
    """

    def __init__(self, name: str, low: int | Sequence[int], high: int | None = None) -> None:
        _check_name(name)
        lowest, highest = as_int(low), as_int(high)
        if isinstance(low, Sequence):
            super().__init__(name, Categorical(low))
        elif lowest is None or highest is None or not lowest < highest:
            raise ValueError(f"Width {name!r} needs low < high, or a list of widths, got low={low!r} and high={high!r}")
        else:
            super().__init__(name, Integer(lowest, highest))
        to_size(self, "a width")


InputSize = SizeLike | AnySize
