"""A result as tables of text for terminals and notebooks, and as the folder of a run for reports."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from asng import __version__
from asng._asktell import Optimizer, describe_distribution
from asng._files import RUN_FORMAT, as_path, atomic_write, make_folder_for
from asng.nas._extract import walk
from asng.nas.architecture import to_dict
from asng.nas.decisions import Decision
from asng.nas.supernet import Values
from asng.space import Variable

if TYPE_CHECKING:
    from asng.nas.result import Front, SearchResult

MAX_NODES = 2000  # of a tree of decisions; a larger one is left out
MAX_OTHERS = 3  # other values of a decision that are shown
MAX_EPOCHS = 10  # epochs that are shown


def save_result(result: "SearchResult", given: str | Path, settings: Mapping[str, Any], front: "Front | None") -> None:
    """Write `SearchResult.save`'s files; the configuration comes last, so that a torn folder is no run."""
    folder = as_path(given, "folder")
    if not isinstance(settings, Mapping):
        raise ValueError(f"settings must be a dict, such as {{'seed': 0}}, got {settings!r}")
    if taken := {"format", "version"} & settings.keys():
        raise ValueError(f"settings must not contain {min(taken)!r}, which asng writes itself; use another name")
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} already holds a run; save the result in another folder")
    optimizer = result.arch_optimizer
    known = {"kind": "search", "version": __version__, "format": RUN_FORMAT, "optimizer": type(optimizer).__name__}
    summary = {
        "feasible": result.feasible,
        "probability": result.probability,
        "certainty": result.certainty,
        "inactive": list(result.inactive),
        "limits": result.limits,
        "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
        "machine": f"torch {torch.__version__}",
        "distribution": describe_distribution(optimizer),
    }
    if result.oneshot is not None:
        summary["tree"] = decision_tree(result.oneshot.supernet.model)
    if front is not None:
        points = [{"score": a.score, "costs": a.costs, "values": to_dict(a.values)["values"]} for a in front.points]
        others = [{"score": a.score, "costs": a.costs} for a in front.others]
        summary["front"] = {"measures": front.measures, "points": points, "others": others}
    lines = [_dump_json(record, "the history") for record in result.history]
    files = {
        "metrics.jsonl": "".join(f"{line}\n" for line in lines),
        "architecture.json": _dump_json(to_dict(result.values), "the architecture"),
        "summary.json": _dump_json(summary, "the result"),
        "config.json": _dump_json({**known, "epochs": len(lines), **settings}, "settings"),
    }
    make_folder_for(folder / "config.json")
    for name, text in files.items():
        with atomic_write(folder / name) as file:
            file.write(text.encode())


def decision_tree(model: nn.Module) -> list[dict[str, Any]] | None:
    """The decisions of a model where they lie in it, as plain data; None for more than 2,000 of them.

    A node has the name of its decision, for numbers their range, and by option or block the decisions inside. One that
    stands further out already, such as the width of a whole network, is not repeated inside.

    >>> from asng import nas
    >>> width = nas.Width("width", 4, 8)
    >>> decision_tree(nn.Sequential(nas.Linear(2, width), nas.OneOf("op", {"a": nas.Linear(width, 1), "b": nn.Tanh()})))
    [{'name': 'width', 'range': [4, 8]}, {'name': 'op'}]
    """
    nodes = _tree(model, set(), count := [MAX_NODES])
    return nodes if count[0] >= 0 else None


def _tree(root: nn.Module, outside: set[str], left: list[int]) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = []
    seen = set(outside)
    for module in walk(root, lambda module: () if isinstance(module, Decision) else module._modules.values()):
        if not isinstance(module, Decision) or module.name in seen or left[0] < 0:
            continue
        left[0] -= 1
        seen.add(module.name)
        node: dict[str, Any] = {"name": module.name}
        if (ends := module.variable.range()) is not None:
            node["range"] = list(ends)
        if module.variable.log:
            node["log"] = True  # its std is that of the logarithm
        inside = {label: _tree(part, seen, left) for label, part in module.branches().items()}
        if any(inside.values()):
            node["inside"] = {label: part for label, part in inside.items() if part}
        nodes.append(node)
    return nodes


def _dump_json(data: Mapping[str, Any], what: str) -> str:
    """JSON, with null for NaN and infinity; ValueError for what JSON cannot hold."""
    try:
        return json.dumps(_to_finite(data), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} cannot be saved as JSON ({error}); give numbers, texts and lists of them") from None


def _to_finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_finite(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decision_rows(
    optimizer: Optimizer, values: Values, inactive: Collection[str], largest: Mapping[str, Any]
) -> list[tuple[str, ...]]:
    """Each decision with its value, the value's probability, the largest possible one, and the other values.

    >>> from asng import ASNG, Categorical
    >>> optimizer = ASNG({"act": Categorical(["relu", "tanh"])}, initial={"act": [0.4, 0.6]})
    >>> print(format_table(decision_rows(optimizer, {"act": "tanh"}, (), {"act": np.array([0.25, 0.75])})))
    decision  value  probability  at most  others
    act       tanh   0.600        0.750    relu 0.400
    """
    rows: list[tuple[str, ...]] = [("decision", "value", "probability", "at most", "others")]
    now = optimizer.distribution()
    for name, variable in optimizer.space.items():
        value = _format_value(values[name])
        if name in inactive:
            rows.append((name, value, "without effect", "", ""))
        elif variable.values() is None:
            rows.append((name, value, "", "", _format_parameters(now[name])))
        else:
            numbers = (math.exp(variable.log_prob(where[name], values[name])) for where in (now, largest))
            others = _format_others(variable, now[name], values[name])
            rows.append((name, value, *(f"{number:.3f}" for number in numbers), others))
    return rows


def _format_others(variable: Variable, parameters: Any, value: Any) -> str:
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
    """The distribution of a number, or the parameters of a family of the user's own."""
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
