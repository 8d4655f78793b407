"""The tables and the figure of the toy problem in docs/results.md, from the files in results/toy.

    python benchmarks/toy_tables.py [--results results/toy] [--figures docs]

The folder holds what `asng toy sweep` left: config.json and results.jsonl. The figure is the one that the sweep draws.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from nasbench201_report import markdown

from asng.cli.toy import format_ranges
from asng.experiments import toy
from asng.runs import RESULTS, read_config, settings_from_config

ROOT = Path(__file__).parents[1]


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished sweep; ValueError for a folder without one."""
    config = read_config(folder, "toy", needs=RESULTS) | {"workers": 1}  # of any number, which configurations leave out
    sweep = settings_from_config(toy.ToySettings, config, folder)
    reached, settings = toy.read_records(folder, sweep), toy.settings_of(sweep)
    if len(reached) < len(settings):
        raise ValueError(f"{folder} has {len(reached)} of {len(settings)} settings; the same command continues it")
    return toy.summarize(sweep, reached)


def table_of_ranges(summary: dict[str, Any]) -> str:
    """In Markdown: the initial step sizes that reach the target, as the sweep prints them."""
    head = ["lr", "method", f"all {summary['runs']} runs succeed", "any run succeeds", "best measure", "at step size"]
    return markdown(head, format_ranges(summary))


def table_of_measures(summary: dict[str, Any]) -> str:
    """In Markdown: the measure for each initial step size, ASNG's with its default alpha; the lowest is bold."""
    rows: dict[tuple[float, float], dict[str, dict[str, Any]]] = {}
    for point in summary["points"]:
        if point["alpha"] in (None, toy.DEFAULT_ALPHA):
            rows.setdefault((point["lr"], point["step"]), {})[point["method"]] = point
    lines = []
    for (lr, step), points in rows.items():
        lowest = min((point["measure"] for point in points.values() if point["measure"]), default=None)
        cells = [format_point(points[method], summary["runs"], lowest) for method in toy.METHODS]
        lines.append([f"{lr:g}", f"{step:.2g}", *cells])
    return markdown(["lr", "step size", *toy.METHODS], lines)


def format_point(point: dict[str, Any], runs: int, lowest: float | None) -> str:
    """The measure of a setting, bold if it is the lowest; how many runs succeeded, if not all.

    >>> format_point({"measure": 1234.5, "successes": 10}, 10, lowest=1234.5)
    '**1,234**'
    >>> format_point({"measure": 1234.5, "successes": 2}, 10, lowest=99.0)
    '1,234 (2 of 10)'
    """
    if point["measure"] is None:
        return "never"
    number = f"**{point['measure']:,.0f}**" if point["measure"] == lowest else f"{point['measure']:,.0f}"
    return number if point["successes"] == runs else f"{number} ({point['successes']} of {runs})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "toy")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs", help="folder of the figure")
    given = parser.parse_args()
    try:
        summary = read_summary(given.results)
    except ValueError as error:
        sys.exit(f"toy_tables: {error}")
    print(table_of_ranges(summary), table_of_measures(summary), sep="\n\n")
    toy.draw_sweep(summary, given.figures)


if __name__ == "__main__":
    main()
