"""An architecture as JSON: a version, names and values. The caller reads and writes files."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from asng._untrusted import parse_json, shorten
from asng._values import to_plain
from asng._variable import Variable, check_names
from asng.nas.supernet import Values

VERSION = 1


def to_dict(values: Values) -> dict[str, Any]:
    """An architecture with its version, as JSON can hold it.

    >>> to_dict({"op": "conv", "kernel": (3, 5)})
    {'version': 1, 'values': {'op': 'conv', 'kernel': [3, 5]}}
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"an architecture is a dict of values by their names, got {shorten(values)}")
    plain = {_check_name(name): _convert_value(to_plain, value, name) for name, value in values.items()}
    return {"version": VERSION, "values": plain}


def from_dict(data: Any, space: Mapping[str, Variable] | None = None) -> dict[str, Any]:
    """The values that `to_dict` was given; with a space they are checked, and are its own choices again."""
    if not isinstance(data, Mapping) or not isinstance(data.get("values"), Mapping) or "version" not in data:
        raise ValueError(f'an architecture is {{"version": {VERSION}, "values": {{...}}}}, got {shorten(data)}')
    if data["version"] != VERSION:
        raise ValueError(
            f"the architecture is of version {data['version']!r}, but this asng reads version {VERSION}; "
            "use the asng that wrote it, or a newer one"
        )
    values = dict(data["values"])
    if space is None:
        return values
    if not isinstance(space, Mapping) or not all(isinstance(variable, Variable) for variable in space.values()):
        raise ValueError(f"space must be a dict of names and variables, as space_of returns, got {shorten(space)}")
    check_names(values, space)
    return {name: _convert_value(variable.from_json, values[name], name) for name, variable in space.items()}


def to_json(values: Values) -> str:
    """Write an architecture as text.

    Args:
        values: One value for each decision, by name.

    Returns:
        JSON with a version, names and values.

    Raises:
        ValueError: JSON cannot hold a value; the message names it.

    >>> to_json({"op": "conv"}).split()
    ['{', '"version":', '1,', '"values":', '{', '"op":', '"conv"', '}', '}']
    """
    return json.dumps(to_dict(values), indent=2) + "\n"


def from_json(text: str, space: Mapping[str, Variable] | None = None) -> dict[str, Any]:
    """Read an architecture that `to_json` wrote.

    Args:
        text: JSON, as `to_json` writes it.
        space: The space of the values. Lists become tuples where its choices are tuples.

    Returns:
        One value for each decision, by name.

    Raises:
        ValueError: It is not an architecture, has another version, or does not fit the space.

    >>> from asng import Categorical
    >>> from_json(to_json({"kernel": (3, 5)}), {"kernel": Categorical([(3, 3), (3, 5)])})
    {'kernel': (3, 5)}
    """
    try:
        data = parse_json(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"an architecture is JSON, got {shorten(text)} ({error})") from None
    return from_dict(data, space)


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"names of decisions are strings, got {name!r}")
    return name


def _convert_value(convert: Callable[[Any], Any], value: Any, name: str) -> Any:
    """Convert a value; an error says which variable it belongs to."""
    try:
        return convert(value)
    except ValueError as error:
        raise ValueError(f"{error} (variable {name!r})") from None
