"""`asng inpainting search`, `retrain` and `evaluate`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asng.cli.images import Commands, DataFlags, EvaluateFlags, RetrainFlags, SearchFlags
from asng.cli.terminal import progress_bar
from asng.experiments._settings import parse_device
from asng.experiments.inpainting import task
from asng.experiments.inpainting.data import load_faces, load_folder
from asng.experiments.inpainting.encoding import base_values, depth, random_values, read_values, search_space, widths_of
from asng.experiments.inpainting.masks import Mask
from asng.runs import read_config
from asng.space import Variable


@dataclass(frozen=True)
class FaceFlags(DataFlags):
    """Which faces there are, and which of them are for what, where their folders do not say it."""

    train_list: Path | None = None
    """A text file with the names of the training images, one in each line."""
    test_list: Path | None = None
    """The same for the test images."""


class InpaintingSearchFlags(SearchFlags[task.InpaintingSearchSettings, FaceFlags]):
    """Search an autoencoder that fills holes in faces: section 3.3 of the paper.

    --data, or the environment variable ASNG_DATA, names a folder of face images, or CelebA as its authors
    distribute it. Every --checkpoint-every iterations a line of metrics.jsonl and a checkpoint; at the end
    architecture.json and summary.json. Ctrl-C saves; the same command continues. With --small also the learning
    rate and the mask are others.

    Examples:
      asng inpainting search                                   as in the paper, for a GPU
      asng inpainting search --encoding int --mask pixel
      asng inpainting search --small                           a look, minutes on two cores
    """


@dataclass(frozen=True, kw_only=True)
class InpaintingRetrainFlags(RetrainFlags[task.InpaintingRetrainSettings, FaceFlags]):
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

    architecture: str | None = None
    """A file as architecture.json; random, drawn from the space of RUN or of the paper; base, as deep as RUN found."""
    out: Path | None = None
    """Folder of the run; RUN/retrain-seedS, RUN/random-seedS or RUN/base-seedS, with the mask in it where that is not
    the one of the search; or runs/inpainting-NAME-seedS."""


@dataclass(frozen=True, kw_only=True)
class InpaintingEvaluateFlags(EvaluateFlags[FaceFlags]):
    """PSNR and SSIM of what a run has trained, on all test faces; leaves evaluation.json and restored.png.

    The masks of the test faces are the same for all runs.

    Examples:
      asng inpainting evaluate runs/inpainting-cat-center-asng-seed0/retrain-seed0
      asng inpainting evaluate runs/inpainting-cat-center-asng-seed0
      asng inpainting evaluate runs/inpainting-cat-center-asng-seed0/retrain-seed0 --pictures family
    """

    pictures: Path | None = None
    """A folder of any faces to test on instead, without other data; leaves evaluation-NAME.json, restored-NAME.png."""


class InpaintingCommands(Commands):
    """The commands on faces."""

    name = "inpainting"
    search_flags, retrain_flags = InpaintingSearchFlags, InpaintingRetrainFlags
    evaluate_flags = InpaintingEvaluateFlags
    baselines = ("random", "base")
    small_search, small_retrain = task.SMALL, task.SMALL_RETRAIN

    def load_task(self, flags: Any) -> task.Inpainting:
        where: FaceFlags = flags.where
        if (where.train_list is None) != (where.test_list is None):
            raise ValueError("give --train-list and --test-list together, or neither")
        lists = None if where.train_list is None or where.test_list is None else (where.train_list, where.test_list)
        with progress_bar("reading faces") as progress:
            data = load_faces(where.data, parse_device(where.device), lists=lists, progress=progress)
        n, settings = len(data.train), getattr(flags, "settings", None)
        used = n if settings is None else min(n, settings.num_train_images or n)
        train = f"{n:,}" if used == n else f"{used:,} of {n:,}"
        print(f"{train} faces to train with, {len(data.test):,} to test with ({data.split})")
        print_left_out(data.damaged)
        return task.Inpainting(data.train, data.test)

    def label(self, settings: task.InpaintingSearchSettings) -> str:
        return f"{settings.encoding}-{settings.mask}-{settings.method}"

    def read_values(self, text: str) -> dict[str, Any]:
        return read_values(text)

    def baseline_values(self, flags: InpaintingRetrainFlags) -> dict[str, Any]:
        if flags.run is not None:
            space = run_space(flags.run)
        elif flags.architecture == "base":
            raise ValueError("base has as many layers as what a search found; give the folder of the search, too")
        else:
            small = search_space(task.SMALL.encoding, task.SMALL.layers, widths=task.SMALL.widths)
            space = small if flags.small else search_space("cat")
        if flags.architecture == "random":
            return random_values(space, flags.settings.seed)
        found = self.load_values(replace(flags, architecture=None))
        return base_values(space, depth(found), min(widths_of(space), key=lambda width: abs(width - 64)))

    def choose(self, flags: InpaintingRetrainFlags) -> tuple[Any, dict[str, Any], Path]:
        searched: Mask | None = None if flags.run is None else read_config(flags.run).get("mask")
        mask = flags.settings.mask or searched or (task.SMALL.mask if flags.small else task.DEFAULT_MASK)
        flags = replace(flags, settings=replace(flags.settings, mask=mask))
        ending = "" if searched in (None, mask) else f"-{mask}"
        return flags, self.load_values(flags), self.retrain_folder(flags, ending)

    def print_architecture(self, summary: Mapping[str, Any], folder: Path) -> None:
        print("Found (the other layers are inactive):", *summary["chain"], sep="\n")

    def print_training(self, summary: Mapping[str, Any], test_command: str) -> None:
        print(*summary["chain"], sep="\n")
        print(f"{summary['parameters']:,} parameters. Test it: {test_command}")

    def evaluate(self, flags: InpaintingEvaluateFlags, config: Mapping[str, Any]) -> None:
        name = ""
        if flags.pictures is None:
            inpainting = self.load_task(flags)
            if (faces := inpainting.identity()["faces"]) != config.get("faces"):
                raise ValueError(
                    f"{flags.run} was made with other faces ({config.get('faces')}) than these ({faces}); give the "
                    "same --data and lists, or name a folder to test on by --pictures"
                )
        else:
            name = flags.pictures.resolve().name
            faces, damaged = load_folder(flags.pictures, parse_device(flags.where.device))
            print_left_out(damaged)
            inpainting = task.Inpainting(faces, faces)
        with progress_bar(f"testing on {len(inpainting.test):,} faces") as progress:
            report = task.evaluate(inpainting, flags.run, config, progress, name)
        psnr = "infinite" if report["psnr"] is None else f"{report['psnr']:.2f} dB"
        print(f"PSNR {psnr}, SSIM {report['ssim']:.4f} on {report['images']:,} faces")
        print(f"Picture: {flags.run / report['picture']}")


def run_space(run: Path) -> dict[str, Variable]:
    """The space of a search."""
    config = read_config(run)
    if (config.get("experiment"), config.get("kind")) != ("inpainting", "search"):
        raise ValueError(f"{run} is no search of inpainting, beside which base and random could be trained")
    return search_space(config["encoding"], config["layers"], widths=config["widths"])


def print_left_out(damaged: Mapping[str, str], max_shown: int = 5) -> None:
    """Print the first few images that could not be read, and why."""
    for name, reason in list(damaged.items())[:max_shown]:
        print(f"Left out: {name} ({reason})")
    if len(damaged) > max_shown:
        print(f"... and {len(damaged) - max_shown} more")


commands = InpaintingCommands()
run_search, run_retrain, run_evaluate = commands.run_search, commands.run_retrain, commands.run_evaluate
