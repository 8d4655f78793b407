"""Where nothing can be written: said at the start, in one line that names the file, the reason and the cure."""

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from asng import Integer, _files, minimize, nas, report
from asng.cli import commands, function_of
from asng.nas import _checkpoints as checkpoints
from asng.runs import Run
from tests.helpers.commands import refusal
from tests.helpers.permissions import drop_privileges
from tests.helpers.searches import run_search, small_search

pytest.importorskip("fcntl")  # Windows has other permissions

SAID = "Permission denied: {} cannot be written; choose another path, or make {} writable"


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """All modules are loaded, some of which others may not read."""
    run_search(epochs=1)


def never(*arguments):
    raise AssertionError("work was begun")


def write_search(path):
    run_search(loss_fn=never, checkpoint=path)


def write_minimization(path):
    minimize(never, {"n": Integer(1, 9)}, evaluations=20, checkpoint=path)


def write_export(path):
    nas.export(nn.Linear(2, 1), path.parent, torch.zeros(3, 2), formats=["torch"])


def write_run(path):
    Run(path.parent, {"seed": 0})


CHECKPOINTS = [write_search, write_minimization]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("mode", [0o555, 0o000], ids=["read-only", "closed"])
@pytest.mark.parametrize("path", ["shut/search.pt", "shut/new/search.pt"])
@pytest.mark.parametrize("write", CHECKPOINTS)
def test_a_checkpoint_without_permission_is_refused_before_the_first_evaluation(write, path, mode):
    os.mkdir("shut", mode)
    os.chmod("shut", mode)
    with drop_privileges(), pytest.raises(PermissionError) as raised:
        write(Path(path))
    assert raised.value.strerror == SAID.format(path, "shut")
    assert os.listdir("shut") == []


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("write", "name"), [(write_export, "network.pt2"), (write_run, "config.json")], ids=["export", "run"]
)
def test_a_folder_without_permission_is_refused_before_any_work(write, name):
    os.mkdir("shut")
    with drop_privileges(), pytest.raises(PermissionError) as raised:
        write(Path("shut/run/file"))
    assert raised.value.strerror == SAID.format(f"shut/run/{name}", "shut")


@pytest.mark.parametrize("write", [*CHECKPOINTS, write_export, write_run])
def test_a_file_in_place_of_a_folder_is_named(write, tmp_path):
    (tmp_path / "taken").write_text("precious")
    with pytest.raises(
        ValueError, match=rf"^{tmp_path}/taken is a file, not a folder; choose another path than {tmp_path}"
    ):
        write(tmp_path / "taken" / "search.pt")
    assert (tmp_path / "taken").read_text() == "precious"
    assert os.listdir(tmp_path) == ["taken"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            errno.EROFS,
            r"Read-only file system: {0}/search.pt cannot be written; choose another path, or make {0} writable",
        ),
        (
            errno.ENOSPC,
            r"No space left on device: {0}/{1} cannot be written to the disk of {0} \([\d,]+ bytes are lef",
        ),
        (errno.EIO, r"Input/output error: {0}/{1} cannot be written; choose another path"),
    ],
    ids=["read-only", "full", "broken"],
)
@pytest.mark.parametrize("write", CHECKPOINTS)
def test_a_disk_that_takes_no_files_is_named_before_the_first_evaluation(write, number, said, tmp_path, monkeypatch):
    def open_nothing_new(path, flags, *arguments, **more):
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *arguments, **more)

    opened = os.open
    monkeypatch.setattr(os, "open", open_nothing_new)
    monkeypatch.setattr(os, "access", lambda path, mode: number != errno.EROFS)
    with pytest.raises(OSError, match=said.format(tmp_path, r"(search\.pt|\.search\.pt\.asng-lock)")) as raised:
        write(tmp_path / "search.pt")
    assert raised.value.errno == number
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("here")
def test_a_finished_search_is_read_where_nothing_can_be_written():
    os.mkdir("shut")
    found = small_search(Path("shut/search.pt"), epochs=1)
    with drop_privileges():
        assert small_search(Path("shut/search.pt"), epochs=1)["values"] == found["values"]
        with pytest.raises(PermissionError, match=r"shut/search.pt cannot be written"):
            small_search(Path("shut/search.pt"), epochs=2, loss_fn=never)


@pytest.mark.usefixtures("here")
def test_a_report_and_a_checkpoint_name_what_they_cannot_write():
    os.mkdir("shut")
    Run("run", {"experiment": "toy", "kind": "sweep"}).__exit__()
    report.write(["run"], "page.html")
    with (
        drop_privileges(),
        pytest.raises(PermissionError, match=r"shut/page.html cannot be written; choose another path"),
    ):
        report.write(["run"], "shut/page.html")
    with (
        drop_privileges(),
        pytest.raises(PermissionError, match=r"shut/search.pt cannot be written; choose another path"),
    ):
        checkpoints.save(Path("shut/search.pt"), {})


def test_a_check_leaves_nothing_behind_and_makes_no_folder(tmp_path):
    _files.check_writable(tmp_path / "new" / "folder" / "file")
    assert os.listdir(tmp_path) == []


# Commands ------------------------------------------------------------------------------------------


MAKING_RUNS = [name for name in commands() if name.endswith((" search", " sweep", " tune"))]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", MAKING_RUNS)
def test_a_command_refuses_a_folder_that_it_cannot_write_in_one_line(command):
    function_of(command)  # its modules, which others may not be allowed to read
    os.mkdir("shut")
    words = [*command.split(), "--out", "shut/run"]
    with drop_privileges():
        assert refusal(*words) == SAID.format("shut/run/config.json", "shut")


@pytest.mark.parametrize("command", MAKING_RUNS)
def test_a_command_refuses_a_file_in_place_of_its_folder_in_one_line(command, tmp_path):
    (tmp_path / "taken").touch()
    said = refusal(*command.split(), "--out", str(tmp_path / "taken"))
    assert said == f"{tmp_path}/taken is a file, not a folder; choose another path than {tmp_path}/taken/config.json"


@pytest.mark.usefixtures("here")
def test_a_run_of_somebody_else_is_not_continued():
    with Run("theirs", {"seed": 0}) as run:
        run.append({"n": 1})
    os.chmod("theirs", 0o777)  # its files are still theirs
    with (
        drop_privileges(),
        pytest.raises(PermissionError, match=r"theirs/results.jsonl cannot be written; choose another"),
    ):
        Run("theirs", {"seed": 0})
