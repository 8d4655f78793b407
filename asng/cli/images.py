"""Shared by the commands of the image experiments: data flags, architectures, folders."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from asng.runs import read_config

# A folder that is named without a flag.
SomeRun = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunOrNone = Annotated[
    Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]", help_behavior_hint="(optional)")
]


@dataclass(frozen=True)
class DataFlags:
    """Flags that every command on images has."""

    data: Path | None = None
    """Folder of the data; by default that of the environment variable ASNG_DATA, or else the user's cache."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto is the GPU where there is one."""


def make_console() -> Console:
    """A console without markup, so that file names with brackets and colons are printed unchanged."""
    return Console(markup=False, emoji=False)


def load_architecture(
    experiment: str,
    run: Path | None,
    given: str | None,
    read: Callable[[str], dict[str, Any]],
    random: Callable[[int], dict[str, Any]],
    seed: int,
) -> dict[str, Any]:
    """Load the architecture of a search or of a file, or draw one from a seed."""
    if (run is None) == (given is None):
        raise ValueError("give either the folder of a search, or --architecture with a JSON file or the word random")
    if given == "random":
        return random(seed)
    path = Path(given) if given is not None else architecture_path(Path(str(run)), experiment)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give one as architecture.json, or the word random")
    try:
        return read(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def next_command(
    experiment: str, folder: Path, small: bool, where: DataFlags, verb: str = "retrain", more: Sequence[str] = ()
) -> str:
    """The next command for a run, on the same data and at the same size, quoted for a shell.

    >>> next_command("cifar10", Path("runs/one"), True, DataFlags(data=Path("my images")))
    "asng cifar10 retrain runs/one --small --data 'my images'"
    """
    flags = ["--small"] if small else []
    flags += [] if where.data is None else ["--data", str(where.data)]
    flags += [] if where.device == "auto" else ["--device", where.device]
    return shlex.join(["asng", experiment, verb, str(folder), *flags, *more])


def architecture_path(run: Path, experiment: str) -> Path:
    """The architecture file of a run; raises ValueError for another experiment, and if there is none yet."""
    if not run.is_dir():
        raise ValueError(f"there is no folder {run}; give that of a search")
    config, path = read_config(run), run / "architecture.json"
    if config.get("experiment") != experiment:
        raise ValueError(f"{run} is a run of {config.get('experiment')}, not of {experiment}")
    if not path.is_file():
        raise ValueError(f"there is no {path} yet; let the search finish first: the same command continues it")
    return path


def run_folder(
    out: Path | None, run: Path | None, given: str | None, experiment: str, seed: int, ending: str = ""
) -> Path:
    """The folder of a retraining: in the folder of the search, with an optional ending, or one of its own.

    >>> run_folder(None, None, "random", "cifar10", 3).as_posix()
    'runs/cifar10-random-seed3'
    >>> run_folder(None, Path("runs/one"), None, "inpainting", 0, "-half").as_posix()
    'runs/one/retrain-half-seed0'
    """
    if out is not None:
        return out
    if run is not None:
        return run / f"{given or 'retrain'}{ending}-seed{seed}"
    return Path("runs") / f"{experiment}-{Path(str(given)).stem}-seed{seed}"
