"""What all commands share: flags from dataclasses, a progress bar."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from pathlib import Path
from typing import Any, Protocol

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def parsed(command: Any, name: str, arguments: Sequence[str], default: Any = tyro.MISSING_NONPROP) -> Any:
    """A command, read from its arguments; `--help` says what its docstring says."""
    return tyro.cli(
        command,
        prog=f"asng {name}",
        description=cleandoc(command.__doc__ or ""),
        args=arguments,
        default=default,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


class Bar(Protocol):
    """Hears how far it is and what is to be said of it; `line`: worth a line that stays."""

    def __call__(self, fraction: float, text: str = "", *, line: bool = False) -> None: ...


@contextmanager
def progress_bar(console: Console, title: str, folder: Path) -> Iterator[Bar]:
    """A bar with the time left; without a terminal, a line now and then. Ctrl-C says how to continue."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    left = TimeRemainingColumn()
    tenths = -1

    with Progress(*columns, left, console=console, disable=not console.is_terminal, speed_estimate_period=600) as bar:
        task = bar.add_task(title, total=1.0)

        def progress(fraction: float, text: str = "", *, line: bool = False) -> None:
            nonlocal tenths
            bar.update(task, completed=fraction, description=f"{title} {text}".rstrip() if not line else title)
            if line:
                console.print(text, soft_wrap=True, highlight=False)
            elif not console.is_terminal and not text and int(fraction * 10) > tenths:
                tenths = int(fraction * 10)
                console.print(f"{title}: {tenths * 10} %")

        try:
            yield progress
        except KeyboardInterrupt:
            bar.stop()
            print(f"Interrupted. What is finished is in {folder}; the same command continues.", file=sys.stderr)
            raise
