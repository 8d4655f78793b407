"""Searchable modules: decisions, sizes that follow decisions, and elastic layers of such sizes."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from asng.nas.ties import Ties
from asng.space import Variable


class Searchable(nn.Module, ABC):
    """A module that defines which of its children run, and its static equivalent.

    Decisions and elastic layers are such modules. Derive your own module from it if it holds decisions and does
    not simply run all its children. Other modules are extracted child by child; none of their methods is called.

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
        """The children that run, and the decisions that are read, under the selected values; by default all children.

        Decisions that are attributes of this module count as read even if they are not returned.
        """
        return [child for child in self._modules.values() if child is not None]

    @abstractmethod
    def build_static(self) -> nn.Module:
        """Return the static equivalent of this module under the selected values; this module must stay unchanged.

        The result may hold modules of this one, also modules with decisions: they are replaced next.
        """


class Decision(Searchable):
    """A named variable inside a network; `value` is what is selected."""

    def __init__(self, name: str, variable: Variable) -> None:
        super().__init__()
        if not isinstance(name, str) or not name:
            raise ValueError(f"a decision needs a name, got {name!r}")
        if not isinstance(variable, Variable):
            raise ValueError(f"decision {name!r} needs a variable, such as asng.Integer(1, 3), got {variable!r}")
        self.name = name
        self.variable = variable
        self.selected: tuple[Any, ...] = ()  # the value, once there is one

    def choose(self, value: Any) -> None:
        """Select a value, unchecked; `asng.nas.select` checks."""
        self.__dict__["selected"] = (value,)  # past nn.Module's bookkeeping, which is slow

    @property
    def value(self) -> Any:
        """The selected value."""
        selected = self.selected
        if len(selected) != 1:
            if not selected:
                raise RuntimeError(
                    f"decision {self.name!r} has no value yet; call asng.nas.select(model, values) first, on a model "
                    "that holds it as an attribute or in an nn.ModuleList"
                )
            if not torch.compiler.is_compiling():
                selected[1].add(self.name)  # the search records which decisions are read
        return selected[0]

    @property
    def index(self) -> Any:
        """The position of the selected value among all values.

        An int; a tensor on the device, int32 of no axes, while a captured step leaves the value open.
        """
        selected: Any = self.selected
        if hasattr(selected, "index_tensor"):
            return selected.index_tensor()
        return self.variable.index(self.value)

    @abstractmethod
    def active_modules(self) -> Iterable[nn.Module]:
        """The modules inside that run under the selected value."""

    @abstractmethod
    def build_static(self) -> nn.Module:
        """A module without this decision that does the same under the selected value."""

    def extra_repr(self) -> str:
        return f"{self.name!r}, {self.variable}"

    def __mul__(self, factor: int) -> "Size":
        return Size(self) * factor

    def __add__(self, shift: int) -> "Size":
        return Size(self) + shift

    def __sub__(self, shift: int) -> "Size":
        return Size(self) - shift

    def __floordiv__(self, divisor: int) -> "Size":
        return Size(self) // divisor

    __rmul__ = __mul__
    __radd__ = __add__
    __truediv__ = __floordiv__


class Size:
    """An integer that follows a decision, scale * value + shift; or a constant.

    >>> Size(3) * 2 + 1
    7
    """

    def __init__(self, of: "Decision | Size | int", scale: int = 1, shift: int = 0) -> None:
        scale, shift = _as_int(scale), _as_int(shift)
        self.decision: Decision | None = None
        self.scale, self.shift = scale, shift
        if isinstance(of, Size):
            self.decision, self.scale, self.shift = of.decision, of.scale * scale, of.shift * scale + shift
        elif isinstance(of, Decision):
            self.decision = of
            if not all(isinstance(value, int) for value in of.variable.values() or (None,)):
                raise ValueError(f"a size follows integers, but {of.name!r} is {of.variable}")
        else:
            self.scale, self.shift = 0, _as_int(of) * scale + shift

    def __call__(self) -> int:
        """The size under the selected value."""
        return self.shift if self.decision is None else int(self.scale * self.decision.value + self.shift)

    def all(self) -> list[int]:
        """Every size there can be, in the order of the decision's values."""
        if self.decision is None:
            return [self.shift]
        return [self.scale * value + self.shift for value in self.decision.variable.values() or ()]

    def shares_decision_with(self, other: "Size") -> bool:
        """True if both sizes are driven by the same decision (compared by name)."""
        return self.decision is not None and other.decision is not None and self.decision.name == other.decision.name

    def __mul__(self, factor: int) -> "Size":
        if isinstance(factor, float):
            raise self._no_fraction(f"{self} * {factor}")
        return Size(self, scale=self._constant(factor, "product"))

    def __add__(self, shift: int) -> "Size":
        return Size(self, shift=self._constant(shift, "sum"))

    def __sub__(self, shift: int) -> "Size":
        return Size(self, shift=-self._constant(shift, "difference"))

    def __floordiv__(self, divisor: int) -> "Size":
        raise self._no_fraction(f"{self} / {self._constant(divisor, 'quotient')}")

    __rmul__ = __mul__
    __radd__ = __add__
    __truediv__ = __floordiv__

    def _constant(self, number: Any, what: str) -> int:
        if isinstance(number, (Decision, Size)):
            raise ValueError(
                f"a {what} of two decisions ({self} and {Size(number)}) is not supported as a size; make one decision "
                f"of it, such as Width(name, [8, 12, 16]) with the {what}s to choose from"
            )
        return _as_int(number)

    def _no_fraction(self, what: str) -> ValueError:
        return ValueError(
            f"a size is an integer multiple of a decision, not {what}; let the decision be the smaller size, and "
            "multiply it where the larger one is wanted"
        )

    def __repr__(self) -> str:
        if self.decision is None:
            return str(self.shift)
        factor = "" if self.scale == 1 else f"{self.scale} * "
        shift = "" if not self.shift else f" {'+' if self.shift > 0 else '-'} {abs(self.shift)}"
        return f"{factor}{self.decision.name!r}{shift}"


class AnySize:
    """As many channels as the input has, up to `max`: for inputs whose size is itself searched.

    The module that holds such a layer gives the number in its own `build_static()`:
    `layer.build_static(in_channels=64)`.

    >>> from asng.nas import Linear
    >>> linear = Linear(AnySize(64), 8)
    >>> linear(torch.zeros(1, 20)).shape
    torch.Size([1, 8])
    >>> linear.build_static(in_channels=20)
    Linear(in_features=20, out_features=8, bias=True)
    """

    decision = None

    def __init__(self, max: int) -> None:
        self.max = _as_int(max)
        self.last_seen = self.max  # channels of the last input

    def __call__(self) -> int:
        return self.last_seen

    def __repr__(self) -> str:
        return f"AnySize({self.max})"


SizeLike = Decision | Size | int
InputSize = SizeLike | AnySize


def input_size_and_max(of: InputSize, what: str) -> tuple[Size | AnySize, int]:
    """`size_and_max` of an input, which may also be `AnySize`."""
    return (AnySize(of.max), of.max) if isinstance(of, AnySize) else size_and_max(of, what)


def size_and_max(of: SizeLike, what: str) -> tuple[Size, int]:
    """A size and its maximum; raises ValueError if it can be less than 1."""
    size = Size(of)
    sizes = size.all()
    if size.decision is not None and min(sizes) < 1:
        raise ValueError(f"{what} must be at least 1, but {size} can be {min(sizes)}")
    return size, max(sizes)


def _as_int(number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ValueError(f"a size is an integer or follows a decision, got {number!r}") from None


TorchLayer = TypeVar("TorchLayer", bound=nn.Module)


def on_meta(kind: type[TorchLayer], *arguments: Any, **settings: Any) -> TorchLayer:
    """A torch layer on the device "meta", without initialization, which takes most of the time."""
    bare: Any = _without_first_values(kind)  # type: ignore[arg-type] # mypy takes types of a bound for not hashable
    layer: TorchLayer = bare(*arguments, **settings, device="meta")
    layer.__class__ = kind
    return layer


@lru_cache
def _without_first_values(kind: Any) -> Any:
    return type(kind.__name__, (kind,), {"reset_parameters": lambda self: None})


class ElasticLayer(Searchable):
    """A torch layer of the largest size that uses the slice of the selected sizes.

    Its decisions are submodules, named by their roles. `asng.nas.select` tells the layers of a model their paths,
    so that errors name both layers whose sizes do not fit together.
    """

    path: str = ""
    producers: dict[
        int, str
    ]  # number of channels -> path of the layer that last returned it, shared by a model's layers
    ties: Ties | None = None  # while a model that shares this layer's weights is extracted

    @abstractmethod
    def active_tensors(self) -> dict[str, Tensor | None]:
        """The slices of its parameters and buffers in use under the selected values."""

    @abstractmethod
    def build_meta(self) -> nn.Module:
        """The torch layer of the selected sizes, on the device "meta"."""

    def build_static(self, in_channels: int | None = None) -> nn.Module:
        """The equivalent torch layer under the selected values, with copies of the weights.

        `in_channels` is required for a layer with `AnySize` inputs, and allowed only there.
        """
        tensors = self.static_tensors(in_channels, copy=True)
        static = self.build_meta()
        for name, tensor in tensors.items():
            setattr(static, name, tensor)
        static.training = self.training
        return static

    def static_tensors(self, in_channels: int | None = None, *, copy: bool) -> dict[str, Tensor | None]:
        """The tensors of `build_static`: copies, with parameters of their own, or views of this layer's, to look at."""
        self._check_forward()
        self._set_in_channels(in_channels)
        tensors: dict[str, Tensor | None] = {}
        for name, used in self.active_tensors().items():
            tensor = used.detach().clone() if copy and used is not None else used
            if tensor is not None and name not in self._buffers:
                if copy:
                    tensor = nn.Parameter(tensor, getattr(self, name).requires_grad)
                if self.ties is not None:
                    self.ties.record(self, name, tensor)
            tensors[name] = tensor
        return tensors

    def _check_forward(self) -> None:
        kind: Any = next(kind for kind in type(self).__mro__ if "build_meta" in vars(kind))
        if type(self).forward is not kind.forward:
            raise ValueError(
                f"{self._label()} is a {type(self).__name__} with a forward() of its own, which the static layer would "
                "not have; give it a build_static() of its own, too"
            )

    def _set_in_channels(self, in_channels: int | None) -> None:
        if self._any_size is not None:
            if in_channels is None or not 1 <= in_channels <= self._any_size.max:
                raise ValueError(
                    f"{self._label()} takes any number of channels up to {self._any_size.max}, got "
                    f"in_channels={in_channels}; say how many by layer.build_static(in_channels=...) in the "
                    "build_static() of the module that holds it"
                )
            self._any_size.last_seen = in_channels
        elif in_channels is not None:
            raise ValueError(
                f"{self._label()} is told by its decisions how much it takes, not by in_channels={in_channels}"
            )

    def _register_sizes(self, **roles: Size | AnySize) -> None:
        self.producers = {}
        self._any_size = next((size for size in roles.values() if isinstance(size, AnySize)), None)
        for role, size in roles.items():
            if size.decision is not None:
                self.add_module(f"{role}_decision", size.decision)

    def _check_input(self, size: Size | AnySize, x: Tensor, axis: int, unit: str = "channels") -> int:
        """Return the selected size; RuntimeError if the input has another one on this axis."""
        if x.dim() < -axis:
            return size()  # torch says what is wrong
        got = x.shape[axis]
        if isinstance(size, AnySize):
            size.last_seen = min(got, size.max)
        in_channels = size()
        if got != in_channels:
            at_most = f"up to {in_channels}" if self._any_size else in_channels
            wanted = at_most if size.decision is None else f"{size} = {in_channels}"
            producer = f", which {self.producers[got]} last gave" if got in self.producers else ""
            raise RuntimeError(f"{self._label()} takes {wanted} {unit}, but got {got}{producer}")
        return in_channels

    def _label(self) -> str:
        return self.path or type(self).__name__

    def _record_output(self, channels: int, y: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.producers[channels] = self._label()
        return y
