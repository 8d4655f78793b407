"""Results as text, for terminals and notebooks: the decisions of an architecture, the epochs of a search."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from asng.nas.supernet import Values
from asng.space import Variable

MAX_OTHERS = 3  # other values of a decision that are shown
MAX_EPOCHS = 10  # epochs that are shown


def decision_rows(
    space: Mapping[str, Variable],
    values: Values,
    inactive: Collection[str],
    now: Mapping[str, Any],
    largest: Mapping[str, Any],
) -> list[tuple[str, ...]]:
    """Each decision with its value, the value's probability, the largest possible one, and the other values.

    >>> from asng import Categorical
    >>> space = {"act": Categorical(["relu", "tanh"])}
    >>> now, largest = {"act": np.array([0.4, 0.6])}, {"act": np.array([0.25, 0.75])}
    >>> print(format_table(decision_rows(space, {"act": "tanh"}, (), now, largest)))
    decision  value  probability  at most  others
    act       tanh   0.600        0.750    relu 0.400
    """
    rows: list[tuple[str, ...]] = [("decision", "value", "probability", "at most", "others")]
    for name, variable in space.items():
        value = _format_value(values[name])
        if name in inactive:
            rows.append((name, value, "without effect", "", ""))
        elif variable.values() is None:
            rows.append((name, value, "", "", _format_parameters(now[name])))
        else:
            numbers = (math.exp(variable.log_prob(where[name], values[name])) for where in (now, largest))
            others = _others(variable, now[name], values[name])
            rows.append((name, value, *(f"{number:.3f}" for number in numbers), others))
    return rows


def _others(variable: Variable, parameters: Any, value: Any) -> str:
    """The most likely choices beside one; of numbers their distribution."""
    if not isinstance(parameters, np.ndarray):
        return _format_parameters(parameters)
    choices, chosen = variable.values() or (), variable.index(value)
    others = [index for index in np.argsort(-parameters, kind="stable") if index != chosen]
    shown = [f"{_format_value(choices[index])} {parameters[index]:.3f}" for index in others[:MAX_OTHERS]]
    return ", ".join([*shown, "..."] if len(others) > MAX_OTHERS else shown)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else format_rounded(value)


def format_rounded(value: Any) -> str:
    """The repr of a value, with floats of six digits, also in tuples and dicts.

    >>> format_rounded({"rate": 0.1 + 0.2, "op": ("conv", 1 / 3)})
    "{'rate': 0.3, 'op': ('conv', 0.333333)}"
    """
    match value:
        case float():
            return f"{value:.6g}"
        case tuple() if type(value) is tuple and len(value) > 1:
            return f"({', '.join(map(format_rounded, value))})"
        case dict():
            return f"{{{', '.join(f'{key!r}: {format_rounded(item)}' for key, item in value.items())}}}"
    return repr(value)


def _format_parameters(parameters: Any) -> str:
    """The distribution of a number, or whatever a family of the user's own has."""
    fields: dict[str, float] = getattr(parameters, "_asdict", dict)()
    return ", ".join(f"{name} {number:.4g}" for name, number in fields.items()) or str(parameters)


def history_rows(history: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The numbers of records, a line each; of many, some at equal distances with the first and the last.

    >>> history = [{"epoch": 1, "train_loss": 0.51234}, {"epoch": 2, "train_loss": 0.4, "seconds": 1.0}]
    >>> print(format_table(history_rows(history)))
    epoch  train loss  seconds
    1      0.5123
    2      0.4         1
    """
    names = list(dict.fromkeys(name for record in history for name in record if not isinstance(record[name], Mapping)))
    shown = min(len(history), MAX_EPOCHS)
    chosen = [history[round(index * (len(history) - 1) / max(shown - 1, 1))] for index in range(shown)]
    rows = [[name.replace("_", " ") for name in names]]
    rows += [["" if record.get(name) is None else f"{record[name]:.4g}" for name in names] for record in chosen]
    return rows


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns, without spaces at the ends of lines.

    >>> print(format_table([("a", "b"), ("long", "c")]))
    a     b
    long  c
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
