"""`asng export`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal

from asng import nas
from asng._untrusted import shorten
from asng.cli import EXPERIMENTS, Images
from asng.cli.flags import parse_command
from asng.cli.terminal import OutputFlags, command_progress_bar, output_of, print_lines
from asng.experiments._export import Exportable, load_digits_run, load_image_run
from asng.nas.export import plan_files
from asng.runs import is_own_search, read_config

Format = Literal["json", "safetensors", "python", "torch", "onnx"]


@dataclass(frozen=True, kw_only=True)
class ExportCommand(OutputFlags):
    """Write the network of a run as files that run without asng: evaluation mode, float32, batches of any size.

    Files: architecture.json (json); weights.safetensors (safetensors); network.py (python), which builds the network
    from torch layers and loads these weights; network.pt2 (torch), for torch.export.load; network.onnx (onnx). Each is
    loaded again and compared with the network before any is written. RUN is a search or a retraining of cifar10 or
    inpainting, or a search of digits; it need not be finished. Needs pip install 'asng[export]'.

    Examples:
      asng export runs/digits                      writes runs/digits/export
      asng export runs/cifar10-asng-seed0/retrain-seed0 --out cifar10-network
      asng export runs/digits --format json onnx --out digits-onnx
    """

    run: Path = field(metadata={"metavar": "RUN"})
    """Folder of the run."""
    format: tuple[Format, ...] = ("json", "safetensors", "python", "torch", "onnx")
    """Formats to write; python also writes safetensors."""
    out: Path | None = None
    """Folder of the files, by default RUN/export; existing files are not overwritten."""
    data: Path | None = None
    """Folder of the images; needed only for the batch-norm statistics of a search of cifar10."""


def run_export(arguments: Sequence[str]) -> None:
    """`asng export`."""
    command = parse_command(ExportCommand, "export", arguments)
    refuse_own_search(command)
    folder = command.out or command.run / "export"
    plan_files(folder, command.format, {})  # digits are trained first, which takes a while
    with output_of(command) as output:
        found = load_run(command.run, command.data)
        print_lines(f"Weights: {found.weights}")
        files = nas.export(
            found.network,
            folder,
            found.example,
            values=found.values,
            formats=command.format,
            description=f"{found.inputs} Weights: {found.weights}.",
        )
        print_lines(*(f"{name:<12} {path} ({path.stat().st_size:,} bytes)" for name, path in files.items()))
        output |= {"weights": found.weights, "inputs": found.inputs, "files": files}
        output.line = f"Exported: {folder}"


def refuse_own_search(command: ExportCommand) -> None:
    """Raise ValueError that says how a search of the user's own is exported, whose model only their program has."""
    run = command.run
    if run.is_file():
        what = f"{run} is a file, not the folder of a run; if it is the checkpoint of a nas.search"
    elif is_own_search(read_config(run)):
        what = f"{run} is a search of your own, saved without weights"
    else:
        return
    folder = str(command.out or run.with_suffix("") / "export")
    raise ValueError(
        f"{what}, export its result in Python: nas.export(result.model, {folder!r}, inputs, values=result.values), "
        "where inputs are a batch for the model; the same nas.search call with its checkpoint returns result again"
    )


def load_run(folder: Path, data: Path | None) -> Exportable:
    """The network of a run of any experiment that has one."""
    name = read_config(folder).get("experiment")
    experiment = EXPERIMENTS.get(str(name))
    if isinstance(experiment, Images):
        with command_progress_bar("reading the run") as progress:
            return load_image_run(resolve_name(experiment.task), folder, data, progress)
    if name == "digits":
        return load_digits_run(folder)
    known = ", ".join(known for known, each in EXPERIMENTS.items() if isinstance(each, Images))
    raise ValueError(
        f"{folder} is a run of {shorten(name)}, which has no network; asng export takes {known} and digits"
    )
