"""Sizes that follow decisions: arithmetic with decisions and numbers, and the sizes of layers."""

import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from torch import Tensor

from asng._checks import check_int
from asng._untrusted import shorten
from asng._variable import Variable

MAX_COMBINATIONS = 10**6
MAX_SIZE = 2**31 - 1


class Arithmetic:
    """Sums, differences, products and quotients of decisions, sizes and numbers, which are sizes."""

    def __add__(self, other: Any) -> "Size":
        return _combine("+", self, other)

    def __sub__(self, other: Any) -> "Size":
        return _combine("-", self, other)

    def __mul__(self, other: Any) -> "Size":
        return _combine("*", self, other)

    def __floordiv__(self, other: Any) -> "Size":
        return _combine("//", self, other)

    def __truediv__(self, other: Any) -> "Size":
        return _combine("/", self, other)

    def __rsub__(self, other: Any) -> "Size":
        return _combine("-", other, self)

    def __rfloordiv__(self, other: Any) -> "Size":
        return _combine("//", other, self)

    def __rtruediv__(self, other: Any) -> "Size":
        return _combine("/", other, self)

    __radd__ = __add__
    __rmul__ = __mul__

    def __mod__(self, other: Any) -> Any:  # as torch's convolutions compute
        raise ValueError(
            f"{as_size(self)} is not a number, so torch's layers do not accept it, and it has no remainder; use an "
            "elastic layer, such as nas.Conv2d, or read .value in forward"
        )

    __rmod__ = __mod__

    def round_to(self, multiple: int) -> "Size":
        """Round to the nearest multiple of a number, up from halfway, and to at least that number.

        Args:
            multiple: A positive integer.

        Returns:
            The size, such as `(width * 0.25).round_to(8)`.

        Raises:
            ValueError: `multiple` is no positive integer.

        >>> from asng.nas import Width
        >>> (Width("channels", [16, 40, 64]) / 4).round_to(8).values()
        [8, 16]
        """
        if require_int(multiple) < 1:
            raise ValueError(f"a size is rounded to a multiple of at least 1, got {multiple}")
        return CompoundSize("round_to", as_size(self), as_size(multiple))


class Size(Arithmetic):
    """A size that depends on decisions, made by arithmetic with them; or a constant.

    Sums, differences, products and quotients (`//` and `/`) of decisions, sizes and numbers are sizes. Calling a size
    returns its value under the selected values, an integer: the final result is rounded down, as by `int`.

    >>> from asng.nas import Value, Width
    >>> from asng.space import Categorical
    >>> width = Width("width", 4, 6)
    >>> size = width * 2 + 1
    >>> size, size.values()
    (2 * 'width' + 1, [9, 11, 13])
    >>> width.choose(5)
    >>> size()
    11
    >>> size = width * Value("ratio", Categorical([1.5, 2]))
    >>> size, size.values()
    ('width' * 'ratio', [6, 7, 8, 9, 10, 12])
    """

    @property
    @abstractmethod
    def decisions(self) -> tuple[Any, ...]:
        """The decisions that the size depends on, each once."""

    def __call__(self) -> int:
        """The size under the selected values."""
        return int(self._number())

    def _size_under(self, values: Mapping[str, Any]) -> int:
        """The size under the values of an architecture, whatever is selected."""
        return int(next(iter(self._numbers(values))))

    def values(self) -> list[int]:
        """List all possible sizes.

        Returns:
            The sizes in increasing order, each once.

        Raises:
            ValueError: There are too many combinations to list them, or a divisor can be 0.
        """
        try:
            return sorted({int(number) for number in self._numbers({})})
        except ZeroDivisionError:
            raise ValueError(f"{self} divides by 0 for some values; give divisors that are never 0") from None
        except OverflowError:
            raise ValueError(f"{self} overflows for some values; give larger divisors") from None

    @property
    def max(self) -> int:
        """The largest possible size."""
        return self.values()[-1]

    @property
    def is_elastic(self) -> bool:
        """True if the size depends on a decision."""
        return bool(self.decisions)

    @abstractmethod
    def _number(self) -> float:
        """The number under the selected values, before it is rounded."""

    @abstractmethod
    def _numbers(self, given: Mapping[str, Any]) -> Iterable[float]:
        """Every number there can be, where some decisions, by name, have a given value."""


class LinearSize(Size):
    """scale * value + shift of one decision, or a constant."""

    def __init__(self, decision: Any, scale: float, shift: float) -> None:
        self.decision, self.scale, self.shift = decision, scale, shift

    @property
    def decisions(self) -> tuple[Any, ...]:
        return () if self.decision is None else (self.decision,)

    def __call__(self) -> int:
        decision = self.decision  # no further call: layers ask in every forward
        return int(self.shift) if decision is None else int(self.scale * decision.value + self.shift)

    def _number(self) -> float:
        return self.shift if self.decision is None else self.scale * self.decision.value + self.shift

    def _numbers(self, given: Mapping[str, Any]) -> list[float]:
        if self.decision is None:
            return [self.shift]
        name = self.decision.name
        values = (given[name],) if name in given else self.decision.variable.values() or ()
        return [self.scale * value + self.shift for value in values]

    def __repr__(self) -> str:
        if self.decision is None:
            return str(self.shift)
        scale, shift = abs(self.scale), self.shift
        term = repr(self.decision.name) if scale == 1 else f"{scale} * {self.decision.name!r}"
        if self.scale < 0:
            return f"{shift} - {term}" if shift else f"-{term}"
        return f"{term} {'+' if shift > 0 else '-'} {abs(shift)}" if shift else term


class CompoundSize(Size):
    """An operator with two sizes."""

    def __init__(self, symbol: str, left: Size, right: Size) -> None:
        self.symbol, self.left, self.right = symbol, left, right

    @property
    def decisions(self) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(self.left.decisions + self.right.decisions))

    def _number(self) -> float:
        return OPERATORS[self.symbol](self.left._number(), self.right._number())

    def _numbers(self, given: Mapping[str, Any]) -> set[float]:
        calculate = OPERATORS[self.symbol]
        found: set[float] = set()
        count = 0
        for shared in self._shared_values(given):  # both sides depend on them, so not every pair occurs
            left, right = (set(side._numbers({**given, **shared})) for side in (self.left, self.right))
            count += len(left) * len(right)
            if count > MAX_COMBINATIONS:
                raise _too_many_error(str(self))
            found.update(calculate(a, b) for a in left for b in right)
        return found

    def _shared_values(self, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        left, right = ({d.name: d.variable for d in side.decisions} for side in (self.left, self.right))
        names = [name for name in left if name in right and name not in given]
        return (dict(zip(names, row, strict=True)) for row in product(*(left[name].values() or () for name in names)))

    def __repr__(self) -> str:
        left, right = (f"({side})" if " " in repr(side) else repr(side) for side in (self.left, self.right))
        return f"{left}.round_to({right})" if self.symbol == "round_to" else f"{left} {self.symbol} {right}"


OPERATORS: dict[str, Callable[[Any, Any], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
    "round_to": lambda number, multiple: max(int(number + multiple / 2) // multiple, 1) * multiple,
}


def _too_many_error(size: str) -> ValueError:
    return ValueError(
        f"{size} has more than {MAX_COMBINATIONS:,} combinations; let its decisions choose among fewer numbers, such "
        "as Width(name, [64, 128, 256])"
    )


def as_size(of: Any) -> Size:
    """A decision among numbers, a size or an integer as a size."""
    if isinstance(of, Size):
        return of
    if isinstance(of, Arithmetic):
        decision: Any = of
        if not decision.is_number:
            raise ValueError(
                f"a size is a number, but the {type(decision).__name__} {decision.name!r} is not; use a nas.Width, "
                f"or nas.Value({decision.name!r}, {decision.variable}) to follow it"
            )
        values = decision.variable.values()
        if values is not None and len(values) > MAX_COMBINATIONS:
            raise _too_many_error(repr(decision.name))
        if not all(isinstance(value, (int, float)) for value in values or (None,)):
            raise ValueError(
                f"a size can only follow a choice among numbers, but {decision.name!r} is {decision.variable}"
            )
        return LinearSize(decision, 1, 0)
    return LinearSize(None, 0, require_int(of))


def _combine(symbol: str, left: Any, right: Any) -> Size:
    for side, other in ((left, right), (right, left)):
        if isinstance(side, float) and not math.isfinite(side):
            raise ValueError(f"a size needs finite numbers, got {side}")
        if isinstance(side, Tensor):
            shown = repr(getattr(other, "name", other))
            raise ValueError(f"{shown} cannot be combined with a tensor; in forward, read the decision's .value")
    a, b = (LinearSize(None, 0, side) if isinstance(side, float) else as_size(side) for side in (left, right))
    if isinstance(a, LinearSize) and isinstance(b, LinearSize):
        match symbol:  # of one decision and a number
            case "+" if not b.decisions:
                return LinearSize(a.decision, a.scale, a.shift + b.shift)
            case "-" if not b.decisions:
                return LinearSize(a.decision, a.scale, a.shift - b.shift)
            case "-" if not a.decisions:
                return LinearSize(b.decision, -b.scale, a.shift - b.shift)
            case "*" if not b.decisions:
                return LinearSize(a.decision, a.scale * b.shift, a.shift * b.shift)
    return CompoundSize(symbol, a, b)


def remainder(size: Size, divisor: Size) -> Size:
    """The remainder of the division of one size by another."""
    return CompoundSize("%", size, divisor)


def to_size(of: Any, what: str) -> Size:
    """The size of a layer; raises ValueError if it is too large, can be less than 1, or is a bare fraction."""
    size = as_size(of)
    if isinstance(size, LinearSize) and size.is_elastic and (size.scale, size.shift) == (1, 0):
        fraction = next((number for number in size._numbers({}) if not isinstance(number, int)), None)
        if fraction is not None:
            raise ValueError(
                f"{what} must be an integer, but {size} can be {fraction}; multiply it with a width: width * ratio"
            )
    sizes = size.values()
    min_size = 1 if size.is_elastic else 0  # torch takes constants of 0
    if sizes[0] < min_size:
        raise ValueError(f"{what} must be at least {min_size}, but {size} can be {sizes[0]}")
    if sizes[-1] > MAX_SIZE:
        raise ValueError(f"{what} must be at most {MAX_SIZE:,}, but {size} can be {sizes[-1]}")
    return size


def require_int(number: Any) -> int:
    try:
        return operator.index(number)
    except Exception:  # a user's number may raise anything
        cure = f"; name it: nas.Value('size', {number})" if isinstance(number, Variable) else ""
        raise ValueError(f"a size is an integer or follows a decision, got {shorten(number)}{cure}") from None


class AnySize:
    """The input size of a layer that accepts any number of channels, for inputs whose size is itself searched.

    The `build_static()` of the surrounding module passes the number on: `layer.build_static(in_channels=64)`.

    Args:
        max: The maximum number of channels.

    Raises:
        ValueError: `max` is not a positive integer.

    >>> import torch
    >>> from asng.nas import Linear
    >>> linear = Linear(AnySize(64), 8)
    >>> linear(torch.zeros(1, 20)).shape
    torch.Size([1, 8])
    >>> linear.build_static(in_channels=20)
    Linear(in_features=20, out_features=8, bias=True)
    """

    decisions: tuple[Any, ...] = ()

    def __init__(self, max: int) -> None:
        self.max: int = check_int(max, "the largest number of channels", min=1, max=MAX_SIZE)
        self.last_seen: int = self.max  # channels of the last input

    def __call__(self) -> int:
        return self.last_seen

    def __repr__(self) -> str:
        return f"AnySize({self.max})"


def to_sizes(argument: Any, name: str, is_input: bool, is_single: bool = False) -> Any:
    """An argument as a size, or several as a tuple of sizes; that of an input may be `AnySize`."""
    if isinstance(argument, AnySize) and is_input:
        return AnySize(argument.max)
    if is_single and isinstance(argument, Sequence):
        raise ValueError(f"{name} is an integer or follows a decision, got {shorten(argument)}")
    return map_sizes(lambda size: to_size(size, name), tuple(argument) if isinstance(argument, Sequence) else argument)


def map_sizes(function: Callable[[Any], Any], sizes: Any) -> Any:
    """Apply a function to a size, or to each of a tuple."""
    return tuple(map(function, sizes)) if isinstance(sizes, tuple) else function(sizes)


def check_fixed(elastic: Sequence[str], **settings: Any) -> None:
    """Raise ValueError for settings, single or in pairs, that are decisions."""
    for name, setting in settings.items():
        for part in setting if isinstance(setting, (tuple, list)) else (setting,):
            if isinstance(part, Arithmetic):
                cure = f"Choose among layers instead: OneOf(name, [one layer for each {name}])"
                if name == "padding":
                    cure = "Give the number for the largest kernel: it shrinks with the kernel"
                raise ValueError(f"{name} cannot be a decision, got {part!r}; only {', '.join(elastic)} can. {cure}")


def refuse_any_size(sizes: Mapping[str, Any]) -> None:
    """Raise ValueError for `AnySize`, and for several sizes, in layers whose size does not follow from one input."""
    for name, size in sizes.items():
        if isinstance(size, (AnySize, tuple)):
            raise ValueError(f"{name} is an integer or follows a decision, got {size}")
