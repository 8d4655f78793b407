"""Checkpoint files: written atomically by one process, with the previous one kept."""

import copy
import io
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asng._files import atomic_write, make_folder_for, offer_previous, previous_path
from asng._untrusted import open_regular

FORMAT = "asng checkpoint 2"
LOADABLE = frozenset({bool, int, float, str, type(None), torch.Tensor, torch.nn.Parameter})


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path` atomically; ValueError names what could not be loaded again."""
    content = {"format": FORMAT, "state": _to_loadable(state)}
    make_folder_for(path)
    with atomic_write(path, keep=previous_path(path)) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's own, which hides that of the disk
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            file.flush()  # the first bytes, if they did not fit either
            raise


def _to_loadable(value: Any, where: str = "") -> Any:
    """Convert a state so that it loads with `weights_only=True`: NumPy's scalars, as of schedules, become Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(_to_loadable(item, f"{where}.{index}") for index, item in enumerate(value))
    if type(value) is dict:
        return {_to_loadable(key, where): _to_loadable(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) is OrderedDict:  # of a model
        value = copy.copy(value)  # with its attribute _metadata
        for key in value:
            value[key] = _to_loadable(value[key], f"{where}.{key}")
    elif type(value) not in LOADABLE and not _is_loadable(value):
        raise ValueError(
            f"a checkpoint cannot hold {where.removeprefix('.')}, which is a {type(value).__name__}; "
            "make it of numbers, text, tensors, lists and dicts"
        )
    return value


def _is_loadable(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # what cannot be pickled may raise anything
        return False
    return True


def load(path: Path) -> dict[str, Any]:
    """Load the state at `path` onto the CPU; ValueError says what is wrong and offers the previous checkpoint."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:  # torch itself does not notice changed weights
                changed = archive.testzip()
            if changed is not None:
                raise ValueError(f"{changed} has changed since it was written")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file may raise anything
            raise ValueError(
                f"{path} is damaged or no checkpoint ({short_reason(error)}){offer_previous(path)}"
            ) from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT or not isinstance(content.get("state"), dict):
        kind = f"an {found}" if str(found).startswith("asng checkpoint") else "no checkpoint of asng"
        raise ValueError(f"{path} is {kind}; this version reads an {FORMAT}{offer_previous(path)}")
    return dict(content["state"])


def short_reason(error: Exception) -> str:
    """The first sentence of an exception's message.

    >>> short_reason(KeyError("model"))
    "it has no 'model'"
    """
    if isinstance(error, KeyError):
        return f"it has no {error}"
    text = (str(error) or type(error).__name__).splitlines()[0]
    return re.split(r"(?<=\w)\. ", text)[0][:200]
