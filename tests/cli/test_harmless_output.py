"""What is printed is harmless to a terminal, whatever names files and folders have; libraries do not speak there."""

import os
import subprocess
import sys
import warnings

import pytest

from asng import cli
from asng.cli import images
from asng.experiments import toy
from tests.helpers.commands import MAIN, Asked, refusal, run
from tests.helpers.small_faces import save

NAMES = {
    "[/x]": "[/x]",
    "[red]a": "[red]a",
    ":smile:": ":smile:",
    "a\x1b[31mb\x1b[2J": r"a\x1b[31mb\x1b[2J",
    "a\nasng: done": r"a\nasng: done",
    "a\r\x07b": r"a\r\x07b",
    "\udcff\udcfe": r"\udcff\udcfe",  # bytes that are no UTF-8
    "a\u202eb": r"a\u202eb",  # from right to left
    "größe": "größe",
}


@pytest.fixture
def no_sweep(monkeypatch):
    monkeypatch.setattr(toy, "run", lambda *given: {"runs": 1, "iterations": 1, "ranges": [], "points": []})


@pytest.mark.usefixtures("no_sweep")
@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_folder_is_printed_on_one_line(tmp_path, name):
    done = run("toy", "sweep", "--out", tmp_path / name)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"Picture: {tmp_path}/{NAMES[name]}/toy.png"


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_names_a_folder_on_one_line(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"experiment": "\\u001b[2J"}')
    said = refusal("toy", "sweep", "--out", folder)
    assert said.startswith(
        f"{tmp_path}/{NAMES[name]} holds a run of another configuration (experiment: \\x1b[2J there,"
    )


def test_images_that_are_left_out_are_printed_with_harmless_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def stop(*given, **options):
        raise Asked

    monkeypatch.setattr(images, "search", stop)
    for number in range(4):
        save(tmp_path / "faces" / f"{number}.png")
    odd = ["[red]", "a\x1b[2J", "a\nb", "\udcff"]
    for name in odd:
        (tmp_path / "faces" / f"{name}.png").write_text("no image")
    with pytest.raises(Asked):
        cli.main(["inpainting", "search", "--small", "--data", str(tmp_path / "faces")])
    names = [line.split(" (")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("Left out: ")]
    assert names == [rf"Left out: {name}.png" for name in ("[red]", r"a\nb", r"a\x1b[2J", r"\udcff")]


def start(*arguments, **environment):
    command = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(command, check=False, capture_output=True, env={**os.environ, **environment})


@pytest.mark.slow
def test_a_terminal_of_another_encoding_shows_escapes():
    done = start("größe", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.startswith(rb"asng: no command 'gr\xf6\xdfe'; asng has".replace(b"\xf6", b"\\xf6"))


@pytest.mark.slow
def test_a_report_is_written_where_the_locale_is_ascii(tmp_path):
    (tmp_path / "config.json").write_text('{"experiment": "gr\\u00f6\\u00dfe"}')
    done = start("report", str(tmp_path), LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "<h1>größe</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_empty_argument_is_named_by_what_is_before_it():
    assert refusal("toy", "sweep", "--quick", "--out", "") == (
        "an argument is empty, behind '--quick --out'; give its value"
    )


def test_numbers_that_no_memory_holds_are_one_line(tmp_path):
    for flag, number in (("--runs", 10**30), ("--iterations", 10**12), ("--variables", 2**40)):
        said = refusal("toy", "sweep", flag, number, "--out", tmp_path / "toy")
        assert said == f"{flag} must be at most 2,147,483,647, got {number}"
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize(("module", "heard"), [("PIL.Image", ""), ("asng.runs", "asng: warning: a\\x1bb\n")])
def test_only_warnings_of_asng_are_shown_each_in_a_line(tmp_path, monkeypatch, module, heard):
    space = {"__name__": module, "warnings": warnings}
    exec("def warn(*given):\n    warnings.warn('a\\x1bb')\n    return summary", space)
    space["summary"] = {"runs": 1, "iterations": 1, "ranges": [], "points": []}
    monkeypatch.setattr(toy, "run", space["warn"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run("toy", "sweep", "--out", tmp_path)
    assert (done.code, done.err) == (0, heard)
