"""Shared by all commands: flags from dataclasses, a progress bar."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from pathlib import Path
from typing import Any, Protocol

import tyro
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

QUIET = 60.0  # seconds between two lines of progress without a terminal


def parse_command(command: Any, name: str, arguments: Sequence[str], default: Any = tyro.MISSING_NONPROP) -> Any:
    """Parse a command's arguments; `--help` shows its docstring."""
    return tyro.cli(
        command,
        prog=f"asng {name}",
        description=cleandoc(command.__doc__ or ""),
        args=arguments,
        default=default,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
    )


class Bar(Protocol):
    """Called with the fraction done and a text; `line`: print the text as a line that stays."""

    def __call__(self, fraction: float, text: str = "", *, line: bool = False) -> None: ...


@contextmanager
def progress_bar(console: Console, title: str, folder: Path | None) -> Iterator[Bar]:
    """A bar with the time left and the last text; without a terminal, a line now and then.

    It appears with the first call, so that nothing flashes if there is nothing to do. Ctrl-C prints how to continue
    from the folder, if there is one.
    """
    columns = (TextColumn(title), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"))
    bar = Progress(*columns, TimeRemainingColumn(), speed_estimate_period=600)
    task = bar.add_task(title, total=1.0)
    live = Live(bar, console=console)
    tenths, last_print = -1, time.monotonic()

    def progress(fraction: float, text: str = "", *, line: bool = False) -> None:
        nonlocal tenths, last_print
        if fraction < bar.tasks[task].completed:  # another task begins, with its own time
            bar.reset(task)
            tenths = -1
        bar.update(task, completed=fraction)
        if console.is_terminal:
            live.start()
            shown = bar if line or not text else Group(bar, Text(text))  # so that a long text breaks, not the bar
            live.update(shown, refresh=line)
        tenth, now = int(fraction * 10), time.monotonic()
        if line:
            news = text
        elif console.is_terminal:
            news = ""
        elif text:
            news = f"{fraction:.1%}: {text}" if now - last_print > QUIET else ""
        else:
            news = f"{title}: {tenth * 10} %" if tenth > tenths else ""
        if news:
            console.print(news, soft_wrap=True, highlight=False)
            tenths, last_print = tenth, now

    try:
        yield progress
    except KeyboardInterrupt:
        live.stop()
        where = "" if folder is None else f" What is finished is in {folder}; the same command continues."
        print(f"Interrupted.{where}", file=sys.stderr)
        raise
    finally:
        live.stop()
