"""The command that repeats a run, from its settings."""

import shlex
from collections.abc import Sequence
from typing import Any

from asng.report._read import RunData
from asng.runs import ARCHITECTURE

COMMANDS = {
    *((name, verb) for name in ("cifar10", "inpainting") for verb in ("search", "retrain")),
    ("digits", "search"),
    ("toy", "sweep"),
}
NOT_FLAGS = {"experiment", "kind", "version", "architecture", "faces"}  # what else a configuration holds


def repeat_commands(runs: Sequence[RunData]) -> list[str]:
    """A command for each folder, without those of no command."""
    folders: dict[str, list[RunData]] = {}
    for run in runs:
        folders.setdefault(str(run.folder), []).append(run)
    commands = [_repeat_command(members[0], len(members)) for members in folders.values()]
    return [command for command in commands if command is not None]


def _repeat_command(run: RunData, seeds: int) -> str | None:
    """The command, quoted for a shell, with all settings and a folder of its own; None for a run of no command."""
    config = run.config
    experiment, kind = config.get("experiment"), config.get("kind")
    if not isinstance(experiment, str) or not isinstance(kind, str) or (experiment, kind) not in COMMANDS:
        return None
    words = ["asng", experiment, kind]
    if kind == "retrain":
        words += ["--architecture", str(run.folder / ARCHITECTURE)]
    for name, value in config.items():
        if name not in NOT_FLAGS and value is not None:
            words += _flag(f"--{name.replace('_', '-')}", value)
    if seeds > 1:
        words += ["--seeds", str(seeds)]
    return shlex.join([*words, "--out", f"{run.folder}-again"])


def _flag(flag: str, value: Any) -> list[str]:
    """A flag and its values.

    >>> _flag("--test", False), _flag("--lrs", [0.05, 1])
    (['--no-test'], ['--lrs', '0.05', '1'])
    """
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, *map(str, value if isinstance(value, list) else [value])]
