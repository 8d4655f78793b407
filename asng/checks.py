"""What users hand in, as the numbers that it should be, or a ValueError that names the value and the cure."""

import math
import operator
from collections.abc import Iterable, Sized
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_REAL_NUMBERS = (str, bytes, complex, np.complexfloating)  # although float() takes some of them


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


def reals(given: Any) -> NDArray[np.float64] | None:
    """A copy of the numbers as float64, or None where there are others: text, complex numbers, rows of several lengths.

    >>> reals([1, 2.5]), reals(["1", "2.5"]), reals([1j])
    (array([1. , 2.5]), None, None)
    """
    try:
        array = np.asarray(given)
        if array.dtype.kind == "O" and any(isinstance(each, NO_REAL_NUMBERS) for each in array.flat):
            return None
        return array.astype(np.float64) if array.dtype.kind in "biufO" else None
    except Exception:  # whatever the conversion of somebody's own objects raises
        return None


def finite(given: Any, what: str) -> NDArray[np.float64]:
    """An array of finite numbers, or a ValueError that says what they are."""
    numbers = reals(given)
    if numbers is None:
        raise ValueError(f"{what} must be numbers, got {given!r}")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{what} must be finite, got {given!r}")
    return numbers


def real(value: Any, what: str) -> float:
    """A number as a float, infinity for an int beyond float64, or a ValueError that says what it is."""
    try:
        if isinstance(value, float) or not (isinstance(value, NO_REAL_NUMBERS) or _kind(value) in "cUS"):
            return float(value)
    except OverflowError:
        return math.inf
    except Exception:  # whatever somebody's own number raises
        pass
    raise ValueError(f"{what} must be real numbers, got {value!r}")


def _kind(value: Any) -> str:
    """The kind of numbers in an array, by NumPy's letter, or "?" where it does not say."""
    return getattr(getattr(value, "dtype", None), "kind", "?")


def floats(losses: Iterable[Any], n: int) -> list[float]:
    """The losses of n candidates as floats, with infinity for all that are not finite.

    >>> floats([0.5, math.nan, -math.inf], 3)
    [0.5, inf, inf]
    """
    given = losses if type(losses) is list else _listed(losses, n)
    if len(given) != n:
        m = len(losses) if isinstance(losses, Sized) else len(given) if len(given) < n else f"more than {n}"
        raise ValueError(f"got {n} candidates and {m} losses; tell one loss for each candidate")
    for loss in given:
        if type(loss) is not float:
            given = [real(each, "losses") for each in given]
            break
    if not math.isfinite(sum(given)):
        given = [number if math.isfinite(number) else math.inf for number in given]
    return given


def _listed(losses: Iterable[Any], n: int) -> list[Any]:
    """The losses, of which no more than n + 1 are read, since there may be no end of them."""
    try:
        each = None if isinstance(losses, (str, bytes, set, frozenset, dict)) else iter(losses)
    except TypeError:  # one number, or an array without axes
        each = None
    if each is None:
        raise ValueError(f"tell takes a list of losses, in the order of the candidates, got {losses!r}")
    return list(islice(each, n + 1))
