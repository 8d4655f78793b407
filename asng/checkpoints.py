"""One checkpoint file, always whole: written aside, synced, renamed; the one before is kept beside it."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch

FORMAT = "asng checkpoint 1"


def previous(path: Path) -> Path:
    """Where the checkpoint before the newest one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save(path: Path, state: dict[str, Any]) -> None:
    """Put a state in place of the checkpoint at `path`; at every moment a whole one is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new, spare = path.with_name(path.name + ".new"), path.with_name(path.name + ".spare")
    with open(new, "wb") as file:
        torch.save({"format": FORMAT, "state": state}, file)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        spare.unlink(missing_ok=True)
        os.link(path, spare)  # a second name, so that neither rename leaves a gap
        os.replace(spare, previous(path))
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path) -> dict[str, Any]:
    """The state at `path`, on the CPU; a ValueError says what is wrong and offers the one before."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is damaged or no checkpoint ({_first_line(error)}){_offer(path)}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("state"), dict):
        raise ValueError(f"{path} is not a checkpoint of this version of asng{_offer(path)}")
    state: dict[str, Any] = content["state"]
    return state


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _offer(path: Path) -> str:
    before = previous(path)
    if before.exists():
        return f"; the one before it is {before}: rename it to {path.name} to continue from there"
    return "; delete it to start anew"
