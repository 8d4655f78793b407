"""Values of variables: compared by type, too, and written as JSON."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from asng._untrusted import shorten

ATOMS = {int, float, str, bool}  # nothing to copy, as most lists hold


def are_equal(first: Any, second: Any) -> bool:
    """Whether two values are equal, also arrays in lists, tuples and dicts; NaN in arrays equals itself."""
    if first is second:
        return True
    kind = type(first)
    try:
        if kind is type(second) and kind in (list, tuple):
            return len(first) == len(second) and all(map(are_equal, first, second))
        if kind is type(second) is dict:
            return first.keys() == second.keys() and all(are_equal(first[key], second[key]) for key in first)
        return _are_equal_arrays(first, second) if hasattr(first, "shape") else bool(first == second)
    except Exception:  # they cannot be compared, so they are not the same
        return False


def _are_equal_arrays(first: Any, second: Any) -> bool:
    kind = getattr(getattr(first, "dtype", None), "kind", "")
    if kind == "O":
        return first.shape == np.shape(second) and all(map(are_equal, first.flat, np.asarray(second).flat))
    return bool(np.array_equal(first, second, equal_nan=kind in ("f", "c")))  # which text has not


def find_value(values: Sequence[Any], value: Any) -> int | None:
    """The position of a value, which has the same type, too; None where it is not there."""
    for position, choice in enumerate(values):
        if value is choice:  # as drawn, and quick
            return position
    for position, choice in enumerate(values):
        if type(value) is type(choice) and are_equal(value, choice):
            return position
    return None


def check_distinct(choices: tuple[Any, ...]) -> None:
    """Raise ValueError for repeated choices."""
    with suppress(Exception):  # unhashable choices, such as lists
        if len(set(choices)) == len(choices):
            return
    for position, choice in enumerate(choices):
        if any(are_equal(choice, other) for other in choices[:position]):
            raise ValueError(f"choice {choice!r} is repeated in {choices!r}; name each choice once")


def is_hashable(value: Any) -> bool:
    """Whether a value has no list, dict, set or array in it, as far as Python knows."""
    try:
        hash(value)
    except Exception:
        return False
    return True


def copy_values(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Values for a function that may change them: of these names, lists, dicts, sets and arrays are copied, too.

    So are those in lists, tuples and dicts. What is in sets and arrays, objects of subclasses and other objects are
    shared. Copies of models may be large, and what is compared by identity would not be found again.
    """
    copied = dict(values)
    try:
        for name in names:
            copied[name] = _copy_containers(copied[name])
    except RecursionError:
        raise ValueError("a choice holds itself, or is nested too deeply; give a flat one") from None
    return copied


def _copy_containers(value: Any) -> Any:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([item if type(item) in ATOMS else _copy_containers(item) for item in value])
    if kind is dict:
        return {key: _copy_containers(item) for key, item in value.items()}
    return value.copy() if kind in (set, bytearray, np.ndarray) else value


def to_plain(value: Any) -> Any:
    """A value as JSON can hold it: tuples become lists, NumPy's numbers Python's; raises ValueError for others.

    >>> to_plain((np.int64(3), "x"))
    [3, 'x']
    """
    match value:
        case np.generic():
            return to_plain(value.item())
        case float() if not math.isfinite(value):
            pass
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list() | dict():
            with suppress(RecursionError):  # it holds itself, or is nested too deeply
                if not isinstance(value, dict):
                    return [to_plain(item) for item in value]
                if all(isinstance(key, str) for key in value):
                    return {key: to_plain(item) for key, item in value.items()}
    shown = shorten(value)
    raise ValueError(f"choices are saved as JSON, which holds names, numbers and lists of them, but not {shown}")


def to_json_text(choice: Any) -> str | None:
    """A choice as JSON text, which tells 1, 1.0 and true apart; None where it cannot be written."""
    try:
        return json.dumps(to_plain(choice), sort_keys=True)
    except ValueError:
        return None
