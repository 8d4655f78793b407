"""The commands of all image experiments: `search`, `retrain` and `evaluate`."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import tyro

from asng._untrusted import read_text
from asng.cli.terminal import Flat, parse_command, progress_bar
from asng.experiments._image_runs import retrain, search
from asng.experiments._jobs import Task
from asng.runs import ARCHITECTURE, CHECKPOINT, read_config

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

    def flags(self) -> list[str]:
        """The flags that give the same data to another command."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


Settings = TypeVar("Settings")
Where = TypeVar("Where", bound=DataFlags)


@dataclass(frozen=True, kw_only=True)
class SearchFlags(Generic[Settings, Where]):
    """Flags of all searches."""

    settings: Annotated[Settings, Flat]
    where: Annotated[Where, Flat] = tyro.MISSING_NONPROP
    small: bool = False
    """Other defaults, for two cores: a smaller network, fewer images and steps."""
    out: Path | None = None
    """Folder of the run; by default runs/EXPERIMENT-..., named after what is searched."""
    capture: bool = True
    """On a GPU: run each step as one CUDA graph, several times as fast; --no-capture launches kernels one by one."""


@dataclass(frozen=True, kw_only=True)
class RetrainFlags(Generic[Settings, Where]):
    """Flags of all trainings from scratch."""

    run: RunOrNone = None
    """Folder of a search."""
    settings: Annotated[Settings, Flat]
    where: Annotated[Where, Flat] = tyro.MISSING_NONPROP
    architecture: str | None = None
    """Instead of a search: a file as architecture.json, or the word random, which draws one from the seed."""
    small: bool = False
    """Other defaults, for two cores: a smaller network, fewer images and steps."""
    out: Path | None = None
    """Folder of the run; RUN/retrain-seedS, or runs/EXPERIMENT-NAME-seedS."""


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags(Generic[Where]):
    """Flags of all tests."""

    run: SomeRun
    """Folder of a search or of a retraining."""
    where: Annotated[Where, Flat] = tyro.MISSING_NONPROP


class Commands(ABC):
    """The commands of an image experiment, and what they need to know of it."""

    name: ClassVar[str]
    search_flags: ClassVar[type[SearchFlags[Any, Any]]]
    retrain_flags: ClassVar[type[RetrainFlags[Any, Any]]]
    evaluate_flags: ClassVar[type[EvaluateFlags[Any]]]
    baselines: ClassVar[tuple[str, ...]]  # words for --architecture
    small_search: ClassVar[Any]  # settings
    small_retrain: ClassVar[Any]

    @abstractmethod
    def load_task(self, flags: Any) -> Task:
        """The task, on the data that the flags name."""

    @abstractmethod
    def label(self, settings: Any) -> str:
        """The part of a search's folder name that says what is searched."""

    @abstractmethod
    def read_values(self, text: str) -> dict[str, Any]:
        """An architecture from JSON."""

    @abstractmethod
    def baseline_values(self, flags: Any) -> dict[str, Any]:
        """The architecture of a baseline."""

    @abstractmethod
    def print_architecture(self, summary: Mapping[str, Any], folder: Path) -> None:
        """Print the architecture that a search found."""

    @abstractmethod
    def print_training(self, summary: Mapping[str, Any], test_command: str) -> None:
        """Print the result of a training."""

    @abstractmethod
    def evaluate(self, flags: Any, config: Mapping[str, Any]) -> None:
        """Test what a run has trained, and print the result."""

    def run_search(self, arguments: Sequence[str]) -> None:
        """`asng EXPERIMENT search`."""
        title = f"{self.name} search"
        flags: Any = parse_command(self.search_flags, title, arguments, small=self.small_search)
        name = f"{self._prefix(flags.small)}-{self.label(flags.settings)}-seed{flags.settings.seed}"
        folder = flags.out or Path("runs") / name
        task = self.load_task(flags)
        with progress_bar(title, folder) as progress:
            summary = search(task, flags.settings, folder, progress, capture=flags.capture)
        if not summary["feasible"]:
            print("No architecture met the limit; this is the nearest one.")
        self.print_architecture(summary, folder)
        print("Train it from scratch:", next_command(self.name, "retrain", folder, flags.where, small=flags.small))

    def run_retrain(self, arguments: Sequence[str]) -> None:
        """`asng EXPERIMENT retrain`."""
        title = f"{self.name} retrain"
        flags: Any = parse_command(self.retrain_flags, title, arguments, small=self.small_retrain)
        flags, values, folder = self.choose(flags)
        task = self.load_task(flags)
        with progress_bar(title, folder) as progress:
            summary = retrain(task, flags.settings, values, folder, progress)
        self.print_training(summary, next_command(self.name, "evaluate", folder, flags.where))

    def run_evaluate(self, arguments: Sequence[str]) -> None:
        """`asng EXPERIMENT evaluate`."""
        flags: Any = parse_command(self.evaluate_flags, f"{self.name} evaluate", arguments)
        config = read_config(flags.run, self.name, needs=CHECKPOINT)  # before anything slow
        self.evaluate(flags, config)

    def choose(self, flags: Any) -> tuple[Any, dict[str, Any], Path]:
        """The flags of a training with all defaults filled in, its architecture and its folder."""
        return flags, self.load_values(flags), self.retrain_folder(flags)

    def load_values(self, flags: Any) -> dict[str, Any]:
        """The architecture of a search, of a file, or of a baseline."""
        if flags.architecture in self.baselines:
            return self.baseline_values(flags)
        if (flags.run is None) == (flags.architecture is None):
            words = " or ".join(self.baselines)
            raise ValueError(
                f"give either the folder of a search, or --architecture with a JSON file or the word {words}"
            )
        if flags.run is not None:
            read_config(flags.run, self.name, needs=ARCHITECTURE)
        path = Path(flags.architecture) if flags.run is None else flags.run / ARCHITECTURE
        if not path.is_file():
            raise ValueError(f"there is no file {path}; give one as {ARCHITECTURE}, or the word random")
        try:
            return self.read_values(read_text(path, f"give one as {ARCHITECTURE}"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def retrain_folder(self, flags: Any, ending: str = "") -> Path:
        """The folder of a training: in that of the search, or one of its own."""
        end = f"{ending}-seed{flags.settings.seed}"
        if flags.out is not None:
            return Path(flags.out)
        if flags.run is not None:
            return Path(flags.run) / f"{flags.architecture or 'retrain'}{end}"
        return Path("runs") / f"{self._prefix(flags.small)}-{Path(flags.architecture).stem}{end}"

    def _prefix(self, small: bool) -> str:
        return f"{self.name}{'-small' if small else ''}"


def next_command(experiment: str, verb: str, folder: Path, where: DataFlags, *, small: bool = False) -> str:
    """The next command for a run, on the same data and at the same size, quoted for a shell.

    >>> next_command("cifar10", "retrain", Path("runs/one"), DataFlags(data=Path("my images")), small=True)
    "asng cifar10 retrain runs/one --small --data 'my images'"
    """
    return shlex.join(["asng", experiment, verb, str(folder), *(["--small"] if small else []), *where.flags()])
