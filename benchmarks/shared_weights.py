"""Do shared weights rank architectures as training them alone does? CIFAR-10, at the size of a search.

    python benchmarks/shared_weights.py RUN --out FOLDER       RUN: the folder of a search with its checkpoint
    python benchmarks/shared_weights.py --draw FOLDER          table and figure again, without data and checkpoint

Protocol. Architectures are drawn uniformly (seeds 0, 1, ...). With the weights of the search each is tested on the
10,000 test images in three ways: with the running batch statistics of the search, which average over the architectures
that it sampled; with its own statistics, re-estimated on 25 training mini-batches; and with the statistics of each
mini-batch of the validation half, on that half, as the search itself judges. Then it is trained from scratch, alone:
channels and cells of the search, batch 80, all training images, no dropped paths, weight 0 for the auxiliary head, and
tested after the last epoch. Rank correlations over the architectures have 95 % intervals from 1,000 bootstrap samples.

Finished architectures are appended to FOLDER/results.jsonl; after Ctrl-C the same command continues.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import kendalltau, spearmanr  # type: ignore[import-untyped]

from asng import nas
from asng.experiments._jobs import SearchJob, TrainJob
from asng.experiments._settings import parse_device
from asng.experiments.cifar10.data import load_cifar10
from asng.experiments.cifar10.network import count_without_auxiliary
from asng.experiments.cifar10.space import random_values
from asng.experiments.cifar10.task import Cifar10, Cifar10RetrainSettings, Cifar10SearchSettings, accuracy
from asng.experiments.figures import BLUE, save_figure
from asng.experiments.workers import run_parallel
from asng.nas._loop import Checkpoint, run_job
from asng.runs import CHECKPOINT, METRICS, RESULTS, Run, read_config, settings_from_config

WAYS = {
    "running": "running statistics of the search",
    "recalibrated": "its own statistics, re-estimated",
    "judged": "statistics of each mini-batch, as the search judges",
}
SAMPLES = 1000


@lru_cache(maxsize=1)
def load_task(data: Path | None, device: str) -> Cifar10:
    """Once for each process."""
    return Cifar10(*load_cifar10(data, parse_device(device)))


@lru_cache(maxsize=1)
def load_search(folder: Path, data: Path | None, device: str) -> SearchJob:
    """A search as its checkpoint has it; once for each process."""
    config = read_config(folder, "cifar10", needs=CHECKPOINT)
    job = SearchJob(load_task(data, device), settings_from_config(Cifar10SearchSettings, config))
    Checkpoint(folder / CHECKPOINT, config).restore(job)
    return job


def accuracies_shared(
    job: SearchJob, task: Cifar10, values: dict[str, Any], max_images: int | None
) -> dict[str, float]:
    """Accuracies of an architecture with the weights of a search, by the names in WAYS."""
    running = accuracy(nas.extract(job.model, values), task.test, max_images)
    recalibrated = accuracy(job.network(values), task.test, max_images)
    job.oneshot.supernet.choose(values)
    count = job.valid_batches.steps if max_images is None else max(1, max_images // job.valid_batches._size)
    with torch.no_grad():
        found = [task.search_loss(job.model, job.valid_batches(number))[1]["accuracy"] for number in range(count)]
    return {"running": running, "recalibrated": recalibrated, "judged": torch.stack(found).mean().item()}


def measure(
    folder: Path, data: Path | None, device: str, epochs: int, max_images: int | None, seed: int
) -> dict[str, Any]:
    """The row of one architecture."""
    task, job, values = load_task(data, device), load_search(folder, data, device), random_values(seed)
    shared = accuracies_shared(job, task, values, max_images)
    search: Any = job._search_settings
    settings = Cifar10RetrainSettings(
        epochs=epochs,
        channels=search.channels,
        cells=search.cells,
        drop_path=0.0,
        auxiliary=0.0,
        num_train_images=max_images or Cifar10RetrainSettings.num_train_images,
    )
    alone = TrainJob(task, settings, values)
    records = run_job(alone, epochs=epochs, unit=settings.unit)
    return {
        "seed": seed,
        **shared,
        "alone": accuracy(alone.model, task.test, max_images),
        "parameters": count_without_auxiliary(alone.model),
        "train_loss": records[-1]["train_loss"],
    }


def run(
    folder: Path,
    out: Path,
    *,
    data: Path | None,
    device: str = "auto",
    architectures: int = 20,
    epochs: int = 10,
    workers: int = 1,
    max_images: int | None = None,
) -> list[dict[str, Any]]:
    """Do what the folder of the results does not hold yet; returns its rows in the order of their seeds."""
    searched = read_config(folder, "cifar10", needs=CHECKPOINT)
    epoch = len((folder / METRICS).read_text(encoding="utf-8").splitlines())
    config = {"benchmark": "shared weights", "epochs": epochs, "max_images": max_images}
    config |= {"search": searched, "after_epoch": epoch}
    with Run(out, config) as kept:
        done = {row["seed"] for row in kept.results()}
        missing = [seed for seed in range(architectures) if seed not in done]
        task = partial(measure, folder, data, device, epochs, max_images)
        with closing(run_parallel(task, missing, workers)) as rows:
            for count, (seed, row) in enumerate(rows, 1):
                kept.append(row)
                shown = " ".join(f"{name} {row[name]:.3f}" for name in (*WAYS, "alone"))
                print(f"{count} of {len(missing)}, architecture {seed}: {shown}", file=sys.stderr, flush=True)
        return sorted(kept.results(), key=lambda row: int(row["seed"]))


def correlate(x: Sequence[float], y: Sequence[float]) -> dict[str, tuple[float, float, float]]:
    """Spearman's and Kendall's rank correlation, each with a 95 % bootstrap interval.

    >>> correlate([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60])["Spearman"][0]
    1.0
    """
    pairs, result = np.column_stack([x, y]), {}
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


def draw(rows: Sequence[dict[str, Any]], folder: Path, name: str) -> None:
    """Accuracies with shared weights against those of trainings alone."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for axes, (way, text) in zip(figure.subplots(1, len(WAYS), sharey=True), WAYS.items(), strict=True):
        axes.plot([100 * row[way] for row in rows], [100 * row["alone"] for row in rows], "o", color=BLUE)
        axes.set_xlabel(text.replace(", ", ",\n"), fontsize=8)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("test accuracy, trained alone, %", fontsize=8)
    save_figure(figure, folder, name, dpi=150)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The finished rows of a folder, without its lock."""
    if not (folder / RESULTS).is_file():
        raise ValueError(f"{folder} holds no {RESULTS}")
    rows = [json.loads(line) for line in (folder / RESULTS).read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: int(row["seed"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of a search on CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("runs/shared-weights"), help="folder of the results")
    parser.add_argument("--architectures", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--epochs", type=int, default=10, help="of training each alone (default: 10)")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side (default: 1)")
    parser.add_argument("--max-images", type=int, help="use the first ones only, for a quick look")
    parser.add_argument("--data", type=Path, help="folder of the data; default: ASNG_DATA, or the user's cache")
    parser.add_argument("--device", default="auto", help="cpu, cuda; auto is the GPU where there is one")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="show the results in a folder; runs nothing")
    given = parser.parse_args()
    if (given.run is None) == (given.draw is None):
        parser.error("give the folder of a search, or --draw with that of results")
    try:
        if given.draw is None:
            names = ("data", "device", "architectures", "epochs", "workers", "max_images")
            run(given.run, given.out, **{name: getattr(given, name) for name in names})
        rows = read_rows(given.draw or given.out)
    except ValueError as error:
        sys.exit(f"shared_weights: {error}")
    except KeyboardInterrupt:
        print(f"\nInterrupted. What is finished is in {given.out}; the same command continues.", file=sys.stderr)
        sys.exit(130)
    print(show_table(rows))
    draw(rows, given.draw or given.out, "shared-weights")


if __name__ == "__main__":
    main()
