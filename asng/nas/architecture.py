"""An architecture as JSON: a version, names and values. The caller reads and writes files."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from asng.nas.selection import Values, contains
from asng.space import Categorical, Real, Variable

VERSION = 1


def to_dict(values: Values) -> dict[str, Any]:
    """An architecture with its version, as JSON can hold it.

    >>> to_dict({"op": "conv", "kernel": (3, 5)})
    {'version': 1, 'values': {'op': 'conv', 'kernel': [3, 5]}}
    """
    return {"version": VERSION, "values": {_name(name): _to_plain(value, name) for name, value in values.items()}}


def from_dict(data: Any, space: Mapping[str, Variable] | None = None) -> dict[str, Any]:
    """The values that `to_dict` was given; with a space they are checked, and are its own choices again."""
    if not isinstance(data, Mapping) or not isinstance(data.get("values"), Mapping) or "version" not in data:
        raise ValueError(f'an architecture is {{"version": {VERSION}, "values": {{...}}}}, got {_shorten(data)}')
    if data["version"] != VERSION:
        raise ValueError(
            f"the architecture is of version {data['version']!r}, but this asng reads version {VERSION}; "
            "use the asng that wrote it, or a newer one"
        )
    values = dict(data["values"])
    if space is None:
        return values
    missing = [name for name in space if name not in values]
    if missing:
        raise ValueError(f"the architecture has no value for {', '.join(map(repr, missing[:5]))}, which the space has")
    unknown = [name for name in values if name not in space]
    if unknown:
        raise ValueError(f"the space has no {', '.join(map(repr, unknown[:5]))}, which the architecture names")
    return {name: _read(variable, values[name], name) for name, variable in space.items()}


def to_json(values: Values) -> str:
    """An architecture as text."""
    return json.dumps(to_dict(values), indent=2) + "\n"


def from_json(text: str, space: Mapping[str, Variable] | None = None) -> dict[str, Any]:
    """The values that `to_json` was given; lists match choices that are tuples when there is a space.

    >>> from_json(to_json({"kernel": (3, 5)}), {"kernel": Categorical([(3, 3), (3, 5)])})
    {'kernel': (3, 5)}
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"an architecture is JSON, got {_shorten(text)} ({error})") from None
    return from_dict(data, space)


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"names of decisions are strings, got {name!r}")
    return name


def _to_plain(value: Any, name: str) -> Any:
    match value:
        case np.generic():
            return _to_plain(value.item(), name)
        case float() if not math.isfinite(value):
            pass
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [_to_plain(item, name) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _to_plain(item, name) for key, item in value.items()}
    raise ValueError(f"JSON cannot hold {value!r}, which is in the value of {name!r}; choose among names or numbers")


def _read(variable: Variable, value: Any, name: str) -> Any:
    if isinstance(variable, Categorical):
        fitting = [choice for choice in variable.choices if _writes(choice, value)]
        if len(fitting) > 1:
            raise ValueError(f"{value!r} may be any of {fitting} of {name!r}, which JSON cannot tell apart")
        if fitting:
            return fitting[0]
    elif contains(variable, value):
        return float(value) if isinstance(variable, Real) else value
    raise ValueError(f"{value!r} is outside of {variable}, which is {name!r}")


def _writes(choice: Any, value: Any) -> bool:
    """True if a choice is written as this value; 1, 1.0 and true are three different ones."""
    try:
        return json.dumps(_to_plain(choice, ""), sort_keys=True) == json.dumps(value, sort_keys=True)
    except ValueError:  # it cannot be written
        return False


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
