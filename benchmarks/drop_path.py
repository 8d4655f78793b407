"""How many training images dropped paths cut off from the output, beside the losses of the trainings that are kept.

    python benchmarks/drop_path.py               of the trainings in results/cifar10/retraining, and of random networks
    python benchmarks/drop_path.py FOLDER        of other ones

The scores of an image that is cut off do not depend on it. If they tell nothing of its label in another way, by the
statistics of its mini-batch, then of ten classes as frequent as each other its loss is ln 10 or more in expectation;
so it is in the auxiliary head. So with c and a the shares that do not reach the two, and w the weight of the head's
loss, the expected training loss of an epoch is at least (c + w a) ln 10. The shares are computed for the probability
with which that epoch drops paths.
"""

import argparse
import math
from collections.abc import Iterable
from pathlib import Path

from cifar10_tables import FOUND, GROUPS, is_finished, read_epochs

from asng.experiments.cifar10.drop_path import CutOff, measure_cut_off
from asng.experiments.cifar10.space import CLASSES, SPACE, random_values
from asng.experiments.cifar10.task import Cifar10RetrainSettings
from asng.nas.architecture import from_dict
from asng.runs import read_config

TRAININGS = FOUND / "retraining"
NUM_RANDOM = 2000
MANY = 0.1  # from which on a training is shown epoch by epoch
SHARES = (0.01, MANY, 0.5)
EPOCHS = (1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)


def measure_epoch(folder: Path, epoch: int) -> tuple[CutOff, float]:
    """The shares that are cut off in an epoch of a training, counted from 1, and the least loss with them."""
    config = read_config(folder)
    settings = Cifar10RetrainSettings(**{name: config[name] for name in ("epochs", "cells", "drop_path", "auxiliary")})
    values = from_dict(config["architecture"], SPACE)
    cut_off = measure_cut_off(values, settings.cells, settings.drop_path_in(epoch))
    return cut_off, (cut_off.output + settings.auxiliary * cut_off.auxiliary) * math.log(CLASSES)


def list_trainings(folder: Path) -> list[Path]:
    """Those that are finished, group by group."""
    return [path for group in GROUPS for path in sorted(folder.glob(f"{group}[0-9]")) if is_finished(path)]


def show_trainings(trainings: Iterable[Path]) -> str:
    """A Markdown table of their last epochs."""
    lines = [
        "| training | images cut off | from the auxiliary head | least training loss | training loss | test error |",
        "|---|---|---|---|---|---|",
    ]
    for path in trainings:
        last = read_epochs(path)[-1]
        cut_off, least = measure_epoch(path, last["epoch"])
        shares = f"{100 * cut_off.output:.1f} % | {100 * cut_off.auxiliary:.1f} %"
        error = 100 - 100 * last["test_accuracy"]
        lines.append(f"| {path.name} | {shares} | {least:.3f} | {last['train_loss']:.3f} | {error:.2f} % |")
    return "\n".join(lines)


def show_epochs(folder: Path, others: Iterable[Path]) -> str:
    """A Markdown table of the epochs of one training, beside the losses of others."""
    losses = [[record["train_loss"] for record in read_epochs(path)] for path in others]
    heads = [
        f"epoch of {folder.name}",
        "images cut off",
        "least training loss",
        "training loss",
        "of the other trainings",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for record in (record for record in read_epochs(folder) if record["epoch"] in EPOCHS):
        epoch = record["epoch"]
        cut_off, least = measure_epoch(folder, epoch)
        of_others = [each[epoch - 1] for each in losses]
        shown = f"{100 * cut_off.output:.1f} % | {least:.3f} | {record['train_loss']:.3f}"
        lines.append(f"| {epoch} | {shown} | {min(of_others):.2f} to {max(of_others):.2f} |")
    return "\n".join(lines)


def show_random(count: int) -> str:
    """How many architectures drawn uniformly lose many images at the end of such a training."""
    settings = Cifar10RetrainSettings(epochs=100)
    drop_path = settings.drop_path_in(settings.epochs)
    cut_off = [measure_cut_off(random_values(seed), settings.cells, drop_path).output for seed in range(count)]
    shares = [f"more than {100 * share:.0f} % in {sum(c > share for c in cut_off) / count:.1%}" for share in SHARES]
    return f"Images cut off at the end, {count:,} random architectures (seeds from 0): {', '.join(shares)} of them"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=TRAININGS, help="of trainings (default: the kept ones)")
    trainings = list_trainings(parser.parse_args().folder)
    print(show_trainings(trainings))
    for path in trainings:
        if measure_epoch(path, len(read_epochs(path)))[0].output > MANY:
            print(f"\n{show_epochs(path, [other for other in trainings if other != path])}")
    print(f"\n{show_random(NUM_RANDOM)}")


if __name__ == "__main__":
    main()
