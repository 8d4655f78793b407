"""`asng cifar10 search`, `retrain` and `evaluate`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asng.cli.images import Commands, DataFlags, EvaluateFlags, RetrainFlags, SearchFlags
from asng.cli.terminal import progress_bar
from asng.experiments._settings import parse_device
from asng.experiments.cifar10 import task
from asng.experiments.cifar10.data import load_cifar10
from asng.experiments.cifar10.space import CELL_KINDS, NODES, SPACE, cell_paths, random_values
from asng.nas.architecture import from_json


@dataclass(frozen=True)
class Cifar10Flags(DataFlags):
    """Flags of all commands on CIFAR-10."""

    kernels: task.Kernels = "fused"
    """On a GPU: fused, Triton kernels for pools, batch norms and separable convolutions; torch, its own."""


class Cifar10SearchFlags(SearchFlags[task.Cifar10SearchSettings, Cifar10Flags]):
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


class Cifar10RetrainFlags(RetrainFlags[task.Cifar10RetrainSettings, Cifar10Flags]):
    """Train an architecture from scratch on all of CIFAR-10's training images, and test it.

    The number of channels is the largest with at most --max-params. Ctrl-C saves; the same command
    continues.

    Examples:
      asng cifar10 retrain runs/cifar10-asng-seed0               what a search found, 600 epochs
      asng cifar10 retrain runs/cifar10-small-asng-seed0 --small
      asng cifar10 retrain --architecture cell.json --epochs 100
      asng cifar10 retrain --architecture random --seed 3        a baseline
    """


class Cifar10EvaluateFlags(EvaluateFlags[Cifar10Flags]):
    """Test what a run has trained: a network from scratch, or the most likely one of a search with its shared weights.

    Examples:
      asng cifar10 evaluate runs/cifar10-asng-seed0/retrain-seed0
      asng cifar10 evaluate runs/cifar10-asng-seed0
    """


class Cifar10Commands(Commands):
    """The commands on CIFAR-10."""

    name = "cifar10"
    search_flags, retrain_flags, evaluate_flags = Cifar10SearchFlags, Cifar10RetrainFlags, Cifar10EvaluateFlags
    baselines = ("random",)
    small_search, small_retrain = task.SMALL, task.SMALL_RETRAIN

    def load_task(self, flags: Any) -> task.Cifar10:
        with progress_bar("download") as progress:
            data = load_cifar10(flags.where.data, parse_device(flags.where.device), progress)
        return task.Cifar10(*data, kernels=flags.where.kernels)

    def label(self, settings: task.Cifar10SearchSettings) -> str:
        return settings.method

    def read_values(self, text: str) -> dict[str, Any]:
        return from_json(text, SPACE)

    def baseline_values(self, flags: Cifar10RetrainFlags) -> dict[str, Any]:
        return random_values(flags.settings.seed)

    def print_architecture(self, summary: Mapping[str, Any], folder: Path) -> None:
        print("Found:", *lines_of(summary["values"]), sep="\n")
        print(f"Cells: {folder / 'cells.png'}")

    def print_training(self, summary: Mapping[str, Any], test_command: str) -> None:
        accuracy, size = 100 * summary["last"]["test_accuracy"], f"{summary['parameters']:,} parameters"
        print(f"Test accuracy {accuracy:.2f} %, {size}, {summary['channels']} channels")

    def evaluate(self, flags: Cifar10EvaluateFlags, config: Mapping[str, Any]) -> None:
        cifar10 = self.load_task(flags)
        with progress_bar(f"testing on {len(cifar10.test):,} images") as progress:
            result = task.evaluate(cifar10, flags.run, config, progress)
        found = result["kind"] == "search"
        what = "the architecture found so far, with shared weights" if found else "trained from scratch"
        print(f"Test accuracy {100 * result['test_accuracy']:.2f} % after {result['steps']:,} steps ({what})")


def lines_of(values: Mapping[str, Any]) -> list[str]:
    """Both cells of an architecture, a line for each node."""
    sources = ["cell k-2", "cell k-1", *(f"node {node}" for node in range(NODES))]
    return [
        f"{kind} node {node}: " + " + ".join(f"{operation} of {sources[source]}" for source, operation in pair)
        for kind in CELL_KINDS
        for node, pair in enumerate(cell_paths(values, kind))
    ]


commands = Cifar10Commands()
run_search, run_retrain, run_evaluate = commands.run_search, commands.run_retrain, commands.run_evaluate
