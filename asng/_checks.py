"""Conversion and validation of arguments; ValueError names the value and the cure."""

import difflib
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sized
from itertools import count, cycle, islice, repeat
from numbers import Rational
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ITEMS = 100_000  # of a list: choices, modules
MAX_CANDIDATES = 1_000_000  # of one ask or tell
NOT_REAL = (str, bytes, complex, np.complexfloating)  # although float() takes some of them


def as_int(value: Any) -> int | None:
    """The value as an int, or None if it is not an integer; neither True nor 1.0 is one.

    >>> as_int(np.int8(3)), as_int(3.0), as_int(True)
    (3, None, None)
    """
    try:
        return None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except Exception:  # a user's number may raise anything
        return None


def check_int(value: Any, name: str, *, min: int, max: float = math.inf) -> int:
    """Return an integer with min <= value <= max; ValueError names the argument."""
    number = as_int(value)
    if number is None:
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if number < min:
        raise ValueError(f"{name} must be at least {min}, got {number}")
    if number > max:
        raise ValueError(f"{name} must be at most {max:,}, got {number}")
    return number


def take_list(items: Iterable[Any], what: str, max: int = MAX_ITEMS) -> list[Any]:
    """The items of an iterable, which may be endless; ValueError for more than `max`.

    >>> take_list(count(), "the choices", max=3)
    Traceback (most recent call last):
    ValueError: the choices are more than 3, got count(0); give a shorter list
    """
    shown = "" if isinstance(items, Sized) else repr(items)[:80]  # an iterator, as it begins
    taken = list(islice(items, max + 1))
    if len(taken) > max:
        raise ValueError(f"{what} are more than {max:,}, got {shown or repr(items)[:80]}; give a shorter list")
    return taken


def is_endless(items: Any) -> bool:
    """Whether an iterator of itertools never ends."""
    return isinstance(items, (count, cycle)) or (isinstance(items, repeat) and operator.length_hint(items, -1) < 0)


def check_bool(value: Any, name: str) -> bool:
    """Return True or False; ValueError names the argument."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_float(value: Any, name: str, *, gt: float = 0.0, max: float = math.inf) -> float:
    """Return a float with gt < value <= max; ValueError names the argument."""
    try:
        number = math.nan if isinstance(value, (*NOT_REAL, bool, np.bool_)) else float(value)
    except Exception:  # a user's number may raise anything
        number = math.nan
    if not gt < number <= max:
        upper = "" if math.isinf(max) else f" and at most {max:g}"
        raise ValueError(f"{name} must be a number above {gt:g}{upper}, got {repr(value)[:40]}")
    return number


def check_settings(settings: Any, **minima: int) -> None:
    """Raise ValueError for integers below their minimum, by default 1, of a seed 0, or too large, and for lr <= 0."""
    for name, value in vars(settings).items():
        minimum, maximum = (0, 2**63 - 1) if name == "seed" else (1, 2**31 - 1)
        if name == "lr" and not 0 < value < math.inf:
            raise ValueError(f"lr must be above 0, got {value}")
        if type(value) is int:
            check_int(value, name, min=minima.get(name, minimum), max=maximum)


def check_bounds(low: float, high: float) -> None:
    """Raise ValueError unless both bounds are finite and low < high."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"bounds must be finite, got low={low} and high={high}")
    if not low < high:
        raise ValueError(f"low < high must hold, got low={low} and high={high}; swap them or fix the value outside")


def as_float_array(values: Any) -> NDArray[np.float64] | None:
    """A copy as float64, or None for anything but real numbers: text, complex numbers, ragged rows.

    >>> as_float_array([1, 2.5]), as_float_array(["1", "2.5"]), as_float_array([1j])
    (array([1. , 2.5]), None, None)
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and any(isinstance(each, NOT_REAL) for each in array.flat):
            return None
        return array.astype(np.float64) if array.dtype.kind in "biufO" else None
    except Exception:  # user objects may raise anything when converted
        return None


def as_finite_array(values: Any, what: str) -> NDArray[np.float64]:
    """Return an array of finite numbers; ValueError names them by `what`."""
    numbers = as_float_array(values)
    if numbers is None:
        raise ValueError(f"{what} must be numbers, got {values!r}")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{what} must be finite, got {values!r}")
    return numbers


def as_float(value: Any, requirement: str) -> float:
    """Return a float, infinite for an int or fraction beyond float64; ValueError begins with the requirement."""
    try:
        kind = getattr(getattr(value, "dtype", None), "kind", "?")  # of the numbers in an array, by NumPy's letter
        if not isinstance(value, NOT_REAL) and kind not in "cUS":
            return float(value)
    except OverflowError:
        return -math.inf if isinstance(value, Rational) and value < 0 else math.inf
    except Exception:  # a user's number may raise anything
        pass
    raise ValueError(f"{requirement}, got {value!r}")


def as_losses(losses: Iterable[Any], n: int) -> list[float]:
    """The losses of n candidates as floats, with infinity for all that are not finite.

    >>> as_losses([0.5, math.nan, -math.inf], 3)
    [0.5, inf, inf]
    """
    values = losses if type(losses) is list else _take_losses(losses, n)
    if len(values) != n:
        m = len(losses) if isinstance(losses, Sized) else len(values) if len(values) < n else f"more than {n}"
        raise ValueError(f"got {n} candidates and {m} losses; tell one loss for each candidate")
    for loss in values:
        if type(loss) is not float:
            values = [as_float(each, "losses must be real numbers") for each in values]
            break
    if not math.isfinite(sum(values)):
        values = [number if math.isfinite(number) else math.inf for number in values]
    return values


def _take_losses(losses: Iterable[Any], n: int) -> list[Any]:
    """The first n + 1 losses; an iterable may be endless."""
    try:
        each = None if isinstance(losses, (str, bytes, set, frozenset, dict)) else iter(losses)
    except TypeError:  # one number, or an array without axes
        each = None
    if each is None:
        raise ValueError(f"tell takes a list of losses, in the order of the candidates, got {losses!r}")
    return list(islice(each, n + 1))


def unfit_signature(
    function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any] | None = None
) -> inspect.Signature | None:
    """The signature of a function that cannot be called so; None if it can, or if nothing is known of it.

    A decorator may change the arguments, so it is that of the wrapper, which `functools.wraps` hides.

    >>> unfit_signature(lambda x, y: 0, [1]), unfit_signature(lambda x, y=2: 0, [1])
    (<Signature (x, y)>, None)
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:  # some functions in C have none, and annotations may fail when they are evaluated
        return None
    try:
        signature.bind(*args, **kwargs or {})
    except TypeError:
        return signature
    return None


def did_you_mean(word: str, known: Iterable[str], show: Callable[[str], str] = str) -> str:
    """The end of a message about a wrong word: the nearest right one, if one is near.

    >>> did_you_mean("serach", ["search", "retrain"]), did_you_mean("x", ["search"])
    ('; did you mean search?', '')
    """
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {show(near[0])}?" if near else ""
