"""Progress of long computations: the callback that they take, and a bar that shows it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

TERMINAL_INTERVAL, LOG_INTERVAL = 10.0, 60.0  # seconds between two lines of text where there is no bar
FIRST_REPORT, REPORT_INTERVAL = 1.0, 0.2  # seconds before a delayed bar appears, and between its changes


class Progress(Protocol):
    """Called with the fraction done and a text; `line`: a text to keep, such as at the end of an epoch."""

    def __call__(self, fraction: float, text: str = "", *, line: bool = False) -> None: ...


def no_progress(fraction: float, text: str = "", *, line: bool = False) -> None:
    """Show nothing."""


def part_of(progress: Progress, start: float, length: float) -> Progress:
    """Progress of a part of a computation: of the fraction of it that begins at `start`; texts are not shown."""
    return lambda fraction, text="", *, line=False: progress(start + length * fraction)


@contextmanager
def progress_bar(title: str, console: Any = None) -> Iterator[Progress]:
    """A bar with the time left and the last text; where it cannot be drawn, a line of text now and then.

    It appears with the first call, so that nothing flashes if there is nothing to do. Without a rich `console` it is on
    stderr, and only on a terminal; without rich there are only lines.
    """
    try:
        from rich.console import Console
    except ImportError:
        terminal = sys.stderr if sys.stderr.isatty() else None
        yield (
            _write_lines(title, TERMINAL_INTERVAL, lambda text: terminal.write(f"{text}\n"))
            if terminal
            else no_progress
        )
        return
    given, console = console, console or Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        with _live_bar(title, console) as progress:
            yield progress
    elif given is not None:
        yield _write_lines(title, LOG_INTERVAL, lambda text: console.print(text, soft_wrap=True, highlight=False))
    else:
        yield no_progress


@contextmanager
def delayed_progress_bar(title: str, *, wanted: bool) -> Iterator[Progress]:
    """A bar that appears after a second, so that quick computations show none; without a terminal, lines of text."""
    if not wanted:
        yield no_progress
        return
    with progress_bar(title) as drawn:
        lines = _write_lines(title, LOG_INTERVAL, lambda text: sys.stderr.write(f"{text}\n"))
        bar = lines if drawn is no_progress else drawn
        next_report = time.monotonic() + FIRST_REPORT

        def report(fraction: float, text: str = "", *, line: bool = False) -> None:
            nonlocal next_report
            if time.monotonic() >= next_report:
                bar(fraction, text, line=line)
                next_report = time.monotonic() + REPORT_INTERVAL

        yield report


@contextmanager
def _live_bar(title: str, console: Any) -> Iterator[Progress]:
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    times = (TextColumn("after"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    bar = Bar(TextColumn(title), BarColumn(), TaskProgressColumn(), *times, speed_estimate_period=600)
    task = bar.add_task(title, total=1.0)
    live = Live(bar, console=console)

    def progress(fraction: float, text: str = "", *, line: bool = False) -> None:
        if fraction < bar.tasks[task].completed:  # another task begins, with its own time
            bar.reset(task)
        bar.update(task, completed=fraction)
        live.start()
        shown = bar if line or not text else Group(bar, Text(text))  # a long text breaks, not the bar
        live.update(shown, refresh=line)
        if line:
            console.print(text, soft_wrap=True, highlight=False)

    try:
        yield progress
    finally:
        live.stop()


def _write_lines(title: str, interval: float, write: Callable[[str], object]) -> Progress:
    """A line for every text to keep, for other texts one in `interval` seconds, and without texts for every tenth."""
    tenths, last_line = -1, time.monotonic()

    def progress(fraction: float, text: str = "", *, line: bool = False) -> None:
        nonlocal tenths, last_line
        tenth, now = int(fraction * 10), time.monotonic()
        if line:
            news = text
        elif text:
            news = f"{fraction:.1%}: {text}" if now - last_line > interval else ""
        else:
            news = f"{title}: {tenth * 10} %" if tenth != tenths else ""
        if news:
            write(news)
            tenths, last_line = tenth, now

    return progress
