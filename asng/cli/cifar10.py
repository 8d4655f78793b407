"""`asng cifar10 search`, `retrain` and `evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from asng.cli.images import DataFlags, RunOrNone, SomeRun, load_architecture, make_console, next_command, run_folder
from asng.cli.terminal import parse_command, progress_bar
from asng.experiments.cifar10.data import Images, load_cifar10
from asng.experiments.cifar10.retraining import SMALL_RETRAIN, Cifar10RetrainSettings, evaluate, retrain
from asng.experiments.cifar10.search import SMALL, Cifar10SearchSettings, search
from asng.experiments.cifar10.space import CELL_KINDS, NODES, SPACE, cell_paths, random_values
from asng.experiments.searching import read_checkpointed_config
from asng.experiments.training import parse_device
from asng.nas.architecture import from_json

Flat = tyro.conf.arg(name="")


def images_of(where: DataFlags, console: Console) -> tuple[Images, Images]:
    """Training and test images."""
    with progress_bar(console, "download", None) as progress:
        return load_cifar10(where.data, parse_device(where.device), progress)


@dataclass(frozen=True)
class SearchCommand:
    """Search the two cells of an image classifier on CIFAR-10: section 3.2 of the paper.

    One half of the training images moves the weights, the other the distribution of architectures.
    After every epoch a line of metrics.jsonl and a checkpoint; at the end architecture.json, summary.json
    and pictures of the cells. Ctrl-C saves; the same command continues. The data is downloaded where it
    is missing.

    Examples:
      asng cifar10 search                          as in the paper: 100 epochs, for a GPU
      asng cifar10 search --small                  a look, about five minutes on two cores
      asng cifar10 search --method sng --out runs/sng
      asng cifar10 search --max-params 200000 --epochs 50
    """

    settings: Annotated[Cifar10SearchSettings, Flat] = field(default_factory=Cifar10SearchSettings)
    where: Annotated[DataFlags, Flat] = field(default_factory=DataFlags)
    small: bool = False
    """Other defaults, for two cores: a smaller network, fewer images and epochs."""
    out: Path | None = None
    """Folder of the run; runs/cifar10-METHOD-seedS, or with --small runs/cifar10-small-METHOD-seedS."""
    capture: bool = True
    """On a GPU: run each step as one CUDA graph, several times as fast; --no-capture launches kernels one by one."""


def run_search(arguments: Sequence[str]) -> None:
    """`asng cifar10 search`."""
    small = "--small" in arguments  # before parsing, since it changes the defaults of other flags
    command: SearchCommand = parse_command(
        SearchCommand, "cifar10 search", arguments, SearchCommand(SMALL if small else Cifar10SearchSettings())
    )
    settings = command.settings
    name = f"cifar10{'-small' if small else ''}-{settings.method}-seed{settings.seed}"
    folder = command.out or Path("runs") / name
    console = make_console()
    images = images_of(command.where, console)
    with progress_bar(console, "cifar10 search", folder) as progress:
        summary = search(settings, folder, *images, show=progress, capture=command.capture)
    if not summary["feasible"]:
        console.print("No architecture met the limit; this is the nearest one.")
    console.print("Found:", *lines_of(summary["values"]), sep="\n", highlight=False)
    console.print(f"Cells: {folder / 'cells.png'}", soft_wrap=True)
    again = next_command("cifar10", folder, small, command.where)
    console.print(f"Train it from scratch: {again}", soft_wrap=True)


def lines_of(values: Mapping[str, Any]) -> list[str]:
    """Both cells of an architecture, a line for each node."""
    sources = ["cell k-2", "cell k-1", *(f"node {node}" for node in range(NODES))]
    return [
        f"{kind} node {node}: " + " + ".join(f"{operation} of {sources[source]}" for source, operation in pair)
        for kind in CELL_KINDS
        for node, pair in enumerate(cell_paths(values, kind))
    ]


@dataclass(frozen=True)
class RetrainCommand:
    """Train an architecture from scratch on all of CIFAR-10's training images, and test it.

    The number of channels is the largest with at most --max-params. Ctrl-C saves; the same command
    continues.

    Examples:
      asng cifar10 retrain runs/cifar10-asng-seed0               what a search found, 600 epochs
      asng cifar10 retrain runs/cifar10-small-asng-seed0 --small
      asng cifar10 retrain --architecture cell.json --epochs 100
      asng cifar10 retrain --architecture random --seed 3        a baseline
    """

    run: RunOrNone = None
    """Folder of a search."""
    settings: Annotated[Cifar10RetrainSettings, Flat] = field(default_factory=Cifar10RetrainSettings)
    where: Annotated[DataFlags, Flat] = field(default_factory=DataFlags)
    architecture: str | None = None
    """Instead of a search: a file as architecture.json, or the word random, which draws one from the seed."""
    small: bool = False
    """Other defaults, for two cores: a smaller network, fewer images and epochs."""
    out: Path | None = None
    """Folder of the run; RUN/retrain-seedS, or runs/cifar10-NAME-seedS."""


def run_retrain(arguments: Sequence[str]) -> None:
    """`asng cifar10 retrain`."""
    settings = SMALL_RETRAIN if "--small" in arguments else Cifar10RetrainSettings()
    command: RetrainCommand = parse_command(
        RetrainCommand, "cifar10 retrain", arguments, RetrainCommand(settings=settings)
    )
    run, given, seed = command.run, command.architecture, command.settings.seed
    values = load_architecture("cifar10", run, given, lambda text: from_json(text, SPACE), random_values, seed)
    folder = run_folder(command.out, run, given, "cifar10", seed)
    console = make_console()
    images = images_of(command.where, console)
    with progress_bar(console, "cifar10 retrain", folder) as progress:
        summary = retrain(command.settings, values, folder, *images, show=progress)
    accuracy = 100 * summary["last"]["test_accuracy"]
    console.print(
        f"Test accuracy {accuracy:.2f} %, {summary['parameters']:,} parameters, {summary['channels']} channels"
    )


@dataclass(frozen=True)
class EvaluateCommand:
    """Test what a run has trained: a network from scratch, or the most likely one of a search with its shared weights.

    Examples:
      asng cifar10 evaluate runs/cifar10-asng-seed0/retrain-seed0
      asng cifar10 evaluate runs/cifar10-asng-seed0
    """

    run: SomeRun
    """Folder of a search or of a retraining."""
    where: Annotated[DataFlags, Flat] = field(default_factory=DataFlags)


def run_evaluate(arguments: Sequence[str]) -> None:
    """`asng cifar10 evaluate`."""
    command: EvaluateCommand = parse_command(EvaluateCommand, "cifar10 evaluate", arguments)
    read_checkpointed_config(command.run, "cifar10")  # before anything slow
    console = make_console()
    train, test = images_of(command.where, console)
    with progress_bar(console, f"testing on {len(test):,} images", None) as progress:
        result = evaluate(command.run, train, test, progress)
    what = (
        "the architecture found so far, with shared weights" if result["kind"] == "search" else "trained from scratch"
    )
    print(f"Test accuracy {100 * result['test_accuracy']:.2f} % after {result['steps']:,} steps ({what})")
