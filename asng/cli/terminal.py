"""Shared by all commands: flags from dataclasses, a progress bar."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from asng import _progress
from asng._progress import Progress
from asng._untrusted import printable

Flat: Any = tyro.conf.arg(name="")  # flags without a prefix
console: Console = Console(markup=False, emoji=False)  # prints names with brackets and colons unchanged


def parse_command(
    flags: Any, name: str, arguments: Sequence[str], description: str | None = None, **presets: Any
) -> Any:
    """Parse a command's arguments; `--help` shows the description, by default the docstring of `flags`.

    `presets`: by the name of a flag without a value, the settings that it makes the defaults of the other flags.
    """
    if "" in arguments:  # such as a shell's variable that is not set
        raise ValueError(
            f"an argument is empty, behind {shlex.join(arguments[: arguments.index('')])!r}; give its value"
        )
    # Looked for before parsing, since defaults come first.
    given = [settings for flag, settings in presets.items() if f"--{flag}" in arguments]
    return tyro.cli(
        flags,
        prog=f"asng {name}",
        description=cleandoc(description or flags.__doc__),
        args=arguments,
        default=flags(settings=given[0]) if given else tyro.MISSING_NONPROP,
        config=(tyro.conf.DisallowNone,),
    )


@contextmanager
def progress_bar(title: str, folder: Path | None = None, console: Console = console) -> Iterator[Progress]:
    """The bar of a command; Ctrl-C prints how to continue from the folder, if there is one."""
    try:
        with _progress.progress_bar(title, console) as progress:
            yield progress
    except KeyboardInterrupt:
        where = ""
        if folder is not None:
            kept = any(path.suffix in (".jsonl", ".pt") for path in folder.glob("*"))
            where = f" What is finished is in {folder}; the same command continues." if kept else " Nothing was saved."
        print(printable(f"Interrupted.{where}"), file=sys.stderr)
        raise


def print_lines(*lines: str) -> None:
    """Print each line harmlessly, whatever names are in it."""
    for line in lines:
        print(printable(line))
