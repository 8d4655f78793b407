"""`asng report`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asng import report
from asng.cli.flags import parse_command
from asng.cli.terminal import OutputFlags, output_of, print_lines

INTERVAL = 10  # seconds between two pages of --watch
PAGE = "report.html"


@dataclass(frozen=True, kw_only=True)
class ReportCommand(OutputFlags):
    """Write one self-contained HTML page about one or more runs: curves, architectures, probabilities, settings.

    Runs need not be finished. Runs that differ only in their seeds also get mean and standard deviation. The page warns
    about short searches, cells without influence, violated limits, and NaN.

    Examples:
      asng report runs/digits                      writes runs/digits/report.html
      asng report runs/cifar10-asng-seed* --out seeds.html
      asng report runs/cifar10-asng-seed0 --watch  while it runs
    """

    runs: tuple[Path, ...] = field(metadata={"metavar": "RUN..."})
    """Folders of runs."""
    out: Path | None = None
    """Path of the page; by default report.html in the folder of the run, or in this folder for several runs."""
    watch: bool = False
    """Rewrite the page every 10 seconds, until Ctrl-C; the browser reloads it."""


def run_report(arguments: Sequence[str]) -> None:
    """`asng report`."""
    command = parse_command(ReportCommand, "report", arguments)
    page = command.out or (command.runs[0] / PAGE if len(command.runs) == 1 else Path(PAGE))
    with output_of(command) as output:
        output["report"] = report.write(command.runs, page, reload_every=INTERVAL if command.watch else None)
        output.line = f"Report: {page}"
        if command.watch:
            print_lines(output.line, f"It is written every {INTERVAL} seconds; Ctrl-C ends this.")
            try:
                while True:
                    time.sleep(INTERVAL)
                    report.write(command.runs, page, reload_every=INTERVAL)
            except KeyboardInterrupt:
                report.write(command.runs, page)  # a page that does not reload
                raise
