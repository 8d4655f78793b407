"""`asng runs`."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from asng import runs
from asng._files import is_locked
from asng._html import format_duration
from asng.cli.flags import parse_command
from asng.cli.terminal import OutputFlags, output_of, print_lines
from asng.report._read import RunData, dicts_in, is_number, read_run

RUNS = Path("runs")  # which commands make at the first run
MAX_FOLDERS = 100_000
MAX_NAME = 80  # letters of what a run is
# Any of which makes a folder with a config.json a run.
RUN_FILES = {runs.ENVIRONMENT, runs.METRICS, runs.RESULTS, runs.CHECKPOINT, runs.ARCHITECTURE, runs.SUMMARY, runs.LOCK}
# Figures of a record, the most telling first, and what is best.
FIGURES = {"test_accuracy": max, "test_psnr": max, "valid_accuracy": max, "valid_loss": min, "train_loss": min}


@dataclass(frozen=True, kw_only=True)
class RunsCommand(OutputFlags):
    """List all runs in a folder and its subfolders: state, progress, main result, age and size.

    States: running (a process has its lock), finished (it has a summary), interrupted (asng resume RUN continues it),
    damaged (a file cannot be read), other format (another version of asng wrote it). --quiet prints only the
    folders.

    Examples:
      asng runs
      asng runs results
      asng runs runs --json
    """

    folder: Path = field(default=RUNS, metadata={"metavar": "FOLDER"})
    """Folder to search."""


def run_runs(arguments: Sequence[str]) -> None:
    """`asng runs`."""
    flags = parse_command(RunsCommand, "runs", arguments)
    if not flags.folder.is_dir() and flags.folder != RUNS:
        raise ValueError(f"there is no folder {flags.folder}{runs.nearest_path(flags.folder)}")
    with output_of(flags) as output:
        found = [run for folder in find_runs(flags.folder) if (run := describe_run(folder)) is not None]
        output["runs"] = found
        if not flags.quiet:
            print_lines(*(line for run in found for line in format_run(run)))
            first = "" if found else "; asng digits search makes a first one, in a minute or two"
            output.line = f"{len(found) or 'no'} run{'' if len(found) == 1 else 's'} in {flags.folder}{first}"
    if flags.quiet and not flags.json:
        print_lines(*(run["folder"] for run in found))


def find_runs(top: Path) -> Iterator[Path]:
    """The folders of runs below a folder, and itself, in the order of their names; links are not followed."""
    for number, (name, folders, files) in enumerate(os.walk(top)):
        folders.sort()
        if runs.CONFIG in files and not RUN_FILES.isdisjoint(files):
            yield Path(name)
        if number >= MAX_FOLDERS:
            raise ValueError(f"{top} has more than {MAX_FOLDERS:,} folders; name one with fewer")


def describe_run(folder: Path) -> dict[str, Any] | None:
    """Kind, progress and scores of a run, even where files are damaged; None for one of another program."""
    size, newest = _size_and_time(folder)
    about: dict[str, Any] = {"folder": str(folder), "bytes": size, "age_seconds": max(0.0, time.time() - newest)}
    try:
        config = runs.read_config(folder)
        if not isinstance(config.get("experiment"), str) and not runs.is_own_search(config):
            return None
        run = read_run(folder)
    except (ValueError, OSError) as error:
        state = "other format" if isinstance(error, runs.OtherFormat) else "damaged"
        return {**about, "run": None, "state": state, "fault": str(error), "progress": None, "best": None}
    state = "damaged" if run.faults else "finished" if run.is_finished else "interrupted"
    if is_locked(folder / runs.LOCK):
        state = "running"
    about |= {"run": run.kind[:MAX_NAME], "state": state}
    about |= {"fault": run.faults[0] if run.faults else None, "best": best_of(run)}
    return {**about, "progress": run.progress and dict(zip(("done", "total", "unit"), run.progress, strict=True))}


def best_of(run: RunData) -> dict[str, Any] | None:
    """The best figure of a run: of its tests, or of its results, or of its records."""
    for name in ("test_accuracy", "psnr"):
        if tested := [float(report[name]) for report in run.evaluations.values() if is_number(report.get(name))]:
            return {"name": name, "value": max(tested)}
    results = [each for each in run.results if each.get("kind") in ("found", "train tuned")]
    if found := [float(each["accuracy"]) for each in results if is_number(each.get("accuracy"))]:
        return {"name": "test_accuracy", "value": sum(found) / len(found)}
    for name, better in FIGURES.items():
        if values := [float(record[name]) for record in run.records if is_number(record.get(name))]:
            return {"name": name, "value": better(values)}
    best = dicts_in([each.get("best") for each in dicts_in(run.summary.get("ranges"))])
    if measures := [each["measure"] for each in best if is_number(each.get("measure"))]:
        return {"name": "iterations", "value": float(min(measures))}
    return None


def _size_and_time(folder: Path) -> tuple[int, float]:
    """The bytes of a run's files, without those of runs in it, and when the newest of them was written."""
    size, newest = 0, 0.0
    for name, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not (Path(name) / each / runs.CONFIG).exists()]
        for file in files:
            with suppress(OSError):
                about = os.lstat(Path(name) / file)
                size, newest = size + about.st_size, max(newest, about.st_mtime)
    return size, newest


def format_run(run: Mapping[str, Any]) -> list[str]:
    """A run in lines of a terminal: its folder, age and size; what it is, its state, progress and best figure."""
    progress, best = run["progress"], run["best"]
    done = "" if progress is None else f"{progress['done']:,.0f} of {progress['total']:,.0f} {progress['unit']}"
    figure = "" if best is None else f"best {best['name'].replace('_', ' ')} {_format_figure(**best)}"
    age = " ".join(format_duration(run["age_seconds"]).split(" ")[:2])
    about = f"  {run['run'] or '?':<18}  {run['state']:<11}  {done:<17}  {figure}".rstrip()
    fault = [f"  {run['fault']}"] if run["fault"] else []
    return [f"{run['folder']}  ({age} ago, {decimal(run['bytes'])})", about, *fault]


def _format_figure(name: str, value: float) -> str:
    """A figure as tables print it: accuracies in percent, PSNR in decibels."""
    return f"{value:.2%}".replace("%", " %") if name.endswith("accuracy") else f"{value:.4g}{' dB' * ('psnr' in name)}"
