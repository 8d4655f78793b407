"""The network of a run, finished or not, as it leaves by `asng export`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asng import nas
from asng._progress import Progress
from asng.experiments import digits
from asng.experiments._image_runs import load_trained
from asng.experiments._task import Task
from asng.nas._checkpoints import Checkpoint
from asng.runs import CHECKPOINT, SUMMARY, read_config, settings_from_config

DIGITS_INPUTS = "Images (n, 1, 8, 8), gray from 0 to 1; scores of the ten digits."
SHARED = "shared weights of the search"
RECALIBRATED = f"{SHARED}, with batch statistics of this architecture,"
NOT_FINISHED = ", which is not finished"


class Exportable(NamedTuple):
    """A network and its description.

    Attributes:
        network: Static, on the CPU.
        values: Its architecture.
        example: Inputs of it.
        weights: Which weights these are, in words.
        inputs: What the network takes and returns, in words.
    """

    network: nn.Module
    values: Mapping[str, Any]
    example: Tensor
    weights: str
    inputs: str


def load_image_run(task: type[Task], folder: Path, data: Path | None, progress: Progress) -> Exportable:
    """The network of a search or a training on images; images are loaded for batch statistics alone."""
    config = read_config(folder, task.name, needs=CHECKPOINT)
    is_search = config.get("kind") == "search"
    needs_images = is_search and task.calibration_batches > 0
    where = task.data_settings(data=data, device="cpu")
    loaded = task.load(where, progress) if needs_images else task.without_images()
    trained = load_trained(loaded, folder, config)
    so_far = "" if (folder / SUMMARY).exists() else NOT_FINISHED
    shared = RECALIBRATED if needs_images else SHARED
    weights = f"{shared if is_search else 'trained from scratch,'} after {trained.steps:,} steps{so_far}"
    weights += f"; train from scratch for better ones (asng {task.name} retrain)" if is_search else ""
    example = torch.rand(2, 3, *loaded.test.size, generator=torch.Generator().manual_seed(0))
    return Exportable(trained.network, trained.values, example, weights, task.inputs)


def load_digits_run(folder: Path) -> Exportable:
    """The network of a search on digits.

    Runs keep no weights of finished searches: what was found is trained from scratch again, to the same weights. Of a
    search that goes on, it is the most likely architecture so far, with the shared weights.
    """
    config = read_config(folder, "digits")
    if config.get("kind") != "search":
        raise ValueError(f"{folder} is an asng digits {config.get('kind')}; asng export takes asng digits search")
    settings = settings_from_config(digits.DigitsSettings, config, folder)
    searched = next(iter(digits.read_results(folder)), None)  # the search is the first record
    data = digits.load_split(settings.seed)
    with digits.one_thread():
        if searched is None:
            oneshot, job = digits.make_search(settings, data)
            _, steps = Checkpoint(folder / CHECKPOINT, config).restore(lambda: job)
            found = nas.result(oneshot)
            network, values = found.model, found.values
            nas.recalibrate(network, [data.train])
            weights = f"{RECALIBRATED} after {steps:,} steps{NOT_FINISHED}"
        else:
            values = searched["values"]
            network = digits.train_network(settings, data, values)
            accuracy = 100 * digits.accuracy_of(network, data.test)
            weights = f"trained from scratch as in the run, with seed {settings.seed}; test accuracy {accuracy:.2f} %"
    return Exportable(network, values, data.test[0][:2], weights, DIGITS_INPUTS)
