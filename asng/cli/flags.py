"""Flags from dataclasses: each field is one, with its type, its default, and the line of documentation below it."""

import argparse
import ast
import inspect
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from asng._checks import did_you_mean

EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted by Ctrl-C, SIGTERM or SIGHUP (the run is kept)."
)
NUMBER_NAMES = {int: "an integer", float: "a number"}
MAX_WIDTH, COLUMN = 100, 26  # of the help; where its texts begin


@dataclass(frozen=True)
class Flag:
    """A field of a dataclass as the command line has it."""

    name: str
    kind: Any  # of one value
    default: Any
    text: str
    group: str
    many: bool = False  # takes one or more values
    metavar: str | None = None  # of a positional argument

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def usage(self) -> str:
        """The flag with its value, as help shows it."""
        if self.metavar is not None:
            return self.metavar
        if self.kind is bool:
            return self.option if self.default is not True else f"--no-{self.option.removeprefix('--')}"
        value = f"{{{','.join(self.choices)}}}" if self.choices else self.kind.__name__.upper()
        return f"{self.option} {value}{' ...' if self.many else ''}"

    @property
    def help(self) -> str:
        """The help text and the default."""
        if self.kind is bool or self.default is MISSING or self.default is None or self.default == ():
            return self.text
        values = self.default if isinstance(self.default, tuple) else (self.default,)
        default = " ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values)
        return f"{self.text} [{default}]"

    def convert(self, text: str) -> Any:
        """The value that a word stands for."""
        if self.choices:
            if text not in self.choices:
                known = f"is none of {', '.join(self.choices)}{did_you_mean(text, self.choices)}"
                raise argparse.ArgumentTypeError(f"{text!r} {known}")
            return text
        try:
            return self.kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"takes {NUMBER_NAMES[self.kind]}, got {text!r}") from None

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Let a parser accept the flag; the parsed arguments have no entry for a flag that is not given."""
        options: dict[str, Any] = {"default": argparse.SUPPRESS}
        if self.kind is bool:
            parser.add_argument(self.option, action=argparse.BooleanOptionalAction, **options)
            return
        options |= {"type": self.convert, "metavar": self.usage.removeprefix(f"{self.option} ")}
        if self.metavar is None:
            parser.add_argument(self.option, nargs="+" if self.many else None, **options)
        else:  # absent, it is None or empty: argparse would convert the mark of absence
            parser.add_argument(self.name, **{**options, "default": None}, nargs="*" if self.many else "?")


class _Parser(argparse.ArgumentParser):
    """Raises ValueError for wrong input, in one line, where argparse prints usage and exits."""

    def error(self, message: str) -> Any:
        more = "" if message.endswith("?") else f"; {self.prog} --help explains all flags"
        raise ValueError(f"{message.removeprefix('argument ')}{more}")


def flags_of(command: type, parts: Mapping[str, Any] | None = None) -> list[Flag]:
    """The flags of a command: the fields of its dataclass and of those in it; one with a `metavar` is an argument.

    Args:
        command: A dataclass.
        parts: For fields that are dataclasses themselves, the one with the defaults.
    """
    return list(_flags(command, None, dict(parts or {}), "options"))


def _flags(kind: type, defaults: Any, parts: Mapping[str, Any], group: str) -> Iterator[Flag]:
    hints, texts = get_type_hints(kind), _texts(kind)
    for each in fields(kind):
        if each.name in parts:
            yield from _flags(type(parts[each.name]), parts[each.name], {}, each.name)
            continue
        if is_dataclass(hints[each.name]):
            yield from _flags(hints[each.name], None, {}, each.name)
            continue
        hint = hints[each.name]
        if get_origin(hint) in (Union, UnionType):  # with None, which is what is not given
            (hint,) = (one for one in get_args(hint) if one is not NoneType)
        many = get_origin(hint) is tuple
        default = each.default if defaults is None else getattr(defaults, each.name)
        one, metavar = get_args(hint)[0] if many else hint, each.metadata.get("metavar")
        yield Flag(each.name, one, default, texts.get(each.name, ""), "arguments" if metavar else group, many, metavar)


@cache
def _texts(kind: type) -> dict[str, str]:
    """The documentation below the fields of a dataclass and of its bases."""
    texts = {}
    for base in reversed([each for each in kind.__mro__ if is_dataclass(each)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for one, below in pairwise(body):
            if isinstance(one, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                texts[ast.unparse(one.target)] = str(below.value.value)
    return texts


def parse_command(
    command: type, name: str, arguments: Sequence[str], *, presets: Mapping[str, Any] | None = None, **parts: Any
) -> Any:
    """Parse a command's arguments into its dataclass; ValueError for wrong ones, and `--help` exits.

    Args:
        command: The dataclass; its docstring is the help, or that of the settings among the parts.
        name: The words of the command.
        arguments: The words behind them.
        presets: By the name of a flag without a value, the settings whose values it makes the defaults.
        parts: For fields that are dataclasses themselves, the one with the defaults.
    """
    if "" in arguments:  # such as a shell's variable that is not set
        before = shlex.join(arguments[: list(arguments).index("")])
        raise ValueError(f"an argument is empty, behind {before!r}; give its value")
    flags, described = flags_of(command, parts), parts.get("settings", command)
    given = _parse_flags(flags, name, arguments)
    for preset, settings in (presets or {}).items():
        if given.get(preset):
            parts["settings"] = settings
    if given.pop("help", False):
        print_help(name, described.__doc__ or "", flags_of(command, parts))
        sys.exit(0)
    for flag in flags:
        if flag.default is MISSING and flag.name not in given:
            raise ValueError(f"asng {name} needs {flag.usage}: {flag.text[0].lower()}{flag.text[1:].rstrip('.')}")
    hints = get_type_hints(command).items()
    made = {part: hint() for part, hint in hints if isinstance(hint, type) and is_dataclass(hint)}
    built = {each.name: given[each.name] for each in fields(command) if each.name in given}
    for group, part in {**made, **parts}.items():
        own = {flag.name: given[flag.name] for flag in flags if flag.group == group and flag.name in given}
        built[group] = _replace(part, own)
    return command(**built)


def _replace(settings: Any, given: Mapping[str, Any]) -> Any:
    """Settings with other values; a message about one of them names its flag."""
    try:
        return replace(settings, **given)
    except ValueError as error:
        name, _, fault = str(error).partition(" ")
        raise ValueError(f"--{name.replace('_', '-')} {fault}" if name in given else str(error)) from None


def _parse_flags(flags: Sequence[Flag], name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that are given."""
    parser = _Parser(prog=f"asng {name}", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true", default=argparse.SUPPRESS)
    for flag in flags:
        flag.add_to(parser)
    found, unknown = parser.parse_known_args(arguments)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in vars(found).items()}
    given = {key: value for key, value in given.items() if value not in (None, ())}
    if unknown and not given.get("help"):
        word = unknown[0].split("=")[0]
        options = ["--help", *(flag.usage.split()[0] for flag in flags if flag.metavar is None)]
        near = did_you_mean(word.lstrip("-"), [option[2:] for option in options], lambda name: f"--{name}")
        what = f"no flag {word}" if word.startswith("-") else f"no argument {word!r}"
        raise ValueError(f"asng {name} has {what}{near or f'; asng {name} --help lists all'}")
    return given


def print_help(name: str, description: str, flags: Sequence[Flag]) -> None:
    """Print what a command does, its examples and its flags, as wide as the terminal."""
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    arguments = [flag for flag in flags if flag.group == "arguments"]
    words = [flag.usage if flag.default is MISSING else f"[{flag.usage}]" for flag in arguments]
    print(f"usage: {' '.join(['asng', name, *words, '[flags]'])}\n")
    print(_wrap(inspect.cleandoc(description), width))
    for group in sorted({flag.group for flag in flags}, key=["arguments", "settings", "where", "options"].index):
        print(f"\n{'data' if group == 'where' else group}:")
        # Flags of this command stand before those of all commands, which come from its base classes.
        for flag in reversed(flags) if group == "options" else flags:
            if flag.group == group:
                print(_format_flag(flag.usage, flag.help, width))
    print(_format_flag("-h, --help", "Print this help.", width))
    print(f"\n{_wrap(EXIT_CODES, width)}")


def _format_flag(shown: str, text: str, width: int) -> str:
    lines = textwrap.wrap(text, max(width - COLUMN, 20), break_long_words=False, break_on_hyphens=False)
    if len(shown) > COLUMN - 4:
        lines = ["", *lines]
    return "\n".join(
        f"{f'  {shown}' if not number else '':<{COLUMN}}{line}".rstrip() for number, line in enumerate(lines)
    )


def _wrap(text: str, width: int) -> str:
    """Paragraphs filled to a width; indented lines, as those of examples, stay as they are."""
    parts = re.split(r"\n\n+", text)
    return "\n\n".join(part if "\n  " in part else textwrap.fill(part, width, break_on_hyphens=False) for part in parts)
