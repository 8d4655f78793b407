"""Shared by all commands: what they print under --quiet and --json, a progress bar, runs of several seeds."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from asng import _progress
from asng._progress import Progress
from asng._untrusted import escape_controls
from asng.cli.estimate import describe_estimate
from asng.runs import CONFIG, ENVIRONMENT, SUMMARY

console: Console = Console(markup=False, emoji=False)  # prints names with brackets and colons unchanged


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Flags of all commands."""

    quiet: bool = False
    """Print only the last line, and errors and warnings."""
    json: bool = False
    """Print the outcome as one JSON object on stdout, everything else on stderr; with --quiet only the object."""


@dataclass(frozen=True, kw_only=True)
class RunFlags(OutputFlags):
    """Flags of all commands that make runs."""

    dry_run: bool = False
    """Print search space, parameters, steps and estimated time, memory and disk; run and write nothing."""
    out: Path | None = None
    """Folder of the run; a run with the same settings is continued, any other is refused. By default in runs/."""


@dataclass(frozen=True, kw_only=True)
class SeedFlags(RunFlags):
    """Flags of all searches and trainings."""

    tensorboard: bool = False
    """Also write the curves for TensorBoard, into the folder of the run; needs pip install 'asng[tensorboard]'."""
    seeds: tuple[int, ...] = ()
    """A number of runs with consecutive seeds from --seed, or two or more seeds; prints mean and standard deviation."""


class Output(dict[str, Any]):
    """The JSON output of a command, and its last line."""

    line = ""


_running: list[Output] = []  # that of the command


@contextmanager
def output_of(flags: OutputFlags) -> Iterator[Output]:
    """Print what a command finds as its flags ask for it: all, the last line, or JSON.

    A command that another one runs fills the output of that one, and prints as it does.
    """
    if _running:
        yield _running[0]
        return
    output, stdout = Output(), sys.stdout
    _running.append(output)
    try:
        with redirect_stdout(io.StringIO() if flags.quiet else sys.stderr if flags.json else stdout):
            yield output
    finally:
        _running.clear()
    if flags.json:
        print(json.dumps(output, default=str, allow_nan=False))
    elif output.line:
        print_lines(output.line)


def seeds_of(given: Sequence[int], first: int) -> list[int]:
    """The seeds that --seeds stands for.

    >>> seeds_of((), 3), seeds_of((2,), 3), seeds_of((5, 9), 3)
    ([3], [3, 4], [5, 9])
    """
    if len(set(given)) < len(given) or min(given, default=1) < (0 if len(given) > 1 else 1):
        raise ValueError(
            f"--seeds takes a number of runs, at least 1, or different seeds, got {' '.join(map(str, given))}"
        )
    return list(given) if len(given) > 1 else list(range(first, first + (given or (1,))[0]))


def run_seeds(
    flags: Any, run_one: Callable[[Any, Output], None], estimate: Callable[[], Mapping[str, Any]], output: Output
) -> None:
    """Run the settings of each seed, one after another, and print mean and spread of the figures at the end.

    `run_one` gets settings and an output to fill; `figures` in it are compared. Under --dry-run nothing is run, and
    the estimate of a run is printed.
    """
    seeds = seeds_of(getattr(flags, "seeds", ()), flags.settings.seed)
    if flags.dry_run:
        numbers = estimate()
        output |= {**numbers, "runs": len(seeds), "dry_run": True}
        *lines, output.line = describe_estimate(numbers, len(seeds))
        print_lines(*lines)
        return
    if len(seeds) == 1:
        run_one(replace(flags.settings, seed=seeds[0]), output)
        return
    if flags.out is not None and (flags.out / CONFIG).exists():
        raise ValueError(f"{flags.out} holds a single run; choose another folder (--out) for several seeds")
    outputs = []
    for seed in seeds:
        outputs.append(Output(seed=seed))
        print_lines(f"Seed {seed}:")
        run_one(replace(flags.settings, seed=seed), outputs[-1])
        print_lines(outputs[-1].line)
    figures = {name: [each["figures"].get(name) for each in outputs] for name in outputs[0]["figures"]}
    spread = {
        name: {"mean": fmean(numbers), "std": stdev(numbers), "min": min(numbers), "max": max(numbers)}
        for name, numbers in figures.items()
        if None not in numbers
    }
    output |= {"runs": outputs, "figures": spread}
    shown = [f"{name.replace('_', ' ')} {each['mean']:.4g} ± {each['std']:.2g}" for name, each in spread.items()]
    output.line = f"Mean and standard deviation of {len(seeds)} seeds: {', '.join(shown)}"


def seed_folder(flags: Any, default: Path, seed: int) -> Path:
    """The folder of a seed's run: --out, or one in it for each of several; else the default, which names the seed."""
    out: Path | None = flags.out
    if out is None:
        return default
    return out / f"seed{seed}" if len(seeds_of(flags.seeds, seed)) > 1 else out


def tensorboard(flags: SeedFlags, folder: Path) -> Callable[[Any], None] | None:
    """The listener that writes the records of a run for TensorBoard, if the flags ask for one."""
    if not flags.tensorboard:
        return None
    from asng.integrations.tensorboard import TensorBoard

    return TensorBoard(folder / "tensorboard")


@contextmanager
def command_progress_bar(title: str, folder: Path | None = None, console: Console = console) -> Iterator[Progress]:
    """The bar of a command; says if the run in the folder was finished before, and on Ctrl-C how to continue it."""
    was_finished = folder is not None and os.path.exists(folder / SUMMARY)  # False, too, where it cannot be entered
    try:
        with _progress.progress_bar(title, console) as progress:
            yield progress
        if was_finished:
            print_lines(f"{folder} was finished before: nothing is run again; another --seed or --out makes a new run.")
    except KeyboardInterrupt:
        where = ""
        if folder is not None:
            kept = any(path.suffix in (".jsonl", ".pt") and path.name != ENVIRONMENT for path in folder.glob("*"))
            where = f" Finished parts are in {folder}; the same command continues." if kept else " Nothing was saved."
        print(escape_controls(f"Interrupted.{where}"), file=sys.stderr)
        raise


def print_lines(*lines: str) -> None:
    """Print each line harmlessly, whatever names are in it."""
    for line in lines:
        print(escape_controls(line))


def make_table(title: str, names: Iterable[str], rows: Iterable[Iterable[str]], *left: str, caption: str = "") -> Table:
    """A table with a column for each name; those named in `left` hold texts, the others numbers."""
    table = Table(title=title, caption=caption or None, box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name == left[0])
    for row in rows:
        table.add_row(*row)
    return table
