"""`asng digits search` and `asng digits tune`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.table import Table

from asng.cli.terminal import Flat, console, parse_command, print_lines, progress_bar
from asng.experiments import digits, digits_tuning
from asng.runs import ARCHITECTURE


@dataclass(frozen=True)
class DigitsCommand:
    """Search a network for handwritten digits, train it from scratch and test it: a minute or two on the CPU.

    Beside it, trained alike: the best of as many random architectures as take the gradients of the search
    (2 * --epochs / --training-epochs), trained alone and chosen by validation accuracy; the first of them; and a
    handcrafted network. Writes architecture.json, results.jsonl and summary.json. Ctrl-C saves; the same command
    continues.

    Examples:
      asng digits search
      asng digits search --seeds 10 --out runs/ten
    """

    settings: Annotated[digits.DigitsSettings, Flat]
    out: Path = Path("runs/digits")
    """Folder of the run."""


def run_search(arguments: Sequence[str]) -> None:
    """`asng digits search`."""
    command = parse_command(DigitsCommand, "digits search", arguments)
    with progress_bar("digits", command.out) as progress:
        summary = digits.run(command.settings, command.out, progress)
    row = summary["rows"][-1]
    found = ", ".join(f"{name}={value}" for name, value in row["values"].items())
    print_lines(f"Found with seed {row['seed']}, probability {row['probability']:.2g}: {found}")
    console.print(digits_table(summary))
    print_lines(f"Architecture: {command.out / ARCHITECTURE}")


def digits_table(summary: dict[str, Any]) -> Table:
    """Test accuracy and parameters of the result and its baselines, and what it took to choose them."""
    table = Table(title="Test accuracy, trained from scratch; cost of choosing", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("architecture", no_wrap=True)
    for name in ("accuracy", "error", "parameters", "gradients", "seconds"):
        table.add_column(name, justify="right")
    rows = summary["rows"]
    names = {
        "found": "found by the search",
        "random_best": f"best of {summary['random_count']} random ones",
        "random_first": "the first random one",
        "handcrafted": "handcrafted",
    }
    for kind, name in names.items():
        accuracy = summary["accuracy"][kind]
        error = "" if accuracy["standard_error"] is None else f"{100 * accuracy['standard_error']:.2f}"
        parameters = sum(row[kind]["parameters"] for row in rows) / len(rows)
        cost = [f"{summary[unit].get(kind, 0):,.0f}" for unit in ("gradients", "seconds")]
        table.add_row(name, f"{100 * accuracy['mean']:.2f} %", error, f"{parameters:,.0f}", *cost)
    return table


@dataclass(frozen=True)
class TuneCommand:
    """Choose learning rate, weight decay and augmentation of digits by short searches: some minutes on the CPU.

    Each trial is a one-shot search; those that fall behind the median end early. What the best one found is trained
    from scratch and tested beside what the same search finds untuned. Writes architecture.json, results.jsonl and
    summary.json. Ctrl-C keeps finished trials; the same command continues.

    Examples:
      asng digits tune
      asng digits tune --trials 40 --out runs/forty
    """

    settings: Annotated[digits_tuning.TuneSettings, Flat]
    out: Path = Path("runs/digits-tune")
    """Folder of the run."""


def run_tune(arguments: Sequence[str]) -> None:
    """`asng digits tune`."""
    command = parse_command(TuneCommand, "digits tune", arguments)
    with progress_bar("digits tune", command.out) as progress:
        summary = digits_tuning.run(command.settings, command.out, progress)
    possible = summary["trials"] * command.settings.epochs
    print_lines(
        f"{summary['pruned']} of {summary['trials']} trials ended early: {summary['epochs']} of {possible} epochs."
    )
    table = Table(title="Trained from scratch, with its hyper-parameters", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "lr", "weight decay", "augmentation", "loss in the search", "test accuracy"):
        table.add_column(name, justify="right" if name else "left")
    for name in ("tuned", "untuned"):
        row = summary[name]
        hyper = [f"{value:.2g}" for value in row["hyper"].values()]
        table.add_row(name, *hyper, f"{row['loss']:.3f}", f"{100 * row['accuracy']:.2f} %")
    console.print(table)
    print_lines(f"Architecture: {command.out / ARCHITECTURE}")
