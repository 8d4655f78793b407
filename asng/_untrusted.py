"""Reading files that anybody may have written: regular files alone, JSON, and values of a known shape."""

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

MAX_FILE_BYTES = 2**30  # of a text file
MAX_FLOAT = 1.7976931348623157e308
NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer is opened at once, and refused


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; ValueError for a pipe, a device or a folder, on which a reader might wait."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | NON_BLOCKING))  # noqa: SIM115 - the caller
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path} is not a regular file; remove it, or use another path")
    return file


def read_bytes(path: Path) -> bytes:
    """The content of a regular file of at most 1 GiB."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes; remove it, or use another path")
        try:
            return file.read()
        except OSError as error:  # which names no file
            raise OSError(error.errno, error.strerror, str(path)) from None


def read_text(path: Path, cure: str) -> str:
    """The content of a text file; ValueError names the file and the cure."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); {cure}") from None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, as Python writes it; ValueError for anything else, also where it is nested without end.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, cure: str, shape: Any = Any) -> Any:
    """The content of a JSON file of this shape (see `mismatch`); ValueError names the file and the cure."""
    content = read_bytes(path)
    try:
        data = parse_json(content)
        fault = mismatch(data, shape)
    except ValueError as error:  # also what is no UTF-8
        fault = str(error)
    if fault:
        raise ValueError(f"{path} is damaged ({fault}); {cure}")
    return data


def read_json_lines(path: Path, cure: str) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; ValueError names the file, the line and the cure."""
    records = []
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        try:
            fault = mismatch(record := parse_json(line), dict[str, Any])
        except ValueError as error:
            fault = str(error)
        if fault:
            raise ValueError(f"{path} is damaged (line {number}: {fault}); {cure}")
        records.append(record)
    return records


def mismatch(value: Any, shape: Any) -> str:
    """The first difference between a value of JSON and a type, as text; empty if there is none.

    Types: Any, None, bool, int, float (finite), str, literals, unions, list[X], tuple[X, ...] and tuple[X, Y] (lists in
    JSON), dict[str, X], and a TypedDict (all of its keys, and no others). Integers have at most 64 bits.

    >>> mismatch({"seed": 1, "lrs": [0.1, "x"]}, dict[str, int | list[float]])
    "['lrs'] is [0.1, 'x'], not int | list[float]"
    >>> mismatch({"lrs": [0.1, "x"]}, dict[str, list[float]])
    "['lrs'][1] is 'x', not float"
    """
    origin, arguments = get_origin(shape), get_args(shape)
    parts: Mapping[Any, tuple[Any, Any]] | None = None  # by key or index: a value and its type
    if is_typeddict(shape):
        hints = get_type_hints(shape)
        if isinstance(value, dict) and value.keys() == hints.keys():
            parts = {name: (value[name], hint) for name, hint in hints.items()}
    elif origin is dict:
        if isinstance(value, dict):
            parts = {name: (each, arguments[1]) for name, each in value.items()}
    elif origin in (list, tuple):
        endless = origin is list or arguments[1:] == (...,)
        if isinstance(value, (list, tuple)) and (endless or len(value) == len(arguments)):
            types: Sequence[Any] = [arguments[0]] * len(value) if endless else arguments
            parts = dict(enumerate(zip(value, types, strict=True)))
    elif _matches_shape(value, shape, origin, arguments):
        parts = {}
    if parts is None:
        return f" is {shorten(value)}, not {_shape_name(shape)}".lstrip()
    for key, (each, kind) in parts.items():
        if fault := mismatch(each, kind):
            return f"[{key!r}]{fault if fault.startswith('[') else f' {fault}'}"
    return ""


def escape_controls(text: str) -> str:
    """Text as one line that is harmless to any terminal: control characters and other bytes become escapes.

    >>> print(escape_controls("a\\x1b[2Jb\\nc\\udcffd"))
    a\\x1b[2Jb\\nc\\udcffd
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _matches_shape(value: Any, shape: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if shape is Any:
        return True
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin in (Union, UnionType):
        return any(not mismatch(value, each) for each in arguments)
    if shape is float:
        return type(value) in (int, float) and -MAX_FLOAT <= value <= MAX_FLOAT
    if shape is int:
        return type(value) is int and -(2**63) <= value < 2**63
    return type(value) is (NoneType if shape is None else shape)


def _shape_name(shape: Any) -> str:
    return shape.__name__ if isinstance(shape, type) else str(shape).replace("typing.", "")


def _join_lines(value: Any) -> str:
    return " ".join(repr(value).split())


def shorten(value: Any, write: Callable[[Any], str] = _join_lines, length: int = 80, end: str = "...") -> str:
    """A value as text of at most `length` characters, whatever it is; on one line unless `write` writes others."""
    try:
        text = write(value)
    except Exception:  # an integer of too many digits, a layer whose attributes torch cannot write
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= length else text[: length - len(end)] + end
