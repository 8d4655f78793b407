"""Files that anybody may have written: regular ones alone, JSON, and values of a known shape."""

import os
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

from asng import _untrusted
from asng._untrusted import mismatch, parse_json, read_bytes, read_json, read_json_lines, read_text


class Record(TypedDict):
    name: Literal["a", "b"]
    pair: tuple[int, float | None]


@pytest.mark.parametrize(
    ("value", "shape", "fault"),
    [
        (3, int, ""),
        (True, int, "is True, not int"),
        (2**63, int, f"is {2**63}, not int"),
        (3, float, ""),
        (10**400, float, f"is 1{'0' * 76}..., not float"),
        (float("inf"), float, "is inf, not float"),
        (None, None, ""),
        (0, None, "is 0, not None"),
        ([1, 2], list[int], ""),
        ([1, "x"], list[int], "[1] is 'x', not int"),
        ([1, 2.5], tuple[int, float], ""),
        ([1], tuple[int, float], "is [1], not tuple[int, float]"),
        ((1, 2, 3), tuple[int, ...], ""),
        ({"a": [None]}, dict[str, list[None]], ""),
        ({"a": [0]}, dict[str, list[None]], "['a'][0] is 0, not None"),
        ({"name": "a", "pair": [1, None]}, Record, ""),
        ({"name": "c", "pair": [1, None]}, Record, "['name'] is 'c', not Literal['a', 'b']"),
        ({"name": "a", "pair": [1, "x"]}, Record, "['pair'][1] is 'x', not float | None"),
        ({"name": "a"}, Record, "is {'name': 'a'}, not Record"),
        ({"name": "a", "pair": [1, 2], "more": 3}, Record, "is {'name': 'a', 'pair': [1, 2], 'more': 3}, not Record"),
        ([], Any, ""),
    ],
)
def test_the_first_value_of_another_shape_is_named(value, shape, fault):
    assert mismatch(value, shape) == fault


@pytest.mark.parametrize("text", ["", "{", "[" * 10**5, '{"a":' * 10**5, "9" * 5000])
def test_what_is_not_json_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own messages
        parse_json(text)


BAD = [b"\xff\xfe", b"[" * 10**5, b"9" * 5000, b"{", b"NaN", b"5"]


@pytest.mark.parametrize("content", BAD)
def test_a_damaged_json_file_is_named_with_the_cure(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{path} is damaged \(.*\); delete it$"):
        read_json(path, "delete it", dict[str, Any])
    path.write_bytes(b'{"a": 1}\n' + content + b"\n")
    with pytest.raises(ValueError, match=rf"^{path} is damaged \(line 2: .*\); delete it$"):
        read_json_lines(path, "delete it")


def test_text_of_another_encoding_is_named_with_the_cure(tmp_path):
    (tmp_path / "names.txt").write_bytes("größe.png".encode("latin-1"))
    with pytest.raises(ValueError, match=r"names\.txt is damaged \('utf-8' codec.*\); write it in UTF-8$"):
        read_text(tmp_path / "names.txt", "write it in UTF-8")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises((ValueError, IsADirectoryError), match=str(path)):
        read_bytes(path)


def test_a_file_that_memory_cannot_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_untrusted, "MAX_FILE_BYTES", 10)
    (tmp_path / "file").write_bytes(b"x" * 11)
    with pytest.raises(ValueError, match="file is larger than 10 bytes; remove it, or use another path"):
        read_bytes(tmp_path / "file")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file of Linux")
def test_a_file_that_cannot_be_read_is_named():
    with pytest.raises(OSError, match=r"Input/output error: '/proc/self/mem'"):
        read_bytes(Path("/proc/self/mem"))
