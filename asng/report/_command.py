"""The command that repeats a run, from its settings."""

import shlex
from typing import Any

from asng.report._read import RunData
from asng.runs import ARCHITECTURE

COMMANDS = {
    *((name, verb) for name in ("cifar10", "inpainting") for verb in ("search", "retrain")),
    ("digits", "search"),
    ("toy", "sweep"),
}
NOT_FLAGS = {"experiment", "kind", "version", "architecture", "faces"}  # what else a configuration holds


def repeat_command(run: RunData) -> str | None:
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
    if experiment == "digits":
        seeds = {str(record.get("seed")) for record in run.results}
        words += ["--seeds", str(max(1, len(seeds)))]
    return shlex.join([*words, "--out", f"{run.folder}-again"])


def _flag(flag: str, value: Any) -> list[str]:
    """A flag and its values.

    >>> _flag("--test", False), _flag("--lrs", [0.05, 1])
    (['--no-test'], ['--lrs', '0.05', '1'])
    """
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, *map(str, value if isinstance(value, list) else [value])]
