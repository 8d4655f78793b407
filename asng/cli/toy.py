"""`asng toy sweep`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from asng.cli.flags import parse_command
from asng.cli.terminal import Output, RunFlags, command_progress_bar, console, make_table, output_of, run_seeds
from asng.experiments import toy


@dataclass(frozen=True, kw_only=True)
class SweepCommand(RunFlags):
    """The paper's toy problem: success by initial step size, for ASNG, SNG and Adam.

    Writes results.jsonl, summary.json, toy.png and toy.svg into a folder. Ctrl-C keeps what is
    finished; the same command continues.

    Examples:
      asng toy sweep --quick                          a look, in less than a minute
      asng toy sweep                                  the whole sweep of the paper
      asng toy sweep --runs 20 --lrs 0.05 --out runs/small
      asng toy sweep --quick --alphas 1.1 1.5 3       with several values of alpha
    """

    settings: toy.ToySettings
    quick: bool = False
    """Other defaults, for a coarser sweep of less than a minute; --quick --help shows them."""


def run_sweep(arguments: Sequence[str]) -> None:
    """`asng toy sweep`."""
    flags = parse_command(SweepCommand, "toy sweep", arguments, presets={"quick": toy.QUICK})
    folder = flags.out or Path("runs/toy-quick" if flags.quick else "runs/toy")

    def run_one(settings: toy.ToySettings, output: Output) -> None:
        with command_progress_bar("toy problem", folder) as progress:
            summary = toy.run(settings, folder, progress)
        console.print(toy_table(summary))
        output |= {"folder": folder, **summary}
        output.line = f"Picture: {folder / 'toy.png'}"

    def estimate() -> dict[str, Any]:
        from asng.experiments._estimates import estimate_sweep  # here, since it imports torch

        return estimate_sweep(flags.settings)

    with output_of(flags) as output:
        run_seeds(flags, run_one, estimate, output)


def toy_table(summary: dict[str, Any]) -> Table:
    """For each method, the initial step sizes that reach the target, and the best of them."""
    title = f"Initial step sizes that reach the target within {summary['iterations']:,} iterations"
    texts = ("method", f"all {summary['runs']} runs", "any run")
    caption = "lr: of the weights; best: lowest median iterations / success rate"
    return make_table(title, ["lr", *texts, "best", "at"], format_ranges(summary), *texts, caption=caption)


def format_ranges(summary: dict[str, Any]) -> list[list[str]]:
    """The cells of that table."""
    lines = []
    for row in summary["ranges"]:
        method = row["method"] if row["alpha"] in (None, toy.DEFAULT_ALPHA) else f"ASNG, alpha {row['alpha']:g}"
        best = row["best"]
        shown = ("", "") if best is None else (f"{best['measure']:,.0f}", f"{best['step']:.2g}")
        lines.append([f"{row['lr']:g}", method, format_spans(row["all"]), format_spans(row["any"]), *shown])
    return lines


def format_spans(spans: list[tuple[float, float]]) -> str:
    """Ranges of step sizes as text.

    >>> format_spans([(1.0, 0.01), (1e-5, 1e-5)])
    '1 to 0.01, 1e-05'
    """
    return ", ".join(f"{a:.2g}" if a == b else f"{a:.2g} to {b:.2g}" for a, b in spans) or "none"
