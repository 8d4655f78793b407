"""`asng resume`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

from asng._checks import did_you_mean
from asng._files import is_locked
from asng._untrusted import mismatch, read_json_lines
from asng.cli.flags import Positional, parse_command
from asng.cli.runs import is_finished, read_files
from asng.cli.terminal import Outcome, OutputFlags, outcome_of, print_lines, progress_bar
from asng.runs import ENVIRONMENT, LOCK, read_config, seed_folders, settings_from_config


@dataclass(frozen=True, kw_only=True)
class ResumeCommand(OutputFlags):
    """Continue a run that was interrupted, from its folder alone: its settings and where its data lie are read there.

    What was finished stays; on the CPU the end is the same, bit for bit, as without a pause. A run that is finished is
    refused, and so is one that another process has. Of a folder of --seeds all runs in it that are not finished are
    continued; seeds that were not begun are not known there, but to the command that began them.

    Examples:
      asng resume runs/digits
      asng resume runs/cifar10-asng-seed0 --device cuda:1
      asng resume runs/cifar10-asng-seed0 --data other/place
    """

    run: Annotated[Path, Positional("RUN")]
    """Folder of a search, a retraining, a tuning or a sweep, or of those of several seeds."""
    data: Path | None = None
    """Where the data lie now; by default where they lay when the run was started."""
    device: str | None = None
    """cpu, cuda, cuda:1 or auto; by default as when the run was started."""


def run_resume(arguments: Sequence[str]) -> None:
    """`asng resume`."""
    command = parse_command(ResumeCommand, "resume", arguments)
    seeds = seed_folders(command.run)
    unfinished = [run for run in seeds if not is_finished(read_files(run))]
    if seeds and not unfinished:
        raise ValueError(f"all {len(seeds)} runs in {command.run} are finished; asng report {command.run} shows them")
    with outcome_of(command) as outcome:
        for run in unfinished or [command.run]:
            part = Outcome() if seeds else outcome
            resume_one(replace(command, run=run), part)
            if seeds:
                print_lines(part.line)
                outcome.setdefault("runs", []).append(part)
                outcome.line = f"Continued {len(unfinished)} of {len(seeds)} runs; asng report {command.run} shows all"


def resume_one(command: ResumeCommand, outcome: Outcome) -> None:
    """Continue the run of one folder."""
    config = read_config(command.run)
    experiment, kind = str(config.get("experiment")), str(config.get("kind"))
    if is_locked(command.run / LOCK):
        raise ValueError(f"{command.run} is running already; asng runs {command.run} shows how far it is")
    if is_finished(read_files(command.run)):
        longer = "asng digits search --seeds 3" if (experiment, kind) == ("digits", "search") else "another --out"
        raise ValueError(
            f"{command.run} is finished; asng report {command.run} shows it, and {longer} makes more of its kind"
        )
    resume = find_resumption(experiment, kind)
    print_lines(f"Continuing {experiment} {kind} in {command.run}")
    resume(command, config, newest_flags(command.run), outcome)


Resumption = Callable[[ResumeCommand, Mapping[str, Any], Mapping[str, Any], Outcome], None]


def find_resumption(experiment: str, kind: str) -> Resumption:
    """The function that continues runs of a kind; ValueError for one that is of no command."""
    from asng.cli import EXPERIMENTS, Images

    if isinstance(EXPERIMENTS.get(experiment), Images) and kind in ("search", "retrain"):
        return resume_images
    own = {("digits", "search"): resume_digits, ("digits", "tune"): resume_tuning, ("toy", "sweep"): resume_sweep}
    if (experiment, kind) not in own:
        near = did_you_mean(f"{experiment} {kind}", [" ".join(words) for words in own])
        raise ValueError(f"its config.json says {f'{experiment} {kind}'!r}, which is no command that makes runs{near}")
    return own[experiment, kind]


def newest_flags(folder: Path) -> dict[str, Any]:
    """What the run was last started with besides its settings; nothing for a run of before that was kept."""
    path = folder / ENVIRONMENT
    started = read_json_lines(path, "delete that file") if path.exists() else []
    return next((each["flags"] for each in reversed(started) if isinstance(each.get("flags"), dict)), {})


def resume_images(
    command: ResumeCommand, config: Mapping[str, Any], started: Mapping[str, Any], outcome: Outcome
) -> None:
    """Continue a search or a training of an image experiment."""
    from pkgutil import resolve_name

    from asng.cli import EXPERIMENTS, Images
    from asng.cli.images import retrain_in, search_in
    from asng.nas.architecture import from_dict

    experiment = EXPERIMENTS[str(config["experiment"])]
    assert isinstance(experiment, Images)
    task = resolve_name(experiment.task)
    where = data_settings(task.data_settings, {**started, **_data_flags(command)})
    flags = SimpleNamespace(where=where, **{name: started.get(name) is True for name in ("small", "tensorboard")})
    flags.capture = started.get("capture") is not False
    is_search = config["kind"] == "search"
    settings = settings_from_config(task.search_settings if is_search else task.train_settings, config, command.run)
    with progress_bar(task.loading) as progress:
        loaded = task.load(where, progress)
    print_lines(*loaded.describe_data(settings))
    if is_search:
        search_in(loaded, settings, command.run, flags, outcome)
    else:
        retrain_in(loaded, settings, from_dict(config.get("architecture")), command.run, flags, outcome)


def _data_flags(command: ResumeCommand) -> dict[str, Any]:
    given = {"data": command.data and str(command.data), "device": command.device}
    return {name: value for name, value in given.items() if value is not None}


def data_settings(kind: type, started: Mapping[str, Any]) -> Any:
    """The data settings of a run, from what it was started with; ValueError for damaged ones."""
    hints, given = get_type_hints(kind), {}
    for field in fields(kind):
        value = started.get(field.name)
        if value is None:
            continue
        is_path = hints[field.name] in (Path, Path | None)
        if fault := mismatch(value, str if is_path else hints[field.name]):
            raise ValueError(f"{ENVIRONMENT} of the run is damaged ({field.name} {fault}); delete that file")
        given[field.name] = Path(value) if is_path else value
    return kind(**given)


def resume_digits(
    command: ResumeCommand, config: Mapping[str, Any], started: Mapping[str, Any], outcome: Outcome
) -> None:
    """Continue a search on digits."""
    from asng.cli.digits import search_in
    from asng.experiments.digits import DigitsSettings

    search_in(
        settings_from_config(DigitsSettings, config, command.run),
        command.run,
        started.get("tensorboard") is True,
        outcome,
    )


def resume_tuning(
    command: ResumeCommand, config: Mapping[str, Any], started: Mapping[str, Any], outcome: Outcome
) -> None:
    """Continue a tuning on digits."""
    from asng.cli.digits import tune_in
    from asng.experiments.digits_tuning import TuneSettings

    tune_in(settings_from_config(TuneSettings, config, command.run), command.run, outcome)


def resume_sweep(
    command: ResumeCommand, config: Mapping[str, Any], started: Mapping[str, Any], outcome: Outcome
) -> None:
    """Continue a sweep of the toy problem."""
    from asng.cli.toy import sweep_in
    from asng.experiments.toy import ToySettings

    workers = started.get("workers", ToySettings.workers)
    sweep_in(settings_from_config(ToySettings, {**config, "workers": workers}, command.run), command.run, outcome)
