"""What the commands of the experiments on images share: where data lies, which architecture is meant."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asng.nas.architecture import from_json
from asng.space import Variable


@dataclass(frozen=True)
class Where:
    """Flags that every command on images has."""

    data: Path | None = None
    """Folder of the data; by default that of the environment variable ASNG_DATA, or else a cache of asng's own."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto is the GPU where there is one."""


def architecture(
    run: Path | None,
    given: str | None,
    space: Mapping[str, Variable] | None,
    random: Callable[[int], dict[str, Any]],
    seed: int,
) -> dict[str, Any]:
    """The architecture that a search found, that a file holds, or that a seed draws."""
    if (run is None) == (given is None):
        raise ValueError("give either the folder of a search, or --architecture with a JSON file or the word random")
    if given == "random":
        return random(seed)
    path = Path(given) if given is not None else Path(str(run)) / "architecture.json"
    if not path.is_file():
        cure = "let the search finish first" if given is None else "give a JSON file, or the word random"
        raise ValueError(f"there is no {path}; {cure}")
    try:
        return from_json(path.read_text(encoding="utf-8"), space)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def folder_of(out: Path | None, run: Path | None, given: str | None, experiment: str, seed: int) -> Path:
    """Where a network is trained: inside of the search that found it, or in a folder of its own.

    >>> folder_of(None, None, "random", "cifar10", 3).as_posix()
    'runs/cifar10-random-seed3'
    """
    name = f"retrain-seed{seed}"
    if out is not None:
        return out
    return run / name if run is not None else Path("runs") / f"{experiment}-{Path(str(given)).stem}-seed{seed}"
