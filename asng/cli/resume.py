"""`asng resume`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from asng._checks import did_you_mean
from asng._files import is_locked
from asng._untrusted import mismatch, read_json_lines
from asng.cli import OF_RUNS, commands, function_of, parts_of_command
from asng.cli.flags import flags_of, parse_command
from asng.cli.terminal import OutputFlags, output_of, print_lines
from asng.report._command import to_flags
from asng.report._read import read_run
from asng.runs import (
    ARCHITECTURE,
    CONFIG,
    ENVIRONMENT,
    LOCK,
    is_own_search,
    read_config,
    seed_folders,
    settings_from_config,
)


@dataclass(frozen=True, kw_only=True)
class ResumeCommand(OutputFlags):
    """Continue an interrupted run. Its folder stores the settings and the folder of the data.

    Finished parts are kept; on the CPU the result is bit-equal to that of an uninterrupted run. Finished runs, and runs
    of another running process, are refused. In a folder of --seeds, all unfinished runs are continued; start the
    remaining seeds by the original command.

    Examples:
      asng resume runs/digits
      asng resume runs/cifar10-asng-seed0 --device cuda:1
      asng resume runs/cifar10-asng-seed0 --data other/place
    """

    run: Path = field(metadata={"metavar": "RUN"})
    """Folder of a search, a retraining, a tuning or a sweep, or the common folder of several seeds."""
    data: Path | None = None
    """Current folder of the data; by default the folder when the run was started."""
    device: str | None = None
    """cpu, cuda, cuda:1 or auto; by default as at the start of the run."""


def run_resume(arguments: Sequence[str]) -> None:
    """`asng resume`."""
    command = parse_command(ResumeCommand, "resume", arguments)
    seeds = seed_folders(command.run)
    unfinished = [run for run in seeds if not read_run(run).is_finished]
    if seeds and not unfinished:
        raise ValueError(f"all {len(seeds)} runs in {command.run} are finished; asng report {command.run} shows them")
    with output_of(command) as output:
        parts = []
        for run in unfinished or [command.run]:
            output.clear()
            resume_one(replace(command, run=run))
            parts.append(dict(output))
            if seeds:
                print_lines(output.line)
        if seeds:
            output.clear()
            output["runs"] = parts
            output.line = f"Continued {len(unfinished)} of {len(seeds)} runs; asng report {command.run} shows all"


def resume_one(command: ResumeCommand) -> None:
    """Continue the run of one folder, whose command fills the output of this one."""
    config = read_config(command.run)
    name = f"{config.get('experiment')} {config.get('kind')}"
    if is_locked(command.run / LOCK):
        raise ValueError(f"{command.run} is running already; asng runs {command.run} shows how far it is")
    if is_own_search(config):
        raise ValueError(
            f"{command.run} is a search of your own; asng report {command.run} shows it, and the same nas.search call "
            "with its checkpoint continues it"
        )
    if read_run(command.run).is_finished:
        longer = "asng digits search --seeds 3" if name == "digits search" else "another --out"
        raise ValueError(
            f"{command.run} is finished; asng report {command.run} shows it, and {longer} makes more of its kind"
        )
    resumable = [known for known in commands() if known not in OF_RUNS and not known.endswith(" evaluate")]
    if name not in resumable:
        near = did_you_mean(name, resumable)
        raise ValueError(f"{command.run / CONFIG} says {name!r}, which is not a command that makes runs{near}")
    words = words_of(command, name, config)
    print_lines(f"Continuing {name} in {command.run}")
    function_of(name)(words)


def words_of(command: ResumeCommand, name: str, config: Mapping[str, Any]) -> list[str]:
    """The words behind the command of a run, which say all that it was started with; ValueError for damaged files."""
    kind, parts = parts_of_command(name)
    flags = {flag.name: flag for flag in flags_of(kind, parts)}
    path = command.run / ENVIRONMENT
    starts = read_json_lines(path, "delete that file") if path.exists() else []
    started: Any = next((each["flags"] for each in reversed(starts) if isinstance(each.get("flags"), dict)), {})
    for flag in flags.values():
        value = started.get(flag.name)
        if value is not None and (fault := mismatch(value, str if flag.kind is Path else flag.kind)):
            raise ValueError(f"{path} is damaged ({flag.name} {fault}); delete that file")
    of = type(parts["settings"]) if parts else get_type_hints(kind)["settings"]
    settings = settings_from_config(of, {"workers": getattr(of, "workers", None), **started, **config}, command.run)
    now = {"data": command.data, "device": command.device, "architecture": command.run / ARCHITECTURE}
    given = {**started, **{each: value for each, value in now.items() if value is not None}, **vars(settings)}
    return to_flags({each: value for each, value in given.items() if each in flags} | {"out": command.run})
