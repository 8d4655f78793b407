"""User-defined variables: any exponential family that draws one number."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asng.families import Family
from asng.space import Variable


@dataclass(frozen=True)
class Custom(Variable):
    """A variable of a family of your own that draws one number; `value` makes what is evaluated of it.

    >>> import asng
    >>> asng.Custom(asng.NormalFamily([0.0], [10.0], [0.5], mirrored=True), value=round).decode(6.8)
    7
    """

    family: Family
    value: Callable[[float], Any] = float

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family) or self.family.variables != 1:
            raise ValueError(f"Custom takes a Family that draws one number, got {self.family!r}")
        if not callable(self.value):
            raise ValueError(f"value must be a function of a raw draw, such as int, got {self.value!r}")

    def decode(self, x: float) -> Any:
        return self.value(x)

    def to_internal(self, prior: Any) -> Any:
        self.family.encode([prior])  # raises ValueError for parameters that do not fit
        return prior

    def to_external(self, parameters: Any) -> Any:
        return parameters
