"""Files with one writer: locks that die with their process, writes that are whole, and nothing else removed."""

import errno
import os
import re
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from asng import _files
from asng._files import Lock, atomic_write, remove_leftovers
from tests.helpers.permissions import drop_privileges

fcntl = pytest.importorskip("fcntl")
pytestmark = pytest.mark.slow

# Locks ---------------------------------------------------------------------------------------------


def lock(folder):
    return Lock(folder / "lock", folder / "run", "use another one")


@contextmanager
def process(folder, program):
    """Another process, once it has printed its first line; it ends when its input does."""
    script = f"""
import os, sys, time
from pathlib import Path
from asng._files import Lock, atomic_write
folder = Path({str(folder)!r})
def say(word): print(word, flush=True)
{program}
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


HOLDING = """
held = Lock(folder / "lock", folder / "run", "")
say("ready")
sys.stdin.read()
held.release()
"""


def test_a_second_process_is_refused_and_told_who_has_the_lock(tmp_path):
    with process(tmp_path, HOLDING) as holder:
        with pytest.raises(ValueError, match="is in use by") as refused:
            lock(tmp_path)
        who = rf"process {holder.pid} on {re.escape(os.uname().nodename)} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
        assert re.fullmatch(rf"{tmp_path}/run is in use by {who}; use another one", str(refused.value))
        holder.communicate()
        assert os.listdir(tmp_path) == []
        lock(tmp_path).release()


def test_a_killed_process_has_no_lock_and_its_file_is_harmless(tmp_path):
    with process(tmp_path, HOLDING) as holder:
        holder.kill()
        holder.wait()
    assert os.listdir(tmp_path) == ["lock"]
    held = lock(tmp_path)
    assert f"process {os.getpid()} on" in (tmp_path / "lock").read_text()
    held.release()
    assert os.listdir(tmp_path) == []


def test_a_forked_child_that_outlives_its_parent_has_no_lock(tmp_path):
    program = """
held = Lock(folder / "lock", folder / "run", "")
if os.fork() == 0:
    say("ready")
    sys.stdin.read()  # until the test has ended
    os._exit(0)
time.sleep(60)
"""
    with process(tmp_path, program) as parent:
        os.kill(parent.pid, 9)
        parent.wait()
        assert parent.stdout is not None
        os.set_blocking(parent.stdout.fileno(), False)
        with pytest.raises(BlockingIOError):  # the child still has the other end
            os.read(parent.stdout.fileno(), 1)
        lock(tmp_path).release()
        assert parent.stdin is not None
        parent.stdin.close()


def test_a_forked_child_that_ends_leaves_the_lock_to_its_parent(tmp_path):
    program = """
held = Lock(folder / "lock", folder / "run", "")
if os.fork() == 0:
    held.release()
    sys.exit()
os.wait()
say("ready")
sys.stdin.read()
"""
    with process(tmp_path, program), pytest.raises(ValueError, match="is in use by process"):
        lock(tmp_path)


def test_the_same_process_and_its_threads_are_refused_too(tmp_path):
    held = lock(tmp_path)
    errors = []

    def second():
        try:
            lock(tmp_path)
        except ValueError as error:
            errors.append(str(error))

    second()
    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    assert len(errors) == 2
    assert all(f"is in use by process {os.getpid()} on" in error for error in errors)
    held.release()
    for _ in range(3):
        lock(tmp_path).release()


def test_of_many_processes_never_two_have_the_lock(tmp_path):
    program = """
say("ready")
taken, until = 0, time.monotonic() + 1.0
while time.monotonic() < until:
    try:
        held = Lock(folder / "lock", folder / "run", "")
    except ValueError:
        continue
    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))  # fails if another one is inside
    os.unlink(folder / "inside")
    held.release()
    taken += 1
say(taken)
"""
    with process(tmp_path, program) as one, process(tmp_path, program) as two, process(tmp_path, program) as three:
        taken = [int(member.communicate(timeout=60)[0]) for member in (one, two, three)]
    assert min(taken) > 10
    assert os.listdir(tmp_path) == []


def test_a_lock_whose_file_was_removed_is_taken_again(tmp_path):
    held = lock(tmp_path)
    assert not held.renew()
    (tmp_path / "lock").unlink()
    assert held.renew()
    with pytest.raises(ValueError, match=f"is in use by process {os.getpid()}"):
        lock(tmp_path)
    held.release()


def test_a_lock_that_another_process_took_meanwhile_is_lost(tmp_path):
    held = lock(tmp_path)
    (tmp_path / "lock").unlink()
    with process(tmp_path, HOLDING) as other:
        with pytest.raises(ValueError, match=f"run is in use by process {other.pid}"):
            held.renew()
        held.release()
        assert (tmp_path / "lock").exists()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="lock"):
        lock(tmp_path)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"a\x1b[2J", b"x" * 500])
def test_a_holder_that_does_not_say_who_it_is_is_another_process(tmp_path, content):
    held = lock(tmp_path)
    (tmp_path / "lock").write_bytes(content)
    with pytest.raises(ValueError, match="run is in use by another process; use"):
        lock(tmp_path)
    held.release()


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def flock(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(UserWarning, match=r"run cannot be locked \(its file system has no locks\); make sure that no"):
        held = lock(tmp_path)
    assert os.listdir(tmp_path) == []
    held.renew()
    held.release()


@pytest.mark.usefixtures("here")
def test_where_nobody_can_write_nothing_is_locked():
    Path("closed").mkdir()
    os.chmod("closed", 0o555)
    with drop_privileges():
        held = lock(Path("closed"))
        held.renew()
        held.release()
    assert os.listdir("closed") == []


@pytest.mark.usefixtures("here")
def test_a_lock_file_that_cannot_be_opened_is_a_warning():
    Path("open").mkdir()
    os.chmod("open", 0o777)
    Path("open/lock").touch()
    os.chmod("open/lock", 0o444)
    with drop_privileges(), pytest.warns(UserWarning, match=r"run cannot be locked \(open/lock: Permission denied\)"):
        lock(Path("open")).release()


def test_without_fcntl_files_are_still_replaced_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "fcntl", None)  # as on Windows
    first, second = lock(tmp_path), lock(tmp_path)
    with atomic_write(tmp_path / "file") as file:
        file.write(b"new")
    for one in (first, second):
        assert not one.renew()
        one.release()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


# Writing -------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(bytes(1 // (file.write(b"half") - 4)))
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_until_the_end_of_a_write_the_file_is_as_before(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with atomic_write(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["file"]


def test_a_new_file_has_the_permissions_that_others_have(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "file"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "file").st_mode) == 0o640


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "file").symlink_to("precious")
    with atomic_write(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "file").is_symlink()


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.parametrize("make", [make_device, os.mkdir], ids=["device", "folder"])
def test_what_is_no_file_is_not_replaced(tmp_path, make):
    make(tmp_path / "other")
    before = (tmp_path / "other").stat()
    message = "other is a folder or a device, not a file; give another path"
    with pytest.raises(ValueError, match=message), atomic_write(tmp_path / "other") as file:
        file.write(b"new")
    assert (tmp_path / "other").stat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["other"]


@pytest.mark.parametrize("linked", [False, True])
def test_the_replaced_file_is_kept_also_if_its_names_are_one_file(tmp_path, linked):
    path, kept = tmp_path / "file", tmp_path / "kept"
    path.write_text("one")
    if linked:  # as after a kill between the two renames
        os.link(path, kept)
    for text in ("two", "three"):
        before = path.read_text()
        with atomic_write(path, keep=kept) as file:
            file.write(text.encode())
        assert (path.read_text(), kept.read_text()) == (text, before)
    assert sorted(os.listdir(tmp_path)) == ["file", "kept"]


# Leftovers -----------------------------------------------------------------------------------------


WRITING = """
with atomic_write(folder / "file") as file:
    file.write(b"half")
    say("ready")
    sys.stdin.read()
"""


def test_what_a_killed_writer_left_goes_with_the_next_lock(tmp_path):
    with process(tmp_path, WRITING) as writer:
        lock(tmp_path).release()
        assert len(os.listdir(tmp_path)) == 1  # it is still written
        writer.kill()
        writer.wait()
    assert re.fullmatch(rf"\.file\.asng-{writer.pid}-[0-9a-f]{{8}}", os.listdir(tmp_path)[0])
    lock(tmp_path).release()
    assert os.listdir(tmp_path) == []


def test_a_write_ends_well_while_others_remove_leftovers(tmp_path):
    with process(tmp_path, WRITING) as writer:
        remove_leftovers(tmp_path)
        writer.communicate()
        assert writer.returncode == 0
    assert os.listdir(tmp_path) == ["file"]


def test_only_files_that_asng_named_are_leftovers(tmp_path):
    names = [
        "file.new",
        "file.spare",
        ".file.asng-lock",
        ".file.asng-12",
        ".file.asng-12-xyz",
        ".file.asng-12-0123456789",
        "file.asng-12-01234567",
        ".file.asng-12-01234567.txt",
    ]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".folder.asng-12-01234567").mkdir()
    (tmp_path / ".link.asng-12-01234567").symlink_to("file.new")
    before = sorted(os.listdir(tmp_path))
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


def test_leftovers_of_other_files_stay(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f".{name}.asng-12-01234567").touch()
    Lock(tmp_path / "lock", tmp_path, "", ["a"]).release()
    assert os.listdir(tmp_path) == [".b.asng-12-01234567"]


def test_long_settings_are_shown_from_where_they_differ():
    there, here = ({"space": [["name", "x" * 90], ["last", f"Real({low}, 2)"]]} for low in (-2, -3))
    shown = _files.differences(there, here)
    assert shown.startswith("space: ...")
    assert "Real(-2, 2)']] there, ..." in shown
    assert shown.endswith("Real(-3, 2)']] here")
