"""The command that repeats a run, from its settings."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from asng.report._read import RunData
from asng.runs import ARCHITECTURE, is_own_search

VERBS = {"search", "retrain", "sweep", "tune"}  # that a run's settings repeat
NOT_FLAGS = {"experiment", "kind", "version", "format", "architecture", "faces"}  # what else a configuration holds


def repeat_commands(runs: Sequence[RunData]) -> list[str]:
    """A command for each folder, without those of no command."""
    folders: dict[str, list[RunData]] = {}
    for run in runs:
        folders.setdefault(str(run.folder), []).append(run)
    return [command for runs in folders.values() if (command := _repeat_command(runs[0], len(runs)))]


def _repeat_command(run: RunData, seeds: int) -> str | None:
    """The command, quoted for a shell, with all settings and a folder of its own; None for a run of no command."""
    is_command = "version" in run.config and not is_own_search(run.config)
    if not is_command or len(run.kind.split()) != 2 or run.kind.split()[1] not in VERBS:
        return None
    flags = {name: value for name, value in run.config.items() if name not in NOT_FLAGS}
    if run.kind.endswith(" retrain"):
        flags["architecture"] = run.folder / ARCHITECTURE
    flags |= {"seeds": seeds if seeds > 1 else None, "out": f"{run.folder}-again"}
    return shlex.join(["asng", *run.kind.split(), *to_flags(flags)])


def to_flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as the words of a command; None is left out.

    >>> to_flags({"test": False, "max_params": None, "lrs": [0.05, 1]})
    ['--no-test', '--lrs', '0.05', '1']
    """
    words = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            words += [f"--{option}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
    return words
