"""Do shared weights rank architectures as training them alone does? CIFAR-10, at the size of a search.

    python benchmarks/shared_weights.py RUN... --out FOLDER    RUN: folders of searches with their checkpoints
    python benchmarks/shared_weights.py --draw FOLDER          tables and figures again, without data and checkpoints

Protocol. Architectures are drawn uniformly (seeds 0, 1, ...). Each is trained from scratch, alone: channels and cells
of the paper's search, batch 80, all training images, no dropped paths, weight 0 for the auxiliary head; it is tested on
the 10,000 test images after the last epoch. With the weights of a search it is tested in three ways: on the test images
with the running batch statistics of the search, which average over the architectures that it sampled; there with its
own statistics, re-estimated on 25 training mini-batches; and on the validation half with the statistics of each
mini-batch, as the search itself judges. Rank correlations over the architectures have 95 % intervals from 1,000
bootstrap samples.

Finished architectures are appended to FOLDER/alone/results.jsonl and FOLDER/NAME/results.jsonl, where NAME is that of
RUN; after Ctrl-C the same command continues.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import kendalltau, spearmanr  # type: ignore[import-untyped]

from asng import nas
from asng._untrusted import read_json_lines
from asng.experiments._figures import BLUE, save_figure
from asng.experiments._jobs import SearchJob, TrainJob
from asng.experiments._settings import parse_device
from asng.experiments._workers import run_parallel
from asng.experiments.cifar10.data import load_cifar10
from asng.experiments.cifar10.network import count_without_auxiliary
from asng.experiments.cifar10.space import random_values
from asng.experiments.cifar10.task import Cifar10, Cifar10RetrainSettings, Cifar10SearchSettings, accuracy
from asng.nas._checkpoints import Checkpoint
from asng.nas._loop import run_job
from asng.runs import CHECKPOINT, METRICS, RESULTS, Run, read_config, settings_from_config

WAYS = {
    "running": "running statistics of the search",
    "recalibrated": "its own statistics, re-estimated",
    "judged": "statistics of each mini-batch, as the search judges",
}
SAMPLES = 1000
ALONE = "alone"


class Size(NamedTuple):
    """What is trained alone, on which data."""

    data: Path | None
    device: str
    epochs: int
    channels: int = 16
    cells: int = 8
    max_images: int | None = None


@lru_cache(maxsize=1)
def load_task(data: Path | None, device: str) -> Cifar10:
    """Once for each process."""
    return Cifar10(*load_cifar10(data, parse_device(device)))


@lru_cache(maxsize=1)
def load_search(folder: Path, data: Path | None, device: str) -> SearchJob:
    """A search as its checkpoint has it; once for each process."""
    config = read_config(folder, "cifar10", needs=CHECKPOINT)
    settings = settings_from_config(Cifar10SearchSettings, config, folder)
    job, _ = Checkpoint(folder / CHECKPOINT, config).restore(lambda: SearchJob(load_task(data, device), settings))
    return job


def measure_alone(size: Size, seed: int) -> dict[str, Any]:
    """The row of an architecture that is trained from scratch."""
    task = load_task(size.data, size.device)
    settings = Cifar10RetrainSettings(
        epochs=size.epochs,
        channels=size.channels,
        cells=size.cells,
        drop_path=0.0,
        auxiliary=0.0,
        num_train_images=size.max_images or Cifar10RetrainSettings.num_train_images,
    )
    job = TrainJob(task, settings, random_values(seed))
    records = run_job(job, epochs=size.epochs, unit=settings.unit)
    found = {"alone": accuracy(job.model, task.test, size.max_images), "train_loss": records[-1]["train_loss"]}
    return {"seed": seed, **found, "parameters": count_without_auxiliary(job.model)}


def measure_shared(folder: Path, size: Size, seed: int) -> dict[str, Any]:
    """The row of an architecture with the weights of a search: accuracies by the names in WAYS."""
    task, job, values = (
        load_task(size.data, size.device),
        load_search(folder, size.data, size.device),
        random_values(seed),
    )
    running = accuracy(nas.extract(job.model, values), task.test, size.max_images)
    recalibrated = accuracy(job.network(values), task.test, size.max_images)
    job.oneshot.supernet.choose(values)
    count = job.valid_batches.steps if size.max_images is None else 1
    with torch.no_grad():
        found = [task.search_loss(job.model, job.valid_batches(number))[1]["accuracy"] for number in range(count)]
    judged = torch.stack(found).mean().item()
    return {"seed": seed, "running": running, "recalibrated": recalibrated, "judged": judged}


def run(
    function: Callable[[int], dict[str, Any]], out: Path, config: dict[str, Any], architectures: int, workers: int
) -> None:
    """Do what a folder of results does not hold yet."""
    with Run(out, {"benchmark": "shared weights", **config}) as kept:
        done = {row["seed"] for row in kept.results()}
        missing = [seed for seed in range(architectures) if seed not in done]
        with closing(run_parallel(function, missing, workers)) as rows:
            for count, (_, row) in enumerate(rows, 1):
                kept.append(row)
                shown = ", ".join(f"{name} {value:.4g}" for name, value in row.items())
                print(f"{out.name}: {count} of {len(missing)}: {shown}", file=sys.stderr, flush=True)


def run_all(runs: Sequence[Path], out: Path, size: Size, architectures: int, workers: int) -> None:
    """All trainings alone, then all searches."""
    trained = {name: value for name, value in size._asdict().items() if name not in ("data", "device")}
    run(partial(measure_alone, size), out / ALONE, trained, architectures, workers)
    for folder in runs:
        config = {"search": read_config(folder, "cifar10", needs=CHECKPOINT), "max_images": size.max_images}
        config["after_epoch"] = len((folder / METRICS).read_text(encoding="utf-8").splitlines())
        run(partial(measure_shared, folder, size), out / folder.name, config, architectures, workers)


def correlate(x: Sequence[float], y: Sequence[float]) -> dict[str, tuple[float, float, float]]:
    """Spearman's and Kendall's rank correlation, each with a 95 % bootstrap interval; NaN where all numbers are equal.

    >>> correlate([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60])["Spearman"][0]
    1.0
    """
    pairs, result = np.column_stack([x, y]), {}
    if not np.ptp(pairs, 0).all():
        return dict.fromkeys(("Spearman", "Kendall"), (math.nan, math.nan, math.nan))
    for name, statistic in (("Spearman", spearmanr), ("Kendall", kendalltau)):
        rng = np.random.default_rng(0)
        drawn = (pairs[rng.integers(len(pairs), size=len(pairs))] for _ in range(SAMPLES))
        values = [statistic(*sample.T).statistic for sample in drawn if np.ptp(sample, 0).all()]
        low, high = np.quantile(values, [0.025, 0.975])
        result[name] = round(float(statistic(x, y).statistic), 3), float(low), float(high)
    return result


def show_table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of the correlations, and the spread of each accuracy."""
    alone = [row["alone"] for row in rows]
    lines = [
        f"{len(rows)} architectures; trained alone: {_spread(alone)}.\n",
        "| with shared weights | accuracy | Spearman's correlation | Kendall's |\n|---|---|---|---|",
    ]
    for name, text in WAYS.items():
        shared = [row[name] for row in rows]
        found = [f"{value:.2f} [{low:.2f}, {high:.2f}]" for value, low, high in correlate(shared, alone).values()]
        lines.append(f"| {text} | {_spread(shared)} | {' | '.join(found)} |")
    found = [f"{r:.2f} [{a:.2f}, {b:.2f}]" for r, a, b in correlate([r["parameters"] for r in rows], alone).values()]
    lines.append(f"| for comparison: the number of parameters | | {' | '.join(found)} |")
    return "\n".join(lines)


def _spread(accuracies: Sequence[float]) -> str:
    mean, low, high = (100 * f(accuracies) for f in (np.mean, np.min, np.max))
    return f"{mean:.1f} % ({low:.1f} to {high:.1f})"


def draw(searches: Mapping[str, Sequence[dict[str, Any]]], folder: Path) -> None:
    """Accuracies with the shared weights of each search against those of trainings alone."""
    figure = Figure(figsize=(9, 3 * len(searches)), layout="constrained")
    grid = figure.subplots(len(searches), len(WAYS), sharey=True, squeeze=False)
    for line, (name, rows) in zip(grid, searches.items(), strict=True):
        line[0].set_ylabel(f"{name}: test accuracy,\ntrained alone, %", fontsize=8)
        for axes, (way, text) in zip(line, WAYS.items(), strict=True):
            axes.plot([100 * row[way] for row in rows], [100 * row["alone"] for row in rows], "o", color=BLUE)
            axes.set_xlabel(text.replace(", ", ",\n") + ", %", fontsize=8)
            axes.grid(alpha=0.3)
    save_figure(figure, folder, "shared-weights", dpi=150)


def read_rows(folder: Path) -> dict[int, dict[str, Any]]:
    """The finished rows of a folder by their seeds, without its lock."""
    if not (folder / RESULTS).is_file():
        raise ValueError(f"{folder} holds no {RESULTS}")
    return {row["seed"]: row for row in read_json_lines(folder / RESULTS, "let the benchmark continue")}


def show(out: Path, figures: Path) -> None:
    """Print the table of each search in a folder of results, and draw a figure of all."""
    alone, searches = read_rows(out / ALONE), {}
    for folder in sorted(path.parent for path in out.glob(f"*/{RESULTS}") if path.parent.name != ALONE):
        shared = read_rows(folder)
        rows = [{**alone[seed], **shared[seed]} for seed in sorted(alone.keys() & shared.keys())]
        print(f"\n{folder.name}, after epoch {read_config(folder)['after_epoch']}: {show_table(rows)}")
        searches[folder.name] = rows
    if searches:
        draw(searches, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="*", type=Path, metavar="RUN", help="folder of a search on CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("runs/shared-weights"), help="folder of the results")
    parser.add_argument("--architectures", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--epochs", type=int, default=10, help="of training each alone (default: 10)")
    parser.add_argument("--channels", type=int, default=16, help="of the first cell, trained alone (default: 16)")
    parser.add_argument("--cells", type=int, default=8, help="of a network trained alone (default: 8)")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side (default: 1)")
    parser.add_argument("--max-images", type=int, help="use the first ones only, for a quick look")
    parser.add_argument("--data", type=Path, help="folder of the data; default: ASNG_DATA, or the user's cache")
    parser.add_argument("--device", default="auto", help="cpu, cuda; auto is the GPU where there is one")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="show the results in a folder; runs nothing")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="where the figure goes; default: the results")
    given = parser.parse_args()
    out = given.draw or given.out
    try:
        if given.draw is None:
            size = Size(*(getattr(given, name) for name in Size._fields))
            run_all(given.run, given.out, size, given.architectures, given.workers)
        show(out, given.figures or out)
    except ValueError as error:
        sys.exit(f"shared_weights: {error}")
    except KeyboardInterrupt:
        print(f"\nInterrupted. Finished parts are in {given.out}; the same command continues.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
