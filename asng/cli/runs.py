"""`asng runs`."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from asng._files import is_locked
from asng.cli.estimate import format_bytes, format_seconds
from asng.cli.flags import Positional, parse_command
from asng.cli.terminal import OutputFlags, outcome_of, print_lines
from asng.report._read import RunData, is_number, read_run
from asng.runs import ARCHITECTURE, CHECKPOINT, CONFIG, LOCK, METRICS, RESULTS, SUMMARY, nearest_path

MAX_FOLDERS = 100_000
FILES = (METRICS, RESULTS, CHECKPOINT, ARCHITECTURE, SUMMARY)  # any of which makes a folder with a config.json a run
LENGTHS = {"epochs": "epochs", "iterations": "steps"}
# Figures of a record, the most telling first, and what is best.
FIGURES = {"test_accuracy": max, "test_psnr": max, "valid_accuracy": max, "valid_loss": min, "train_loss": min}


@dataclass(frozen=True, kw_only=True)
class RunsCommand(OutputFlags):
    """List the runs in a folder and in those within it: state, progress, best figure, age and size of each.

    A run is running while a process has its lock, finished when its summary is written, and interrupted otherwise:
    asng resume RUN continues it. Damaged ones have files that cannot be read. --quiet prints the folders alone.

    Examples:
      asng runs
      asng runs results
      asng runs runs --json
    """

    folder: Annotated[Path, Positional("FOLDER")] = Path("runs")
    """Where to look; by default the folder runs."""


def run_runs(arguments: Sequence[str]) -> None:
    """`asng runs`."""
    flags = parse_command(RunsCommand, "runs", arguments)
    if not flags.folder.is_dir():
        cure = nearest_path(flags.folder) or "; a first run makes one: asng digits search"
        raise ValueError(f"there is no folder {flags.folder}{cure}")
    with outcome_of(flags) as outcome:
        found = [describe_run(folder) for folder in find_runs(flags.folder)]
        outcome["runs"] = found
        if flags.quiet:
            outcome.line = ""
        else:
            print_lines(*(line for run in found for line in format_run(run)))
            outcome.line = f"{len(found)} run{'' if len(found) == 1 else 's'} in {flags.folder}"
    if flags.quiet and not flags.json:
        print_lines(*(run["folder"] for run in found))


def find_runs(top: Path) -> Iterator[Path]:
    """The folders of runs below a folder, and itself, in the order of their names; links are not followed."""
    for number, (name, folders, files) in enumerate(os.walk(top)):
        folders.sort()
        if CONFIG in files and any(file in files for file in (*FILES, LOCK)):
            yield Path(name)
        if number >= MAX_FOLDERS:
            raise ValueError(f"{top} has more than {MAX_FOLDERS:,} folders; name one with fewer")


def describe_run(folder: Path) -> dict[str, Any]:
    """What a run is, how far it got, and how well; whatever is in its files."""
    size, newest = _size_and_time(folder)
    about: dict[str, Any] = {"folder": str(folder), "bytes": size, "age_seconds": max(0.0, time.time() - newest)}
    try:
        run = read_run(folder)
    except (ValueError, OSError) as error:
        return {**about, "run": None, "state": "damaged", "fault": str(error), "progress": None, "best": None}
    done, total, unit = progress_of(run)
    state = "finished" if is_finished(run) else "interrupted"
    if run.faults:
        state = "damaged"
    if is_locked(folder / LOCK):
        state = "running"
    progress = None if total is None else {"done": done, "total": total, "unit": unit}
    fault = run.faults[0] if run.faults else None
    return {**about, "run": run.kind, "state": state, "fault": fault, "progress": progress, "best": best_of(run)}


def is_finished(run: RunData) -> bool:
    """Whether nothing is left to do: the summary, which comes last, is there."""
    done, total, _ = progress_of(run)
    return bool(run.summary) and (total is None or done >= total)


def progress_of(run: RunData) -> tuple[float, float | None, str]:
    """How much is done, of how much, in which unit; None where that is unknown."""
    if run.results or not run.records:
        try:
            total = _count_results(run.config)
        except (ValueError, TypeError, OverflowError, ZeroDivisionError, ArithmeticError):  # of a damaged configuration
            total = None
        done = len(run.results)
        return (
            (done, total if total is None else max(done, total), "results") if total or run.results else (0, None, "")
        )
    for name, unit in LENGTHS.items():
        if run.progress is not None and is_number(run.config.get(name)):
            return *run.progress, unit
    return len(run.records), None, "records"


def _count_results(config: Mapping[str, Any]) -> int | None:
    """How many lines results.jsonl of a finished run has."""
    match config.get("experiment"), config.get("kind"):
        case "digits", "search":
            return 5 + max(1, round(2 * float(config["epochs"]) / float(config["training_epochs"])))
        case "digits", "tune":
            return int(config["trials"]) + 3
        case "toy", "sweep":
            methods = len({1.5, *config["alphas"]}) + 2
            return int(len(config["lrs"]) * methods * len(config["powers"]))
    return None


def best_of(run: RunData) -> dict[str, Any] | None:
    """The best figure of a run: a test of the whole, of a baseline's rival, or of the best record."""
    tested = [
        report for report in run.evaluations.values() if is_number(report.get("test_accuracy", report.get("psnr")))
    ]
    if tested:
        name = "test_accuracy" if "test_accuracy" in tested[0] else "psnr"
        return {"name": name, "value": max(float(report.get(name, float("-inf"))) for report in tested)}
    for name, better in FIGURES.items():
        values = [float(record[name]) for record in run.records if is_number(record.get(name))]
        if values and not run.results:
            return {"name": name, "value": better(values)}
    found = [float(each["accuracy"]) for each in run.results if _is_result(each) and is_number(each.get("accuracy"))]
    if found:
        return {"name": "test_accuracy", "value": found[0]}
    reached = run.summary.get("ranges")
    if isinstance(reached, list):
        best = [each["best"] for each in reached if isinstance(each, dict) and isinstance(each.get("best"), dict)]
        measures = [float(each["measure"]) for each in best if is_number(each.get("measure"))]
        return {"name": "iterations", "value": min(measures)} if measures else None
    return None


def _is_result(record: Mapping[str, Any]) -> bool:
    return record.get("kind") in ("found", "train tuned")


def _size_and_time(folder: Path) -> tuple[int, float]:
    """The bytes of a run's files, without those of runs in it, and when the newest of them was written."""
    size, newest = 0, 0.0
    for name, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not (Path(name) / each / CONFIG).exists()]
        for file in files:
            with suppress(OSError):
                about = os.lstat(Path(name) / file)
                size, newest = size + about.st_size, max(newest, about.st_mtime)
    return size, newest


def format_run(run: Mapping[str, Any]) -> list[str]:
    """A run in two lines: its folder, then what it is, its state, progress, best figure, age and size."""
    progress, best = run["progress"], run["best"]
    done = "" if progress is None else f"{progress['done']:,.0f} of {progress['total']:,.0f} {progress['unit']}"
    figure = "" if best is None else f"{best['name'].replace('_', ' ')} {best['value']:.4g}"
    age = format_seconds(run["age_seconds"]).split(" ")
    columns = f"{run['run'] or '?':<19} {run['state']:<11} {done:<20} {figure:<20}"
    about = f"  {columns.rstrip()}  {' '.join(age[:2])} ago, {format_bytes(run['bytes'])}"
    return [run["folder"], about, *([f"  {run['fault']}"] if run["fault"] else [])]
