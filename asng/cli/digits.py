"""`asng digits search` and `asng digits tune`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from asng.cli import terminal
from asng.cli.estimate import describe_load
from asng.cli.flags import parse_command
from asng.cli.terminal import Output, RunFlags, SeedFlags
from asng.experiments import digits, digits_tuning
from asng.experiments._estimates import estimate_digits, estimate_tuning, load_per_core
from asng.nas.supernet import Supernet
from asng.runs import ARCHITECTURE


@dataclass(frozen=True, kw_only=True)
class SearchCommand(SeedFlags):
    """Search a network for handwritten digits, train it from scratch and test it: a minute or two on the CPU.

    Takes the architecture with the lowest validation loss under the shared weights, of the 20 likeliest of the search
    (nas.rerank). The same training also tests three baselines: the best of random architectures at the cost of the
    search (2 * --epochs / --training-epochs of them, chosen by validation accuracy), the first of these, and a
    handcrafted network. Writes architecture.json, metrics.jsonl, results.jsonl and summary.json. Ctrl-C saves; the
    same command continues.

    Examples:
      asng digits search
      asng digits search --epochs 20 --training-epochs 5  some seconds
      asng digits search --seeds 10 --out runs/ten        one folder each
    """

    settings: digits.DigitsSettings


def run_search(arguments: Sequence[str]) -> None:
    """`asng digits search`."""
    flags = parse_command(SearchCommand, "digits search", arguments)
    seeds = terminal.seeds_of(flags.seeds, flags.settings.seed)
    out = flags.out or Path("runs/digits-seeds" if len(seeds) > 1 else "runs/digits")

    def run_one(settings: digits.DigitsSettings, output: Output) -> None:
        folder = out / f"seed{settings.seed}" if len(seeds) > 1 else out
        started, callback = {"tensorboard": flags.tensorboard}, terminal.tensorboard(flags, folder)
        with terminal.command_progress_bar("digits", folder) as progress:
            summary = digits.run(settings, folder, progress, flags=started, callback=callback)
        row = summary["rows"][-1]
        active = Supernet(digits.Net()).active(row["values"])  # the others have no effect
        found = ", ".join(f"{name}={value}" for name, value in row["values"].items() if name in active)
        chosen = f"the best of the {digits.TOP_K} likeliest by validation loss (nas.rerank)"
        terminal.print_lines(f"Found with seed {row['seed']}, {chosen}, probability {row['probability']:.2g}: {found}")
        terminal.console.print(digits_table(summary))
        terminal.print_lines(describe_error(summary))
        figures = {f"accuracy_{kind}": row[kind]["accuracy"] for kind in digits.KINDS}
        output |= {"folder": folder, "architecture": folder / ARCHITECTURE, **summary, "figures": figures}
        output.line = f"Architecture: {folder / ARCHITECTURE}"

    with terminal.output_of(flags) as output:
        _print_load(flags)
        terminal.run_seeds(flags, run_one, partial(estimate_digits, flags.settings), output)
        if len(seeds) > 1 and not flags.dry_run:
            records = [record for seed in seeds for record in digits.read_results(out / f"seed{seed}")]
            summary = digits.summarize(flags.settings, records)
            terminal.console.print(digits_table(summary))
            output.update(summary)


def digits_table(summary: dict[str, Any]) -> Table:
    """Test accuracy and parameters of the result and its baselines, and what it took to choose them."""
    rows = summary["rows"]
    several = len(rows) > 1  # else there is no standard error
    names = {
        "found": "found by the search",
        "random_best": f"best of {summary['random_count']} random ones",
        "random_first": "the first random one",
        "handcrafted": "handcrafted",
    }
    lines = []
    for kind, name in names.items():
        accuracy = summary["accuracy"][kind]
        error = [f"{100 * accuracy['standard_error']:.2f}"] if several else []
        parameters = sum(row[kind]["parameters"] for row in rows) / len(rows)
        cost = [f"{summary[unit].get(kind, 0):,.0f}" for unit in ("gradients", "seconds")]
        lines.append([name, f"{100 * accuracy['mean']:.2f} %", *error, f"{parameters:,.0f}", *cost])
    head = ["architecture", "accuracy", *(["± error"] if several else []), "parameters", "gradients", "seconds"]
    return terminal.make_table(
        "Test accuracy after training from scratch, and cost of the choice", head, lines, "architecture"
    )


def describe_error(summary: dict[str, Any]) -> str:
    """What differences between the accuracies of one run mean."""
    images, error, of_difference = digits.sampling_error(summary["accuracy"])
    return (
        f"With {images} test images the standard error of an accuracy is {100 * error:.2f} points, that of a "
        f"difference {100 * of_difference:.2f}; differences below twice that may be chance. --seeds 10 compares means."
    )


@dataclass(frozen=True, kw_only=True)
class TuneCommand(RunFlags):
    """Choose learning rate, weight decay and augmentation of digits by short searches: some minutes on the CPU.

    Each trial is a one-shot search; trials that fall behind the median are pruned. The architecture of the best trial
    is trained from scratch and tested, and so is that of an untuned search. Writes architecture.json, results.jsonl and
    summary.json. Ctrl-C keeps finished trials; the same command continues.

    Examples:
      asng digits tune
      asng digits tune --trials 40 --out runs/forty
    """

    settings: digits_tuning.TuneSettings


def run_tune(arguments: Sequence[str]) -> None:
    """`asng digits tune`."""
    flags = parse_command(TuneCommand, "digits tune", arguments)
    folder = flags.out or Path("runs/digits-tune")

    def run_one(settings: digits_tuning.TuneSettings, output: Output) -> None:
        with terminal.command_progress_bar("digits tune", folder) as progress:
            summary = digits_tuning.run(settings, folder, progress)
        epochs = f"{summary['epochs']} of {summary['trials'] * settings.epochs} epochs"
        terminal.print_lines(f"{summary['pruned']} of {summary['trials']} trials were pruned: {epochs}.")
        lines = []
        for name in ("tuned", "untuned"):
            row = summary[name]
            hyper = [f"{value:.2g}" for value in row["hyper"].values()]
            lines.append([name, *hyper, f"{row['loss']:.3f}", f"{100 * row['accuracy']:.2f} %"])
        head = ["", "lr", "weight decay", "augmentation", "loss in the search", "test accuracy"]
        terminal.console.print(terminal.make_table("Trained from scratch, with its hyperparameters", head, lines, ""))
        output |= {"folder": folder, "architecture": folder / ARCHITECTURE, **summary}
        output.line = f"Architecture: {folder / ARCHITECTURE}"

    with terminal.output_of(flags) as output:
        _print_load(flags)
        terminal.run_seeds(flags, run_one, partial(estimate_tuning, flags.settings), output)


def _print_load(flags: RunFlags) -> None:
    if not flags.dry_run:  # which says it beside its times
        terminal.print_lines(*describe_load(load_per_core(), threads=1))  # as these runs have
