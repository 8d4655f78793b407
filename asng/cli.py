"""The command line: `asng EXPERIMENT [VERB] [flags]`. Only this module prints.

Flags come from the settings of each experiment, so that there is one place where they are written.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

from asng.experiments import digits, toy

try:
    import tyro
    from rich import box
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table
except ImportError as error:
    sys.exit(f"The command line needs more than the optimizer ({error}); install it with: pip install 'asng[nas]'")

INTERRUPTED = 130  # what a shell reports for Ctrl-C
WRONG_INPUT = 2


@dataclass(frozen=True)
class Toy:
    """The paper's toy problem: how the initial step size decides over success, for ASNG, SNG and Adam.

    Writes results.jsonl, summary.json, toy.png and toy.svg into a folder. Ctrl-C keeps what is
    finished; the same command continues.

    Examples:
      asng toy --quick                          a look, in less than a minute
      asng toy                                  the whole sweep of the paper
      asng toy --runs 20 --rates 0.05 --out runs/small
      asng toy --quick --alphas 1.1 1.5 3       quick, but with several values of alpha
    """

    settings: Annotated[toy.Settings, tyro.conf.arg(name="")] = field(default_factory=toy.Settings)
    quick: bool = False
    """A coarser sweep: changes the defaults of the other flags, and can be combined with them."""
    out: Path | None = None
    """Folder of the run; runs/toy, or runs/toy-quick with --quick."""


def run_toy(arguments: Sequence[str]) -> None:
    """`asng toy`."""
    quick = "--quick" in arguments  # seen before parsing, since it decides over the defaults of other flags
    command = tyro.cli(
        Toy,
        prog="asng toy",
        description=cleandoc(Toy.__doc__ or ""),
        args=arguments,
        default=Toy(toy.QUICK if quick else toy.Settings()),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    folder = command.out or Path("runs/toy-quick" if quick else "runs/toy")
    console = Console()
    with progress_bar(console, "toy problem", folder) as progress:
        summary = toy.run(command.settings, folder, progress)
    console.print(toy_table(summary))
    console.print(f"Picture: {folder / 'toy.png'}", soft_wrap=True)


def toy_table(summary: dict[str, Any]) -> Table:
    """For each method, the initial step sizes that reach the target, and the best of them."""
    table = Table(
        title=f"Initial step sizes that reach the target within {summary['iterations']:,} iterations",
        caption="rate: of the weights; best: lowest median iterations / success rate",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("rate", justify="right")
    for name in ("method", f"all {summary['runs']} runs", "any run"):
        table.add_column(name)
    table.add_column("best", justify="right")
    table.add_column("at", justify="right")
    for row in summary["ranges"]:
        method = row["method"] if row["alpha"] in (None, toy.DEFAULT_ALPHA) else f"ASNG alpha {row['alpha']:g}"
        best = row["best"]
        shown = ("", "") if best is None else (f"{best['measure']:,.0f}", f"{best['step']:.2g}")
        table.add_row(f"{row['rate']:g}", method, stretches(row["all"]), stretches(row["any"]), *shown)
    return table


def stretches(spans: list[tuple[float, float]]) -> str:
    """Stretches of step sizes as text.

    >>> stretches([(1.0, 0.01), (1e-5, 1e-5)])
    '1 to 0.01, 1e-05'
    """
    return ", ".join(f"{a:.2g}" if a == b else f"{a:.2g} to {b:.2g}" for a, b in spans) or "none"


@dataclass(frozen=True)
class DigitsSearch:
    """Search a network for handwritten digits, train it from scratch and test it: about a minute on the CPU.

    Beside it, trained alike: random architectures of the same space, as many as the time of the
    search buys, and a network made by hand. Writes architecture.json, results.jsonl and
    summary.json. Ctrl-C keeps what is finished; the same command continues.

    Examples:
      asng digits search
      asng digits search --seeds 10 --out runs/ten
    """

    settings: Annotated[digits.Settings, tyro.conf.arg(name="")] = field(default_factory=digits.Settings)
    out: Path = Path("runs/digits")
    """Folder of the run."""


def run_digits(arguments: Sequence[str]) -> None:
    """`asng digits search`."""
    command = tyro.cli(
        DigitsSearch,
        prog="asng digits search",
        description=cleandoc(DigitsSearch.__doc__ or ""),
        args=arguments,
    )
    console = Console()
    with progress_bar(console, "digits", command.out) as progress:
        summary = digits.run(command.settings, command.out, progress)
    row = summary["rows"][-1]
    found = ", ".join(f"{name}={value}" for name, value in row["values"].items())
    console.print(f"Found with seed {row['seed']}, probability {row['probability']:.2g}: {found}", soft_wrap=True)
    console.print(digits_table(summary))
    console.print(f"Architecture: {command.out / 'architecture.json'}", soft_wrap=True)


def digits_table(summary: dict[str, Any]) -> Table:
    """Test accuracy and parameters of what was found, beside what it is compared with."""
    table = Table(title="Test accuracy, trained from scratch", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("architecture")
    for name in ("accuracy", "standard error", "parameters"):
        table.add_column(name, justify="right")
    rows = summary["rows"]
    counts = sorted({row["random_count"] for row in rows})
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    names = {
        "found": "found by the search",
        "random_mean": f"mean of {several} random ones",
        "random_best": f"best of {several} random ones",
        "hand": "made by hand",
    }
    for kind, name in names.items():
        accuracy = summary["accuracy"][kind]
        error = "" if accuracy["standard_error"] is None else f"{100 * accuracy['standard_error']:.2f}"
        parameters = sum(row[kind]["parameters"] for row in rows) / len(rows)
        table.add_row(name, f"{100 * accuracy['mean']:.2f} %", error, f"{parameters:,.0f}")
    return table


@contextmanager
def progress_bar(console: Console, title: str, folder: Path) -> Iterator[Callable[[float], None]]:
    """A bar with the time left; without a terminal, a line for every tenth. Ctrl-C says how to continue."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    left = TimeRemainingColumn()
    tenths = -1

    with Progress(*columns, left, console=console, disable=not console.is_terminal, speed_estimate_period=600) as bar:
        task = bar.add_task(title, total=1.0)

        def progress(fraction: float) -> None:
            nonlocal tenths
            bar.update(task, completed=fraction)
            if not console.is_terminal and int(fraction * 10) > tenths:
                tenths = int(fraction * 10)
                console.print(f"{title}: {tenths * 10} %")

        try:
            yield progress
        except KeyboardInterrupt:
            bar.stop()
            print(f"Interrupted. What is finished is in {folder}; the same command continues.", file=sys.stderr)
            raise


# The words of a command, and what they run.
COMMANDS: dict[tuple[str, ...], tuple[Callable[[Sequence[str]], None], str]] = {
    ("digits", "search"): (run_digits, "a search of a minute, on handwritten digits"),
    ("toy",): (run_toy, "the paper's toy problem: robustness to the initial step size"),
}


def overview() -> str:
    lines = [f"  asng {' '.join(words):<14} {purpose}" for words, (_, purpose) in COMMANDS.items()]
    return "\n".join(["usage: asng EXPERIMENT [VERB] [flags]", "", *lines, "", "--help behind each says more."])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Exit codes: 0 done, 2 wrong input, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return
    words = next((words for words in COMMANDS if tuple(arguments[: len(words)]) == words), None)
    if words is None:
        known = ", ".join(f"'{' '.join(words)}'" for words in COMMANDS)
        print(f"asng: no command {' '.join(arguments[:2])!r}; there is {known}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    command, _ = COMMANDS[words]
    try:
        command(arguments[len(words) :])
    except (ValueError, OSError) as error:
        print(f"asng: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
