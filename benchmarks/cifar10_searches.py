"""The table and the figures of the searches on CIFAR-10 in docs/results.md, from the files in results/cifar10.

    python benchmarks/cifar10_searches.py [--results results/cifar10] [--figures docs]

A folder seedS holds what `asng cifar10 search --seed S` left (metrics.jsonl, summary.json, architecture.json), and
tests.json: by epoch, the test accuracy of the most likely architecture with the shared weights, as
`asng cifar10 evaluate` prints it.
"""

import argparse
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from asng._untrusted import read_json, read_json_lines, read_text
from asng.experiments._figures import COLORS
from asng.experiments.cifar10.drawing import cells_figure, cells_of
from asng.experiments.cifar10.space import SPACE, channels_for, idle_cells, num_parameters, random_values
from asng.nas.architecture import from_json
from asng.runs import ARCHITECTURE, CONFIG, METRICS, SUMMARY, read_config

CURE = "take it from the repository again"
ROOT = Path(__file__).parents[1]
EPOCHS = (10, 25, 50, 75, 100)
HEAD = (
    "seed | epoch | valid accuracy of the sampled architectures | test error of the most likely one, shared weights | "
    "mean largest probability | choices that differ from those at the end (of 40)"
)


class Search(NamedTuple):
    """What one search left: the records of its epochs, test accuracies by epoch, and the architecture."""

    name: str
    records: list[dict[str, Any]]
    tests: dict[int, float]
    values: dict[str, Any]

    def count_differences(self, epoch: int) -> int:
        """How many choices of the most likely architecture differ from those at the end."""
        pairs = zip(self.records[epoch - 1]["architecture"], self.records[-1]["architecture"], strict=True)
        return sum(now != then for now, then in pairs)


def read_searches(folder: Path) -> list[Search]:
    found = []
    for path in sorted(folder.glob("seed*")):
        records = read_json_lines(path / METRICS, CURE)
        tests = read_json(path / "tests.json", CURE, dict[str, float])
        values = from_json(read_text(path / ARCHITECTURE, CURE), SPACE)
        found.append(Search(path.name, records, {int(epoch): test for epoch, test in tests.items()}, values))
    if not found:
        raise SystemExit(f"there is no seed0, seed1, ... in {folder}")
    return found


def table_of(searches: Sequence[Search], epochs: Sequence[int] = EPOCHS) -> str:
    """In Markdown; an epoch that was not tested has a dash."""
    rows = [f"| {HEAD} |", "|" + "---|" * len(HEAD.split(" | "))]
    for search in searches:
        for epoch in epochs:
            record, test = search.records[epoch - 1], search.tests.get(epoch)
            cells = [
                search.name.removeprefix("seed"),
                epoch,
                f"{100 * record['valid_accuracy']:.1f} %",
                "-" if test is None else f"{100 - 100 * test:.1f} %",
                f"{record['largest_probability']:.3f}",
                search.count_differences(epoch),
            ]
            rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def sizes_of(searches: Sequence[Search], cells: int = 20) -> str:
    """Channels and parameters when retrained, in Markdown, and how many random architectures have idle cells."""
    rows = ["| seed | channels | parameters | with an influence on the output |", "|---|---|---|---|"]
    for search in searches:
        channels = channels_for(search.values, cells)
        counts = [num_parameters(search.values, channels, cells, effective=only) for only in (False, True)]
        numbers = " | ".join(f"{count:,}" for count in counts)
        rows.append(f"| {search.name.removeprefix('seed')} | {channels} | {numbers} |")
    return "\n".join(rows)


def costs_of(searches: Sequence[Search], settled: int = 25, sure: float = 0.9) -> str:
    """In Markdown: the time of all iterations, when a search was sure, and how little it changed from an epoch on."""
    head = (
        "seed | seconds | GPU days | first epoch less the second, s | ms per iteration after the first epoch | "
        f"mean largest probability above {sure} in epoch | "
        f"choices that differ from those at the end, from epoch {settled} on at most"
    )
    rows = [f"| {head} |", "|" + "---|" * len(head.split(" | "))]
    for search in searches:
        seconds = [record["seconds"] for record in search.records]
        iterations = search.records[-1]["step"] - search.records[0]["step"]
        cells = [
            search.name.removeprefix("seed"),
            f"{sum(seconds):,.0f}",
            f"{sum(seconds) / (24 * 60 * 60):.4f}",
            f"{seconds[0] - seconds[1]:.0f}",
            f"{1000 * sum(seconds[1:]) / iterations:.1f}",
            next((record["epoch"] for record in search.records if record["largest_probability"] > sure), "-"),
            max(search.count_differences(epoch) for epoch in range(settled, len(search.records) + 1)),
        ]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def is_training(folder: Path) -> bool:
    """Whether a folder has a training from scratch; of one search there is the architecture alone."""
    return (folder / CONFIG).exists() and read_config(folder)["kind"] == "retrain"


def name_idle(folder: Path, cells: int = 20) -> str:
    """Which of the kept searches found an architecture with cells that have no influence, and which cells."""
    found: dict[tuple[int, ...], list[str]] = {}
    paths = [path for path in sorted(folder.rglob(ARCHITECTURE)) if not is_training(path.parent)]
    for path in paths:
        values = from_json(read_text(path, CURE), SPACE)
        if idle := tuple(idle_cells(values, cells)):
            found.setdefault(idle, []).append(path.parent.relative_to(folder).as_posix())
    lines = [f"{', '.join(names)}: cells {', '.join(map(str, idle))}" for idle, names in found.items()]
    return f"Without influence at {cells} cells, of {len(paths)} searches:\n" + "\n".join(lines)


def idle_share(draws: int = 2000, cells: int = 20) -> float:
    """The share of uniformly drawn architectures with cells that have no influence on the output."""
    return sum(len(idle_cells(random_values(seed), cells)) > 0 for seed in range(draws)) / draws


def draw(searches: Sequence[Search], path: Path) -> None:
    """Accuracy against epochs, test error and mean largest probability against time."""
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    accuracy, error, certainty = figure.subplots(1, 3)
    for search, color in zip(searches, COLORS, strict=False):
        epochs = [record["epoch"] for record in search.records]
        valid = [100 * record["valid_accuracy"] for record in search.records]
        accuracy.plot(epochs, valid, color=color, label=search.name)
        minutes = [seconds / 60 for seconds in accumulate(record["seconds"] for record in search.records)]
        tested = sorted(search.tests.items())
        error.plot([minutes[e - 1] for e, _ in tested], [100 - 100 * a for _, a in tested], "o-", color=color)
        certainty.plot(minutes, [record["largest_probability"] for record in search.records], color=color)
    certainty.axhline(0.9, color="0.6", linewidth=0.8, linestyle="--")
    accuracy.set(xlabel="epoch", ylabel="valid accuracy of sampled ones [%]")
    error.set(xlabel="minutes", ylabel="test error of the most likely one [%]")
    certainty.set(xlabel="minutes", ylabel="mean largest probability")
    accuracy.legend(fontsize=7, frameon=False)
    for axes in (accuracy, error, certainty):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def draw_cells(folder: Path, path: Path) -> None:
    """The cells that a search found, with the probabilities of their choices."""
    found = read_json(folder / SUMMARY, CURE, dict[str, Any])
    figure = cells_figure(cells_of(found["values"], found["distribution"]))
    figure.savefig(path, dpi=200, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "cifar10")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs", help="folder of the figures")
    given = parser.parse_args()
    searches = read_searches(given.results)
    print(table_of(searches), costs_of(searches), sizes_of(searches), name_idle(given.results), sep="\n\n")
    print(f"\n{idle_share():.1%} of 2,000 random architectures (seeds 0 to 1999) have cells without influence.")
    draw(searches, given.figures / "cifar10-searches.png")
    draw_cells(given.results / "seed0", given.figures / "cifar10-seed0-cells.png")


if __name__ == "__main__":
    main()
