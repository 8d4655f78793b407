"""`asng inpainting search`, `retrain` and `evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from asng.cli.images import (
    DataFlags,
    RunOrNone,
    SomeRun,
    architecture_path,
    load_architecture,
    make_console,
    next_command,
    run_folder,
)
from asng.cli.terminal import parse_command, progress_bar
from asng.experiments.inpainting.data import Data, Faces, describe_faces, load_faces, load_folder
from asng.experiments.inpainting.encoding import base_values, depth, random_values, read_values, search_space, widths_of
from asng.experiments.inpainting.retraining import SMALL_RETRAIN, InpaintingRetrainSettings, evaluate, retrain
from asng.experiments.inpainting.search import SMALL, InpaintingSearchSettings, search
from asng.experiments.searching import read_checkpointed_config
from asng.experiments.training import parse_device
from asng.runs import read_config
from asng.space import Variable

Flat = tyro.conf.arg(name="")


@dataclass(frozen=True)
class ListFlags:
    """Which faces are for what, where their folders do not say it."""

    train_list: Path | None = None
    """A text file with the names of the training images, one in each line."""
    test_list: Path | None = None
    """The same for the test images."""

    def flags(self) -> list[str]:
        """What to give to the next command."""
        given = {"--train-list": self.train_list, "--test-list": self.test_list}
        return [word for flag, path in given.items() if path is not None for word in (flag, str(path))]


def load_data(where: DataFlags, lists: ListFlags, console: Console, max_train: int | None = None) -> Data:
    """Load the faces to train and to test with; print their numbers and the images that were left out."""
    given = (lists.train_list, lists.test_list)
    if (given[0] is None) != (given[1] is None):
        raise ValueError("give --train-list and --test-list together, or neither")
    both = None if given[0] is None or given[1] is None else (given[0], given[1])
    with progress_bar(console, "reading faces", None) as progress:
        data = load_faces(where.data, parse_device(where.device), lists=both, progress=progress)
    n = len(data.train)
    train = f"{n:,}" if max_train is None or max_train >= n else f"{max_train:,} of {n:,}"
    console.print(f"{train} faces to train with, {len(data.test):,} to test with ({data.split})", highlight=False)
    print_left_out(data.damaged, console)
    return data


def print_left_out(damaged: Mapping[str, str], console: Console, max_shown: int = 5) -> None:
    """Print the first few images that could not be read, and why."""
    for name, reason in list(damaged.items())[:max_shown]:
        console.print(f"Left out: {name} ({reason})", soft_wrap=True, highlight=False)
    if len(damaged) > max_shown:
        console.print(f"... and {len(damaged) - max_shown} more", highlight=False)


@dataclass(frozen=True)
class SearchCommand:
    """Search an autoencoder that fills holes in faces: section 3.3 of the paper.

    --data, or the environment variable ASNG_DATA, names a folder of face images, or CelebA as its authors
    distribute it. Every --checkpoint-every iterations a line of metrics.jsonl and a checkpoint; at the end
    architecture.json and summary.json. Ctrl-C saves; the same command continues.

    Examples:
      asng inpainting search                                   as in the paper, for a GPU
      asng inpainting search --encoding int --mask pixel
      asng inpainting search --small                           a look, minutes on two cores
    """

    settings: Annotated[InpaintingSearchSettings, Flat] = field(default_factory=InpaintingSearchSettings)
    where: Annotated[DataFlags, Flat] = field(default_factory=DataFlags)
    lists: Annotated[ListFlags, Flat] = field(default_factory=ListFlags)
    small: bool = False
    """Other defaults, for two cores: smaller network, fewer faces and iterations, higher lr, the mask pixel."""
    out: Path | None = None
    """Folder of the run; runs/inpainting-ENCODING-MASK-METHOD-seedS, or with --small runs/inpainting-small-..."""


def run_search(arguments: Sequence[str]) -> None:
    """`asng inpainting search`."""
    small = "--small" in arguments  # before parsing, since it changes the defaults of other flags
    command: SearchCommand = parse_command(
        SearchCommand, "inpainting search", arguments, SearchCommand(SMALL if small else InpaintingSearchSettings())
    )
    settings = command.settings
    name = f"{settings.encoding}-{settings.mask}-{settings.method}-seed{settings.seed}"
    folder = command.out or Path("runs") / f"inpainting{'-small' if small else ''}-{name}"
    console = make_console()
    data = load_data(command.where, command.lists, console, settings.num_train_images)
    with progress_bar(console, "inpainting search", folder) as progress:
        summary = search(settings, folder, data.train, data.test, progress)
    if not summary["feasible"]:
        console.print("No architecture met the limit; this is the nearest one.")
    console.print("Found (the other layers are inactive):", *summary["chain"], sep="\n", highlight=False)
    again = next_command("inpainting", folder, small, command.where, more=command.lists.flags())
    console.print(f"Train it from scratch: {again}", soft_wrap=True)


@dataclass(frozen=True)
class RetrainCommand:
    """Train an autoencoder from scratch on faces with holes, and test it.

    The mask is that of the search, unless another one is given. The baseline base has layers of 3x3 with skip
    and 64 channels, or the nearest number that the search allowed. Ctrl-C saves; the same command continues.

    Examples:
      asng inpainting retrain runs/inpainting-cat-center-asng-seed0                          what a search found
      asng inpainting retrain runs/inpainting-cat-center-asng-seed0 --architecture base      baselines
      asng inpainting retrain runs/inpainting-cat-center-asng-seed0 --architecture random --seed 3
      asng inpainting retrain --architecture random --seed 3 --mask pixel
      asng inpainting retrain --architecture network.json --iterations 20000
    """

    run: RunOrNone = None
    """Folder of a search."""
    settings: Annotated[InpaintingRetrainSettings, Flat] = field(default_factory=InpaintingRetrainSettings)
    where: Annotated[DataFlags, Flat] = field(default_factory=DataFlags)
    lists: Annotated[ListFlags, Flat] = field(default_factory=ListFlags)
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
    settings = SMALL_RETRAIN if small else InpaintingRetrainSettings()
    command: RetrainCommand = parse_command(
        RetrainCommand, "inpainting retrain", arguments, RetrainCommand(settings=settings)
    )
    settings, run = command.settings, command.run
    searched = settings.mask if run is None else read_config(run).get("mask", settings.mask)
    if not masked:
        settings = replace(settings, mask=searched)
    values, folder = choose_architecture(command, "" if settings.mask == searched else f"-{settings.mask}")
    console = make_console()
    data = load_data(command.where, command.lists, console, settings.num_train_images)
    with progress_bar(console, "inpainting retrain", folder) as progress:
        summary = retrain(settings, values, folder, data.train, data.test, progress)
    console.print(*summary["chain"], sep="\n", highlight=False)
    test = next_command("inpainting", folder, False, command.where, "evaluate", command.lists.flags())
    console.print(f"{summary['parameters']:,} parameters. Test it: {test}", soft_wrap=True)


def choose_architecture(command: RetrainCommand, ending: str) -> tuple[dict[str, Any], Path]:
    """The architecture to train and the folder of the retraining; `ending` is part of its name in a search's folder."""
    run, given, seed = command.run, command.architecture, command.settings.seed
    if run is None and given == "base":
        raise ValueError("base has as many layers as what a search found; give the folder of the search, too")
    if run is not None and given not in (None, "base", "random"):
        raise ValueError(f"beside the folder of a search, --architecture is base or random, got {given!r}")
    if run is not None and given is not None:
        values = base_architecture(run) if given == "base" else random_values(run_space(run), seed)
    else:
        space = (
            search_space(SMALL.encoding, SMALL.layers, widths=SMALL.widths) if command.small else search_space("cat")
        )
        values = load_architecture("inpainting", run, given, read_values, lambda seed: random_values(space, seed), seed)
    return values, run_folder(command.out, run, given, f"inpainting{'-small' if command.small else ''}", seed, ending)


def run_space(run: Path) -> dict[str, Variable]:
    """The space of a search."""
    config = read_config(run)
    if (config.get("experiment"), config.get("kind")) != ("inpainting", "search"):
        raise ValueError(f"{run} is no search of inpainting, beside which base and random could be trained")
    return search_space(config["encoding"], config["layers"], widths=config["widths"])


def base_architecture(run: Path) -> dict[str, Any]:
    """The baseline BASE with as many layers as a search has found."""
    space = run_space(run)
    found = read_values(architecture_path(run, "inpainting").read_text(encoding="utf-8"))
    return base_values(space, depth(found), min(widths_of(space), key=lambda width: abs(width - 64)))


@dataclass(frozen=True)
class EvaluateCommand:
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
    where: Annotated[DataFlags, Flat] = field(default_factory=DataFlags)
    lists: Annotated[ListFlags, Flat] = field(default_factory=ListFlags)


def run_evaluate(arguments: Sequence[str]) -> None:
    """`asng inpainting evaluate`."""
    command: EvaluateCommand = parse_command(EvaluateCommand, "inpainting evaluate", arguments)
    console = make_console()
    config = read_checkpointed_config(command.run, "inpainting")  # before anything slow
    name = "" if command.pictures is None else command.pictures.resolve().name
    test = (
        load_test_faces(command, config, console)
        if command.pictures is None
        else load_pictures(command.pictures, command, console)
    )
    with progress_bar(console, f"testing on {len(test):,} faces", None) as progress:
        report = evaluate(command.run, test, progress, name)
    psnr = "infinite" if report["psnr"] is None else f"{report['psnr']:.2f} dB"
    console.print(f"PSNR {psnr}, SSIM {report['ssim']:.4f} on {report['images']:,} faces", highlight=False)
    console.print(f"Picture: {command.run / report['picture']}", soft_wrap=True)


def load_test_faces(command: EvaluateCommand, config: Mapping[str, Any], console: Console) -> Faces:
    """Load the test faces of a run; raises ValueError if the data differ from those it was made with."""
    data = load_data(command.where, command.lists, console)
    found = describe_faces(data.train, data.test)
    if found != config.get("faces"):
        raise ValueError(
            f"{command.run} was made with other faces ({config.get('faces')}) than these ({found}); give the same "
            "--data and lists, or name a folder to test on by --pictures"
        )
    return data.test


def load_pictures(folder: Path, command: EvaluateCommand, console: Console) -> Faces:
    """Load all images of a folder."""
    found, damaged = load_folder(folder, parse_device(command.where.device))
    print_left_out(damaged, console)
    return found
