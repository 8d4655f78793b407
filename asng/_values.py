"""Values of variables: compared by type, too, and written as JSON."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from asng._untrusted import shorten


def are_equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    try:
        return bool(np.array_equal(first, second)) if hasattr(first, "shape") else bool(first == second)
    except Exception:  # they cannot be compared, so they are not the same
        return False


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
