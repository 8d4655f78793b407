"""`asng inpainting search`, `retrain` and `evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from asng.cli.images import RunOrNone, SomeRun, Where, architecture, folder_of, found_in, next_command, plain_console
from asng.cli.terminal import parsed, progress_bar
from asng.experiments.inpainting.data import Data, Faces, described, load, load_all
from asng.experiments.inpainting.encoding import base_values, depth, random_values, read_values, variables, widths_of
from asng.experiments.inpainting.retraining import SMALL_RETRAINING, Retraining, evaluate, retrain
from asng.experiments.inpainting.search import SMALL, Settings, search
from asng.experiments.searching import config_in
from asng.experiments.training import device_of
from asng.runs import config_of
from asng.space import Variable

Flat = tyro.conf.arg(name="")


@dataclass(frozen=True)
class Lists:
    """Which faces are for what, where their folders do not say it."""

    train_list: Path | None = None
    """A text file with the names of the training images, one in each line."""
    test_list: Path | None = None
    """The same for the test images."""

    def flags(self) -> list[str]:
        """What to give to the next command."""
        given = {"--train-list": self.train_list, "--test-list": self.test_list}
        return [word for flag, path in given.items() if path is not None for word in (flag, str(path))]


def faces(where: Where, lists: Lists, console: Console, most: int | None = None) -> Data:
    """Faces to train and to test with; it is said how many, and what is wrong with some of them."""
    given = (lists.train_list, lists.test_list)
    if (given[0] is None) != (given[1] is None):
        raise ValueError("give --train-list and --test-list together, or neither")
    both = None if given[0] is None or given[1] is None else (given[0], given[1])
    with progress_bar(console, "reading faces", None) as progress:
        data = load(where.data, device_of(where.device), lists=both, progress=progress)
    n = len(data.train)
    train = f"{n:,}" if most is None or most >= n else f"{most:,} of {n:,}"
    console.print(f"{train} faces to train with, {len(data.test):,} to test with ({data.split})", highlight=False)
    say_left_out(data.damaged, console)
    return data


def say_left_out(damaged: Mapping[str, str], console: Console, most: int = 5) -> None:
    """Which images could not be read, and why; the first few of them."""
    for name, reason in list(damaged.items())[:most]:
        console.print(f"Left out: {name} ({reason})", soft_wrap=True, highlight=False)
    if len(damaged) > most:
        console.print(f"... and {len(damaged) - most} more", highlight=False)


@dataclass(frozen=True)
class Search:
    """Search an autoencoder that fills holes in faces: section 3.3 of the paper.

    --data, or the environment variable ASNG_DATA, names a folder of face images, or CelebA as its authors
    distribute it. After every stretch a line of metrics.jsonl and a checkpoint; at the end
    architecture.json and summary.json. Ctrl-C saves; the same command continues.

    Examples:
      asng inpainting search                                   as in the paper, for a GPU
      asng inpainting search --encoding int --mask pixel
      asng inpainting search --small                           a look, minutes on two cores
    """

    settings: Annotated[Settings, Flat] = field(default_factory=Settings)
    where: Annotated[Where, Flat] = field(default_factory=Where)
    lists: Annotated[Lists, Flat] = field(default_factory=Lists)
    small: bool = False
    """Other defaults, for two cores: a smaller network, fewer faces and iterations, a higher rate, the mask pixel."""
    out: Path | None = None
    """Folder of the run; runs/inpainting-ENCODING-MASK-METHOD-seedS, or with --small runs/inpainting-small-..."""


def run_search(arguments: Sequence[str]) -> None:
    """`asng inpainting search`."""
    small = "--small" in arguments  # seen before parsing, since it decides over the defaults of other flags
    command: Search = parsed(Search, "inpainting search", arguments, Search(SMALL if small else Settings()))
    settings = command.settings
    name = f"{settings.encoding}-{settings.mask}-{settings.method}-seed{settings.seed}"
    folder = command.out or Path("runs") / f"inpainting{'-small' if small else ''}-{name}"
    console = plain_console()
    data = faces(command.where, command.lists, console, settings.images)
    with progress_bar(console, "inpainting search", folder) as progress:
        summary = search(settings, folder, data.train, data.test, progress)
    if not summary["inside"]:
        console.print("No architecture met the limit; this is the nearest one.")
    console.print("Found (the other layers are inactive):", *summary["chain"], sep="\n", highlight=False)
    again = next_command("inpainting", folder, small, command.where, more=command.lists.flags())
    console.print(f"Train it from scratch: {again}", soft_wrap=True)


@dataclass(frozen=True)
class Retrain:
    """Train an autoencoder from scratch on faces with holes, and test it.

    The mask is that of the search, unless another one is given. The yardstick base has layers of 3x3 with skip
    and 64 channels, or the nearest number that the search allowed. Ctrl-C saves; the same command continues.

    Examples:
      asng inpainting retrain runs/inpainting-cat-center-asng-seed0                          what a search found
      asng inpainting retrain runs/inpainting-cat-center-asng-seed0 --architecture base      yardsticks
      asng inpainting retrain runs/inpainting-cat-center-asng-seed0 --architecture random --seed 3
      asng inpainting retrain --architecture random --seed 3 --mask pixel
      asng inpainting retrain --architecture network.json --iterations 20000
    """

    run: RunOrNone = None
    """Folder of a search."""
    settings: Annotated[Retraining, Flat] = field(default_factory=Retraining)
    where: Annotated[Where, Flat] = field(default_factory=Where)
    lists: Annotated[Lists, Flat] = field(default_factory=Lists)
    architecture: str | None = None
    """A file as architecture.json; random, drawn from the space of RUN or of the paper; base, as deep as RUN found."""
    small: bool = False
    """Other defaults, for two cores: fewer faces and iterations."""
    out: Path | None = None
    """Folder of the run; RUN/retrain-seedS, RUN/random-seedS or RUN/base-seedS, with the mask in it where that is not
    the one of the search; or runs/inpainting-NAME-seedS."""


def run_retrain(arguments: Sequence[str]) -> None:
    """`asng inpainting retrain`."""
    small, masked = "--small" in arguments, any(word.startswith("--mask") for word in arguments)
    settings = SMALL_RETRAINING if small else Retraining()
    command: Retrain = parsed(Retrain, "inpainting retrain", arguments, Retrain(settings=settings))
    settings, run = command.settings, command.run
    searched = settings.mask if run is None else config_of(run).get("mask", settings.mask)
    if not masked:
        settings = replace(settings, mask=searched)
    values, folder = chosen(command, "" if settings.mask == searched else f"-{settings.mask}")
    console = plain_console()
    data = faces(command.where, command.lists, console, settings.images)
    with progress_bar(console, "inpainting retrain", folder) as progress:
        summary = retrain(settings, values, folder, data.train, data.test, progress)
    console.print(*summary["chain"], sep="\n", highlight=False)
    test = next_command("inpainting", folder, False, command.where, "evaluate", command.lists.flags())
    console.print(f"{summary['parameters']:,} parameters. Test it: {test}", soft_wrap=True)


def chosen(command: Retrain, ending: str) -> tuple[dict[str, Any], Path]:
    """The architecture that is meant, and where it is trained; in the folder of a search, by a name with an ending."""
    run, given, seed = command.run, command.architecture, command.settings.seed
    if run is None and given == "base":
        raise ValueError("base has as many layers as what a search found; give the folder of the search, too")
    if run is not None and given not in (None, "base", "random"):
        raise ValueError(f"beside the folder of a search, --architecture is base or random, got {given!r}")
    if run is not None and given is not None:
        values = base(run) if given == "base" else random_values(space_of(run), seed)
    else:
        space = variables(SMALL.encoding, SMALL.layers, widths=SMALL.widths) if command.small else variables("cat")
        values = architecture("inpainting", run, given, read_values, lambda seed: random_values(space, seed), seed)
    return values, folder_of(command.out, run, given, f"inpainting{'-small' if command.small else ''}", seed, ending)


def space_of(run: Path) -> dict[str, Variable]:
    """The space of a search."""
    there = config_of(run)
    if (there.get("experiment"), there.get("kind")) != ("inpainting", "search"):
        raise ValueError(f"{run} is no search of inpainting, beside which base and random could be trained")
    return variables(there["encoding"], there["layers"], widths=there["widths"])


def base(run: Path) -> dict[str, Any]:
    """The baseline BASE with as many layers as a search has found."""
    space = space_of(run)
    found = read_values(found_in(run, "inpainting").read_text(encoding="utf-8"))
    return base_values(space, depth(found), min(widths_of(space), key=lambda width: abs(width - 64)))


@dataclass(frozen=True)
class Evaluate:
    """PSNR and SSIM of what a run has trained, on all test faces; leaves evaluation.json and restored.png.

    The masks of the test faces are the same for all runs.

    Examples:
      asng inpainting evaluate runs/inpainting-cat-center-asng-seed0/retrain-seed0
      asng inpainting evaluate runs/inpainting-cat-center-asng-seed0
      asng inpainting evaluate runs/inpainting-cat-center-asng-seed0/retrain-seed0 --pictures family
    """

    run: SomeRun
    """Folder of a search or of a retraining."""
    pictures: Path | None = None
    """A folder of any faces to test on instead, without other data; leaves evaluation-NAME.json, restored-NAME.png."""
    where: Annotated[Where, Flat] = field(default_factory=Where)
    lists: Annotated[Lists, Flat] = field(default_factory=Lists)


def run_evaluate(arguments: Sequence[str]) -> None:
    """`asng inpainting evaluate`."""
    command: Evaluate = parsed(Evaluate, "inpainting evaluate", arguments)
    console = plain_console()
    there = config_in(command.run, "inpainting")  # before anything takes long
    name = "" if command.pictures is None else command.pictures.resolve().name
    test = tested(command, there, console) if command.pictures is None else pictures(command.pictures, command, console)
    with progress_bar(console, f"testing on {len(test):,} faces", None) as progress:
        report = evaluate(command.run, test, progress, name)
    psnr = "infinite" if report["psnr"] is None else f"{report['psnr']:.2f} dB"
    console.print(f"PSNR {psnr}, SSIM {report['ssim']:.4f} on {report['images']:,} faces", highlight=False)
    console.print(f"Picture: {command.run / report['picture']}", soft_wrap=True)


def tested(command: Evaluate, there: Mapping[str, Any], console: Console) -> Faces:
    """The test faces of a run; raises ValueError where the data is other than that it was made with."""
    data = faces(command.where, command.lists, console)
    found = described(data.train, data.test)
    if found != there.get("faces"):
        raise ValueError(
            f"{command.run} was made with other faces ({there.get('faces')}) than these ({found}); give the same "
            "--data and lists, or name a folder to test on by --pictures"
        )
    return data.test


def pictures(folder: Path, command: Evaluate, console: Console) -> Faces:
    """All images of a folder."""
    found, damaged = load_all(folder, device_of(command.where.device))
    say_left_out(damaged, console)
    return found
