"""What users hand in, as the numbers that it should be, or a ValueError that names the value and the cure."""

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def whole(value: Any) -> int | None:
    """The value as an int, or None where it is no whole number; True is none, nor is 1.0.

    >>> whole(np.int8(3)), whole(3.0), whole(True)
    (3, None, None)
    """
    try:
        return None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        return None


def count(value: Any, name: str, *, least: int) -> int:
    """A whole number of at least `least`, or a ValueError that names it."""
    number = whole(value)
    if number is None:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def flag(value: Any, name: str) -> bool:
    """True or False, or a ValueError that names it."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def positive(value: Any, name: str, *, above: float = 0.0, most: float = math.inf) -> float:
    """A setting as a float between two bounds, or a ValueError that names it."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not above < number <= most:
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{name} must be a number above {above:g}{upper}, got {repr(value)[:40]}")
    return number


def ordered(low: float, high: float) -> None:
    """Raise ValueError where bounds are not finite, or not low < high."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"bounds must be finite, got low={low} and high={high}")
    if not low < high:
        raise ValueError(f"low < high must hold, got low={low} and high={high}; swap them or fix the value outside")


def finite(given: Any, what: str) -> NDArray[np.float64]:
    """An array of finite numbers, or a ValueError that says what they are."""
    try:
        numbers = np.array(given, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what} must be numbers, got {given!r}") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"{what} must be finite, got {given!r}")
    return numbers


def floats(losses: Iterable[Any]) -> list[float]:
    """Losses as floats, with infinity for all that are not finite.

    >>> floats([0.5, math.nan, -math.inf])
    [0.5, inf, inf]
    """
    try:
        each = None if isinstance(losses, (str, bytes, set, frozenset, dict)) else iter(losses)
    except TypeError:  # one number, or an array without axes
        each = None
    if each is None:
        raise ValueError(f"tell takes a list of losses, in the order of the candidates, got {losses!r}")
    numbers = []
    for loss in each:
        try:
            numbers.append(float(loss))
        except OverflowError:  # an int beyond float64
            numbers.append(math.inf)
        except (TypeError, ValueError):
            raise ValueError(f"losses must convert to float, got {loss!r}") from None
    if not math.isfinite(sum(numbers)):
        numbers = [number if math.isfinite(number) else math.inf for number in numbers]
    return numbers
