"""A result as the folder of a run, for reports."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from asng import __version__
from asng._files import atomic_write, make_folder_for
from asng.nas.architecture import to_dict

if TYPE_CHECKING:
    from asng.nas.result import SearchResult


def save_result(result: "SearchResult", folder: Path, settings: Mapping[str, Any]) -> None:
    """Write `SearchResult.save`'s files; the configuration comes last, so that a torn folder is no run."""
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} holds a run already; save the result in another folder")
    optimizer = result.arch_optimizer
    known = {"kind": "search", "version": __version__, "optimizer": type(optimizer).__name__}
    summary = {
        "feasible": result.feasible,
        "probability": result.probability,
        "certainty": result.certainty,
        "inactive": list(result.inactive),
        "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
        "machine": f"torch {torch.__version__}",
        "distribution": _labeled_distribution(result),
    }
    lines = [_to_json(record, "the history") for record in result.history]
    files = {
        "metrics.jsonl": "".join(f"{line}\n" for line in lines),
        "architecture.json": _to_json(to_dict(result.values), "the architecture"),
        "summary.json": _to_json(summary, "the result"),
        "config.json": _to_json({**known, "epochs": len(lines), **settings}, "settings"),
    }
    make_folder_for(folder / "config.json")
    for name, text in files.items():
        with atomic_write(folder / name) as file:
            file.write(text.encode())


def _labeled_distribution(result: "SearchResult") -> dict[str, dict[str, float]]:
    """For each decision the probabilities by choice, or mean and standard deviation of a number."""
    found = {}
    for name, parameters in result.arch_optimizer.distribution().items():
        choices = result.arch_optimizer.space[name].values()
        if isinstance(parameters, np.ndarray) and choices is not None:
            found[name] = dict(zip(map(str, choices), parameters.tolist(), strict=True))
        elif hasattr(parameters, "std"):
            found[name] = {"mean": float(parameters.mean), "std": float(parameters.std)}
    return found


def _to_json(data: Mapping[str, Any], what: str) -> str:
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
