"""Files with one writer: a lock that dies with its process, and writes that replace a file whole or not at all.

Files that a killed process leaves behind have names that only asng gives; the next process that locks the same
file or folder removes them.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakSet

from asng._untrusted import NON_BLOCKING, read_text, shorten

try:
    import fcntl
except ImportError:  # on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

TEMPORARY = re.compile(r"\.(?P<name>.+)\.asng-[0-9]+-[0-9a-f]{8}")  # the file it is for, process, random digits
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # a link may lead to a file that is not asng's
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, or what the user may have of it
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
PREVIOUS = ".asng-previous"
MAX_SHOWN = 5  # differences in a message
MAX_LENGTH, CONTEXT = 80, 20  # characters of a value that is shown, and of what it has in common with another
RUN_FORMAT = 2  # of the files in the folder of a run, and of what its settings mean; older ones are refused


class Lock:
    """The right of one process to write a file or a folder, until the process releases it or dies.

    The lock is `flock` on the file `path`, which names the process and is removed on release; a file left behind is
    harmless. Forked children do not share it. Taking the lock removes the temporary files of killed processes.
    A file system without locks leads to a warning; without `fcntl`, as on Windows, nothing is locked, and two
    processes may write the same files.
    """

    def __init__(self, path: Path, guarded: Path, cure: str, names: Collection[str] = ()) -> None:
        """Lock `path`; if another process holds the lock, ValueError names it, `guarded` and the cure.

        `names`: the files in the same folder that are written under this lock; all by default.
        """
        self._path, self._guarded, self._cure, self._names = path, guarded, cure, names
        self._file: BinaryIO | None = None
        self._acquire()

    def renew(self) -> bool:
        """Lock again if the file was removed or replaced; returns whether it was. Raises as `__init__` does."""
        if self._file is None or _is_at(self._file, self._path):
            return False
        self.release()
        self._acquire()
        return True

    def release(self) -> None:
        """Let others write."""
        if self._file is not None:
            with self._file as file:  # a process that has opened it already sees that it is removed
                if _is_at(file, self._path):
                    with suppress(OSError):
                        self._path.unlink()
            self._file = None

    def _acquire(self) -> None:
        if fcntl is None:
            return
        make_folder_for(self._path)
        try:
            with explain_write_errors(self._path):
                file, locked = _open_locked(self._path, "ab")
        except OSError as error:
            if error.errno not in NOT_WRITABLE:
                raise
            if os.access(self._path.parent, os.W_OK):  # a folder that cannot be written needs no lock
                self._warn(f"{self._path}: {os.strerror(error.errno)}")
            return
        if locked:
            self._file = file
            _locks.add(self)
            self._sign(file)
            remove_leftovers(self._path.parent, self._names)
            return
        file.close()
        if locked is None:
            self._path.unlink(missing_ok=True)
            self._warn("its file system has no locks")
        else:
            raise ValueError(f"{self._guarded} is in use by {_holder(self._path)}; {self._cure}")

    def _sign(self, file: BinaryIO) -> None:
        """Write which process holds the lock."""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            with explain_write_errors(self._path):
                file.truncate(0)
                os.write(file.fileno(), f"process {os.getpid()} on {os.uname().nodename} since {since}".encode())
        except OSError:
            self.release()
            raise

    def _warn(self, reason: str) -> None:
        warnings.warn(
            f"{self._guarded} cannot be locked ({reason}); make sure that no other process writes it", stacklevel=4
        )


_locks: WeakSet[Lock] = WeakSet()


def _forget_all() -> None:
    """In a forked child: close the files, which leaves the locks to the parent."""
    for lock in list(_locks):
        if lock._file is not None:
            lock._file.close()
            lock._file = None


if hasattr(os, "register_at_fork"):  # a child that outlives its parent would keep the lock
    os.register_at_fork(after_in_child=_forget_all)


def previous_path(path: Path) -> Path:
    """The path of the checkpoint before the newest one; by its name no file of the user's.

    >>> previous_path(Path("run/checkpoint.pt")).name
    'checkpoint.asng-previous.pt'
    """
    return path.with_name(f"{path.stem}{PREVIOUS}{path.suffix}")


def as_path(given: Any, name: str) -> Path:
    """A path; ValueError names the argument, and its value if it is none.

    >>> as_path(5, "folder")
    Traceback (most recent call last):
    ValueError: folder must be a path, got 5
    """
    try:
        return Path(given)
    except TypeError:
        raise ValueError(f"{name} must be a path, got {given!r}") from None


def as_checkpoint_path(given: Any, example: str) -> Path:
    """The path of a checkpoint; ValueError for a folder, the checkpoint before the newest one, and what is no path."""
    try:
        path = Path(given)
    except TypeError:
        raise ValueError(f"checkpoint must be the path of a file, such as {example!r}, got {given!r}") from None
    if os.path.isdir(path):
        raise ValueError(f"the checkpoint {path} is a folder; give the path of a file, such as {path / example}")
    if path.stem.endswith(PREVIOUS):
        raise ValueError(
            f"{path} is kept by another search; rename it to {path.stem.removesuffix(PREVIOUS)}{path.suffix}"
        )
    return path


def make_folder_for(path: Path) -> None:
    """Make the folder of a file, and those above it; ValueError names a file that is in the way."""
    with explain_write_errors(path):
        _nearest_folder(path)
        path.parent.mkdir(parents=True, exist_ok=True)


def check_writable(path: Path) -> None:
    """Raise now what a later write of this file would raise; its folder need not be there, and is not made."""
    with explain_write_errors(path):
        trial = _temporary_path(_nearest_folder(path) / path.name)
        _open_locked(trial, "xb")[0].close()
        trial.unlink(missing_ok=True)


def _nearest_folder(path: Path) -> Path:
    """The folder of a file, or the one above it that is there; ValueError names a file that is in the way."""
    nearest = next((parent for parent in path.parents if parent.exists()), path.parent)
    if nearest.exists() and not nearest.is_dir():
        raise ValueError(f"{nearest} is a file, not a folder; choose another path than {path}")
    return nearest


def lock_checkpoint(path: Path) -> Lock:
    """Lock a checkpoint and remove leftovers of killed processes; ValueError names the process that holds the lock."""
    make_folder_for(path)
    cure = "wait until it ends, or use another path"
    return Lock(path.with_name(f".{path.name}.asng-lock"), path, cure, (path.name, previous_path(path).name))


def offer_previous(path: Path) -> str:
    """The end of a message about a damaged checkpoint: what the user can do."""
    before = previous_path(path)
    if before.exists():
        return f"; the one before it is {before}: rename it to {path.name} to continue from there"
    return "; use another path, or delete it to start over"


@contextmanager
def atomic_write(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Give a file to write, which replaces `path` at the end; after an error `path` is as before.

    At every moment a whole file is at `path`, if there was one, also when the process is killed. `keep`: the name
    under which the replaced file stays. A link at `path` is replaced, not followed; ValueError for a device, which
    a rename would remove, and for a folder.
    """
    if not path.is_symlink() and (path.is_char_device() or path.is_block_device() or path.is_dir()):
        raise ValueError(f"{path} is a folder or a device, not a file; give another path")
    temporary = _temporary_path(path)
    with explain_write_errors(path):
        file, _ = _open_locked(temporary, "xb")
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if keep is not None and path.exists():
                    _link_or_copy(path, keep)
                if os.name != "posix":  # Windows renames no open file; elsewhere its lock protects it to the end
                    file.close()
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Let the error of a write name the file, the reason and the cure; of a full disk, also the space that is left."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        folder = next((parent for parent in path.parents if os.path.isdir(parent)), path.parent)
        where, cure = "", "choose another path"
        if error.errno in FULL:
            where = f" to the disk of {folder}"
            with suppress(OSError):
                where += f" ({shutil.disk_usage(folder).free:,} bytes are left)"
            cure = "make room there; the same command, or call, continues from what was saved"
        elif error.errno in NOT_WRITABLE:
            cure = f"choose another path, or make {folder} writable"
        raise OSError(error.errno, f"{error.strerror}: {path} cannot be written{where}; {cure}") from None


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this path; the file is read, never made."""
    if fcntl is None or not path.exists():
        return False
    with suppress(OSError), open(path, "rb", opener=_open_no_link) as file:
        return _flock(file, fcntl.LOCK_SH) is False
    return False


def remove_leftovers(folder: Path, names: Collection[str] = ()) -> None:
    """Remove the temporary files of processes that are gone: those for files with these names, or for all."""
    for path in folder.glob(".*.asng-*"):
        match = TEMPORARY.fullmatch(path.name)
        if match and (not names or match["name"] in names):
            with suppress(OSError):  # another process was faster, or it is not a file
                file, locked = _open_locked(path, "r+b")
                with file:
                    if locked:
                        path.unlink()


def differences(saved: Any, current: Mapping[str, Any]) -> str:
    """The differences between saved settings and current ones, as text; empty if there are none.

    >>> differences({"seed": 1, "data": {"images": 5}}, {"seed": 1, "data": {"images": 7}, "rate": 0.1})
    'data.images: 5 there, 7 here; rate: None there, 0.1 here'
    """
    if not isinstance(saved, Mapping):
        return f"{saved!r} is there instead of its settings"
    found = list(_differences(saved, current))
    more = [f"and {len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else []
    return "; ".join(found[:MAX_SHOWN] + more)


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in {**saved, **current}:
        one, other = saved.get(name), current.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{prefix}{name}.")
        elif one != other:
            there, here = _excerpts(str(one), str(other))
            yield f"{prefix}{name}: {there} there, {here} here"


def _excerpts(one: str, other: str) -> list[str]:
    """Two texts, of long ones what is about the first difference.

    >>> _excerpts(str([*range(40), 1, 3]), str([*range(40), 2, 3]))
    ['...6, 37, 38, 39, 1, 3]', '...6, 37, 38, 39, 2, 3]']
    """
    common = next((n for n, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), 0)
    start = max(common - CONTEXT, 0) if max(len(one), len(other)) > MAX_LENGTH else 0
    return [shorten(f"...{text[start:]}" if start else text, str, MAX_LENGTH) for text in (one, other)]


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.asng-{os.getpid()}-{secrets.token_hex(4)}")


def _open_locked(path: Path, mode: str) -> tuple[BinaryIO, bool | None]:
    """Open a file and try to lock it; False where another process has it, None where there are no locks."""
    while True:
        file: Any = open(path, mode, opener=_open_no_link)  # noqa: SIM115 - the caller closes it
        locked = _flock(file)
        if not locked or _is_at(file, path):
            return file, locked
        file.close()  # removed between open and lock


def _open_no_link(path: str, flags: int) -> int:
    opened = os.open(path, flags | NO_FOLLOW | NON_BLOCKING, 0o666)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file; remove it", path)
    return opened


def _flock(file: BinaryIO, kind: int | None = None) -> bool | None:
    """Lock a file, by default exclusively; False where another process has it, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if kind is None else kind) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """The process that holds a lock, as its file names it."""
    try:
        text = read_text(path, "")
    except (OSError, ValueError):
        return "another process"
    return text if text.isprintable() and 0 < len(text) < 400 else "another process"


def _link_or_copy(path: Path, target: Path) -> None:
    """Give a file a second name, replacing the file that has that name."""
    spare = _temporary_path(target)
    try:
        try:
            os.link(path, spare)
        except OSError:  # not every file system has links
            shutil.copyfile(path, spare)
        os.replace(spare, target)
    finally:
        spare.unlink(missing_ok=True)  # where both names are the same file already, the rename did nothing


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere folders cannot be opened
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
