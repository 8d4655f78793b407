"""The commands of all image experiments: `search`, `retrain` and `evaluate`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from asng.cli.terminal import Flat, parse_command, print_lines, progress_bar
from asng.experiments._image_runs import evaluate, retrain, search
from asng.experiments._task import DataSettings, Task
from asng.runs import CHECKPOINT, read_config, settings_from_config

# A folder that is named without a flag.
SomeRun = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunOrNone = Annotated[
    Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]", help_behavior_hint="(optional)")
]
Settings = TypeVar("Settings")
Where = TypeVar("Where", bound=DataSettings)


@dataclass(frozen=True, kw_only=True)
class SearchFlags(Generic[Settings, Where]):
    """Flags of all searches."""

    settings: Annotated[Settings, Flat]
    where: Annotated[Where, Flat] = tyro.MISSING_NONPROP
    small: bool = False
    """Other defaults, for two cores: a smaller network, fewer images and steps."""
    out: Path | None = None
    """Folder of the run; by default runs/EXPERIMENT-..., named after what is searched."""
    capture: bool = True
    """On a GPU: run each step as one CUDA graph, several times as fast; --no-capture launches kernels one by one."""


@dataclass(frozen=True, kw_only=True)
class RetrainFlags(Generic[Settings, Where]):
    """Flags of all trainings from scratch."""

    run: RunOrNone = None
    """Folder of a search."""
    settings: Annotated[Settings, Flat]
    where: Annotated[Where, Flat] = tyro.MISSING_NONPROP
    architecture: str | None = None
    """Instead of what RUN found: a file as architecture.json, or a baseline, such as random, drawn from the seed."""
    small: bool = False
    """Other defaults, for two cores: a smaller network, fewer images and steps."""
    out: Path | None = None
    """Folder of the run; RUN/retrain-seedS, RUN/BASELINE-seedS, or runs/EXPERIMENT-NAME-seedS."""


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags(Generic[Settings, Where]):
    """Flags of all tests."""

    run: SomeRun
    """Folder of a search or of a retraining."""
    settings: Annotated[Settings, Flat] = tyro.MISSING_NONPROP
    where: Annotated[Where, Flat] = tyro.MISSING_NONPROP


def run_search(task: type[Task], arguments: Sequence[str]) -> None:
    """`asng EXPERIMENT search`."""
    title = f"{task.name} search"
    flags = _parse(SearchFlags, title, task, task.search_settings, arguments, small=task.small_search)
    name = f"{_prefix(task, flags)}-{task.label(flags.settings)}-seed{flags.settings.seed}"
    folder = flags.out or Path("runs") / name
    loaded = _load(task, flags)
    with progress_bar(title, folder) as progress:
        summary = search(loaded, flags.settings, folder, progress, capture=flags.capture)
    if not summary["feasible"]:
        print_lines("No architecture met the limit; this is the nearest one.")
    print_lines(*loaded.describe_found(summary, folder))
    command = next_command(task.name, "retrain", folder, flags.where, small=flags.small)
    print_lines(f"Train it from scratch: {command}")


def run_retrain(task: type[Task], arguments: Sequence[str]) -> None:
    """`asng EXPERIMENT retrain`."""
    title = f"{task.name} retrain"
    flags = _parse(RetrainFlags, title, task, task.train_settings, arguments, small=task.small_train)
    config = {} if flags.run is None else read_config(flags.run, task.name)
    if config.get("kind") == "search":
        settings_from_config(task.search_settings, config, flags.run)  # before anything is made of them
    searched = {**vars(task.small_search if flags.small else task.search_settings()), **config}
    inherited = {name: getattr(flags.settings, name) or searched[name] for name in task.inherited}
    settings = replace(flags.settings, **inherited)
    values = _choose_values(task, flags, searched)
    differing = [f"-{value}" for name, value in inherited.items() if config.get(name, value) != value]
    folder = _retrain_folder(task, flags, "".join(differing))
    loaded = _load(task, replace(flags, settings=settings))
    with progress_bar(title, folder) as progress:
        summary = retrain(loaded, settings, values, folder, progress)
    print_lines(*loaded.describe_trained(summary, folder))
    print_lines(f"Test it: {next_command(task.name, 'evaluate', folder, flags.where)}")


def run_evaluate(task: type[Task], arguments: Sequence[str]) -> None:
    """`asng EXPERIMENT evaluate`."""
    flags = _parse(EvaluateFlags, f"{task.name} evaluate", task, task.evaluate_settings, arguments)
    config = read_config(flags.run, task.name, needs=CHECKPOINT)  # before anything slow
    with progress_bar(task.loading) as progress:
        loaded = task.load_for_test(flags.where, config, flags.settings, progress)
    print_lines(*loaded.describe_data())
    with progress_bar(f"testing on {len(loaded.test):,} {task.noun}") as progress:
        report = evaluate(loaded, flags.run, config, progress, flags.settings)
    print_lines(*loaded.describe_test(report, flags.run))


def _parse(flags: Any, title: str, task: type[Task], settings: type, arguments: Sequence[str], **presets: Any) -> Any:
    """Parse the flags of a verb, with the settings of a task; their docstring is the help."""
    return parse_command(flags[settings, task.data_settings], title, arguments, settings.__doc__, **presets)


def _load(task: type[Task], flags: Any) -> Task:
    with progress_bar(task.loading) as progress:
        loaded = task.load(flags.where, progress)
    print_lines(*loaded.describe_data(flags.settings))
    return loaded


def _choose_values(task: type[Task], flags: Any, searched: dict[str, Any]) -> dict[str, Any]:
    """The architecture of a search, of a file, or of a baseline."""
    if flags.architecture in task.baselines:
        if flags.run is not None and searched.get("kind") != "search":
            raise ValueError(f"{flags.run} is no search, beside which {flags.architecture} could be trained")
        return task.baseline_values(flags.architecture, flags.settings.seed, searched, flags.run)
    if (flags.run is None) == (flags.architecture is None):
        words = " or ".join(task.baselines)
        raise ValueError(f"give either the folder of a search, or --architecture with a JSON file or the word {words}")
    return task.load_values(flags.run or Path(flags.architecture), searched)


def _retrain_folder(task: type[Task], flags: Any, ending: str) -> Path:
    """The folder of a training: in that of the search, or one of its own."""
    ending += f"-seed{flags.settings.seed}"
    if flags.out is not None:
        return Path(flags.out)
    if flags.run is not None:
        return Path(flags.run) / f"{flags.architecture or 'retrain'}{ending}"
    return Path("runs") / f"{_prefix(task, flags)}-{Path(flags.architecture).stem}{ending}"


def _prefix(task: type[Task], flags: Any) -> str:
    return f"{task.name}{'-small' if flags.small else ''}"


def next_command(experiment: str, verb: str, folder: Path, where: DataSettings, *, small: bool = False) -> str:
    """The next command for a run, on the same data and at the same size, quoted for a shell.

    >>> next_command("cifar10", "retrain", Path("runs/one"), DataSettings(data=Path("my images")), small=True)
    "asng cifar10 retrain runs/one --small --data 'my images'"
    """
    given = {f.name: getattr(where, f.name) for f in fields(where) if getattr(where, f.name) != f.default}
    flags = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return shlex.join(["asng", experiment, verb, str(folder), *(["--small"] if small else []), *flags])
