"""The commands of all image experiments: `search`, `retrain` and `evaluate`."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from asng._files import check_writable
from asng.cli import terminal
from asng.cli.estimate import describe_load
from asng.cli.flags import parse_command
from asng.cli.terminal import Output, OutputFlags, SeedFlags
from asng.experiments._estimates import estimate_search, estimate_training, load_per_core
from asng.experiments._image_runs import evaluate, read_settings, retrain, search
from asng.experiments._images import data_folder
from asng.experiments._task import DataSettings, Task
from asng.report._command import to_flags
from asng.runs import ARCHITECTURE, CHECKPOINT, CONFIG, read_config, settings_from_config

FIRST_STEP = (
    "The first step is captured as a CUDA graph, and fused kernels that Triton has not cached yet are compiled before "
    "it, on all cores; both together may take minutes."
)


@dataclass(frozen=True, kw_only=True)
class JobFlags(SeedFlags):
    """Flags of all searches and trainings on images."""

    settings: Any
    where: Any
    small: bool = False
    """Other defaults, for two cores: a smaller network, fewer images and steps; --small --help shows them."""


@dataclass(frozen=True, kw_only=True)
class SearchFlags(JobFlags):
    """Flags of all searches."""

    capture: bool = True
    """Launch kernels one by one; by default, on a GPU, each step is one CUDA graph, several times as fast."""


@dataclass(frozen=True, kw_only=True)
class RetrainFlags(JobFlags):
    """Flags of all trainings from scratch."""

    run: Path | None = field(default=None, metadata={"metavar": "RUN"})
    """Folder of a search; the training is written to a folder in it."""
    architecture: str | None = None
    """Instead of the result of RUN: a file such as architecture.json, or random (by the seed); for faces also base."""


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags(OutputFlags):
    """Flags of all tests."""

    run: Path = field(metadata={"metavar": "RUN"})
    """Folder of a search or of a retraining."""
    settings: Any
    where: Any


def parse_verb(task: type[Task], verb: str, arguments: Sequence[str], **presets: Any) -> Any:
    """Parse the flags of a verb, with the settings of a task; their docstring is the help."""
    command, parts = parts_of_verb(task, verb)
    return parse_command(command, f"{task.name} {verb}", arguments, presets=presets, **parts)


def parts_of_verb(task: type[Task], verb: str) -> tuple[type, dict[str, Any]]:
    """The flags of a verb, and for fields of them that are dataclasses the ones with the defaults."""
    command: type
    command, settings = {
        "search": (SearchFlags, task.search_settings),
        "retrain": (RetrainFlags, task.train_settings),
        "evaluate": (EvaluateFlags, task.evaluate_settings),
    }[verb]
    return command, {"settings": settings(), "where": task.data_settings()}


def run_search(task: type[Task], arguments: Sequence[str]) -> None:
    """`asng EXPERIMENT search`."""
    flags = parse_verb(task, "search", arguments, small=task.small_search)

    def run_one(settings: Any, output: Output) -> None:
        default = Path("runs") / f"{_prefix(task, flags)}-{task.label(settings)}-seed{settings.seed}"
        folder = terminal.seed_folder(flags, default, settings.seed)
        with terminal.command_progress_bar(f"{task.name} search", folder) as progress:
            summary = search(loaded, settings, folder, progress, capture=flags.capture, **_options(flags, folder))
        if not summary["feasible"]:
            terminal.print_lines("No architecture met the limit; this is the nearest one.")
        terminal.print_lines(*loaded.describe_found(summary, folder))
        _fill(output, folder, summary)
        command = next_command(task.name, "retrain", folder, flags.where, small=flags.small)
        output.line = f"Train it from scratch: {command}"

    with terminal.output_of(flags) as output:
        loaded = _load_task(task, flags, output)
        estimate = partial(estimate_search, loaded, flags.settings, capture=flags.capture)
        terminal.run_seeds(flags, run_one, estimate, output)


def run_retrain(task: type[Task], arguments: Sequence[str]) -> None:
    """`asng EXPERIMENT retrain`."""
    flags = parse_verb(task, "retrain", arguments, small=task.small_train)
    config = {} if flags.run is None else read_config(flags.run, task.name)
    searched = {**vars(task.small_search if flags.small else task.search_settings()), **config}
    if config.get("kind") == "search":
        settings_from_config(task.search_settings, searched, flags.run)  # before anything is made of them
    inherited = {name: getattr(flags.settings, name) or searched[name] for name in task.inherited}
    flags = replace(flags, settings=replace(flags.settings, **inherited))
    differing = "".join(f"-{value}" for name, value in inherited.items() if config.get(name, value) != value)

    def choose(settings: Any) -> dict[str, Any]:
        return _choose_values(task, replace(flags, settings=settings), searched)

    def run_one(settings: Any, output: Output) -> None:
        of_file = f"{_prefix(task, flags)}-{Path(flags.architecture or '').stem}"
        default = Path("runs", of_file) if flags.run is None else flags.run / (flags.architecture or "retrain")
        folder = terminal.seed_folder(flags, Path(f"{default}{differing}-seed{settings.seed}"), settings.seed)
        own = choose(settings)
        terminal.print_lines(*loaded.describe_training(settings, own))
        with terminal.command_progress_bar(f"{task.name} retrain", folder) as progress:
            summary = retrain(loaded, settings, own, folder, progress, **_options(flags, folder))
        terminal.print_lines(*loaded.describe_trained(summary, folder))
        _fill(output, folder, summary)
        output.line = f"Test it: {next_command(task.name, 'evaluate', folder, flags.where)}"

    values = choose(flags.settings)  # what is wrong with it is said before data is loaded
    with terminal.output_of(flags) as output:
        loaded = _load_task(task, flags, output)
        if flags.dry_run:
            each = [replace(flags.settings, seed=n) for n in terminal.seeds_of(flags.seeds, flags.settings.seed)]
            terminal.print_lines(*dict.fromkeys(line for s in each for line in loaded.describe_training(s, choose(s))))
        terminal.run_seeds(flags, run_one, partial(estimate_training, loaded, flags.settings, values), output)


def run_evaluate(task: type[Task], arguments: Sequence[str]) -> None:
    """`asng EXPERIMENT evaluate`."""
    flags = parse_verb(task, "evaluate", arguments)
    config = read_config(flags.run, task.name, needs=CHECKPOINT)  # before anything slow
    read_settings(task, flags.run, config)  # likewise
    check_writable(flags.run / CONFIG)
    with terminal.output_of(flags) as output:
        with terminal.command_progress_bar(task.loading) as progress:
            loaded = task.load_for_test(flags.where, config, flags.settings, progress)
        terminal.print_lines(*loaded.describe_data())
        with terminal.command_progress_bar(f"testing on {len(loaded.test):,} {task.noun}") as progress:
            report = evaluate(loaded, flags.run, config, progress, flags.settings)
        *lines, output.line = loaded.describe_test(report, flags.run)
        terminal.print_lines(*lines)
        output |= {"folder": flags.run, **report}


def _options(flags: Any, folder: Path) -> dict[str, Any]:
    """The flags of a run besides its settings, kept for `asng resume`; paths are absolute."""
    where = vars(flags.where) | {"data": data_folder(flags.where.data)}
    given = {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in where.items()}
    given |= {name: getattr(flags, name) for name in ("small", "capture", "tensorboard") if hasattr(flags, name)}
    return {"flags": given, "callback": terminal.tensorboard(flags, folder)}


def _fill(output: Output, folder: Path, summary: Mapping[str, Any]) -> None:
    """The output of a run: its folder, its summary, and the figures that seeds are compared by."""
    figures = {name: number for name, number in summary["last"].items() if name.startswith(("test_", "valid_"))}
    figures |= {"parameters": summary["parameters"]} if "parameters" in summary else {}
    output |= {"folder": folder, "architecture": folder / ARCHITECTURE, **summary}
    output["figures"] = figures or {"train_loss": summary["last"].get("train_loss")}


def _load_task(task: type[Task], flags: Any, output: Output) -> Task:
    if not flags.dry_run:  # before the data, which may take minutes
        check_writable((flags.out or getattr(flags, "run", None) or Path("runs")) / CONFIG)
    with terminal.command_progress_bar(task.loading) as progress:
        load = task.load_for_estimate if flags.dry_run else task.load
        loaded = load(flags.where, progress)
    if flags.dry_run:
        output["data"] = task.describe_source(flags.where)
        terminal.print_lines(f"Data: {output['data']}")
    terminal.print_lines(*loaded.describe_data(flags.settings))
    if not flags.dry_run:  # which says it beside its times
        terminal.print_lines(*describe_load(load_per_core(), torch.get_num_threads()))
    if loaded.device.type == "cuda" and getattr(flags, "capture", True):
        terminal.print_lines(FIRST_STEP)
    return loaded


def _choose_values(task: type[Task], flags: Any, searched: dict[str, Any]) -> dict[str, Any]:
    """The architecture of a search, of a file, or of a baseline."""
    if flags.architecture in task.baselines:
        if flags.run is not None and searched.get("kind") != "search":
            raise ValueError(
                f"{flags.run} is not a search; --architecture {flags.architecture} needs the folder of a search"
            )
        return task.baseline_values(flags.architecture, flags.settings.seed, searched, flags.run)
    if (flags.run is None) == (flags.architecture is None):
        words = " or ".join(task.baselines)
        raise ValueError(f"give either the folder of a search, or --architecture with a JSON file or the word {words}")
    return task.load_values(flags.run or Path(flags.architecture), searched)


def _prefix(task: type[Task], flags: Any) -> str:
    return f"{task.name}{'-small' if flags.small else ''}"


def next_command(experiment: str, verb: str, folder: Path, where: DataSettings, *, small: bool = False) -> str:
    """The next command for a run, on the same data and at the same size, quoted for a shell.

    >>> next_command("cifar10", "retrain", Path("runs/one"), DataSettings(data=Path("my images")), small=True)
    "asng cifar10 retrain runs/one --small --data 'my images'"
    """
    given = {f.name: getattr(where, f.name) for f in fields(where) if getattr(where, f.name) != f.default}
    return shlex.join(["asng", experiment, verb, str(folder), *to_flags({"small": small or None, **given})])
