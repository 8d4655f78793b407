"""A run as a folder: `config.json` holds its settings, a file of JSON lines its finished records.

`environment.jsonl` has a line for each start: versions, machine, command line, time, which may differ from start to
start. One process at a time writes the folder. Writes are atomic: files are renamed into place, and a line torn by a
crash is dropped when the folder is opened again.
"""

import difflib
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

from asng import __version__
from asng._files import (
    RUN_FORMAT,
    Lock,
    atomic_write,
    check_writable,
    differences,
    explain_write_errors,
    make_folder_for,
)
from asng._untrusted import mismatch, read_bytes, read_json, read_json_lines, shorten

CONFIG = "config.json"
ENVIRONMENT = "environment.jsonl"
LOCK = ".asng-lock"
RESULTS = "results.jsonl"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.pt"
ARCHITECTURE = "architecture.json"
SUMMARY = "summary.json"

SettingsT = TypeVar("SettingsT")


class Run:
    """The folder of a run; opened again with the same configuration, the run continues.

    `lines` names the file of JSON lines: results, which stand for themselves, or the metrics of a
    training, a copy of what its checkpoint holds. The folder is locked until the run is
    left (`with Run(...) as run`); a second process that opens it is refused. `flags` says what else the run was
    started with, such as where its data lie; it may be another each time.
    """

    def __init__(
        self,
        folder: str | Path,
        config: Mapping[str, Any],
        lines: str = RESULTS,
        flags: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder: Path = Path(folder)
        self.config: dict[str, Any] = json.loads(json.dumps(config))  # as it is read back
        self._lines = self.folder / lines
        check_writable(self.folder / CONFIG)
        make_folder_for(self.folder / CONFIG)
        cure = "wait until it ends, or use another folder (--out)"
        self._lock = Lock(self.folder / LOCK, self.folder, cure)
        try:
            self._begin(flags or {})
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _begin(self, flags: Mapping[str, Any]) -> None:
        written = (self._lines, self.folder / METRICS, self.folder / ENVIRONMENT)
        for path in written:
            if path.is_symlink():  # it is written in place, wherever it leads
                raise ValueError(f"{path} is a link; put the file itself there, or use another folder (--out)")
        if (self.folder / CONFIG).exists():
            self._check()
        elif self._lines.exists():
            raise ValueError(f"{self._lines} is there but no {CONFIG}; use another folder, or delete this one")
        else:
            write_json(self.folder / CONFIG, self.config)
        for path in written:
            if path.exists():
                end = read_bytes(path).rfind(b"\n") + 1
                with explain_write_errors(path):
                    os.truncate(path, end)  # drops a torn line
        _append(self.folder / ENVIRONMENT, {**describe_environment(), "flags": dict(flags)})

    def renew(self) -> None:
        """Before something is written: raise ValueError if the folder is no longer this run's."""
        if not self.folder.is_dir():
            raise ValueError(f"{self.folder} was removed while its run went on; start it again")
        if self._lock.renew():
            self._check()

    def _check(self) -> None:
        if shown := differences(read_config(self.folder), self.config):
            cure = "use another folder (--out), or delete this one"
            raise ValueError(f"{self.folder} holds a run of another configuration ({shown}); {cure}")

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a finished record; it is on the disk when this returns."""
        self.renew()
        _append(self._lines, record)

    def results(self) -> list[dict[str, Any]]:
        """The finished records, in the order in which they were appended."""
        cure = "delete the folder, or the line if you can spare it"
        return read_json_lines(self._lines, cure) if self._lines.exists() else []

    def restore(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Make these the finished records; the file is rewritten only where it holds others."""
        _restore(self._lines, records)


class MetricsFile:
    """`metrics.jsonl` in a run whose own lines are results: the records of its search, with null for what is NaN."""

    def __init__(self, run: Run) -> None:
        self._run, self._path = run, run.folder / METRICS

    def renew(self) -> None:
        """Renew the run's lock; raises as `Run.renew` does."""
        self._run.renew()

    def append(self, record: Mapping[str, Any]) -> None:
        """Append the record of an epoch."""
        self._run.renew()
        _append(self._path, _replace_nan(record))

    def restore(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Make these the records of the file."""
        _restore(self._path, [_replace_nan(record) for record in records])


def _replace_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }


def _restore(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    try:
        content = b"".join(map(_to_line, records))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.parent} has a checkpoint with damaged records ({error}); delete it") from None
    if content != (read_bytes(path) if path.exists() else b""):
        with atomic_write(path) as file:
            file.write(content)


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with explain_write_errors(path), open(path, "ab") as file:
        file.write(_to_line(record))
        file.flush()
        os.fsync(file.fileno())


def _to_line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


class OtherFormat(ValueError):
    """A run is of another format, which another version of asng reads."""


def make_config(experiment: str, kind: str, settings: Any, **more: Any) -> dict[str, Any]:
    """The configuration of a run."""
    made_by = {"version": __version__, "format": RUN_FORMAT}
    return {"experiment": experiment, "kind": kind, **made_by, **vars(settings), **more}


def read_config(folder: Path, experiment: str | None = None, needs: str | None = None) -> dict[str, Any]:
    """The configuration of a run; raises ValueError for a folder that is none.

    Args:
        folder: Of the run.
        experiment: That the run must be of.
        needs: A file that must be in the folder.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        around = f"; did you mean {folder.parent}?" if (folder.parent / CONFIG).exists() else ""
        if folder.exists() and not around:
            around = ", not the folder of a run; the same call continues a checkpoint of nas.search or asng.minimize"
        raise ValueError(f"{what}{nearest_path(folder) or around}")
    if not path.exists():
        runs = sorted(str(each.parent) for each in folder.glob(f"*/{CONFIG}"))
        inside = f"; in it is the run {runs[0]}" if runs else ""
        if len(runs) > 1:
            inside = f"; in it are {len(runs)} runs, such as {runs[0]}"
        raise ValueError(f"{folder} is not a run: it has no {CONFIG}{inside}")
    config: dict[str, Any] = read_json(path, "delete the folder, or use another", dict[str, Any])
    if "version" in config and config.get("format") != RUN_FORMAT:  # without a version it is not asng's
        made, found = shorten(config["version"]), shorten(config.get("format", 1))
        raise OtherFormat(
            f"{folder} is a run of format {found}, made by asng {made}; this asng, {__version__}, reads format "
            f"{RUN_FORMAT}: run it again in another folder, or use the one that made it"
        )
    if experiment is not None and is_own_search(config):
        raise ValueError(f"{folder} is not a run of {experiment}, but a search of your own, saved by SearchResult.save")
    if experiment is not None and config.get("experiment") != experiment:
        raise ValueError(
            f"{folder} is not a run of {experiment}: its {CONFIG} says {shorten(config.get('experiment'))}"
        )
    if needs is not None and not (folder / needs).is_file():
        if (folder / SUMMARY).is_file():
            raise ValueError(
                f"there is no {folder / needs}, though the run is finished; run it again in another folder"
            )
        raise ValueError(f"there is no {folder / needs} yet; let the run get that far: the same command continues it")
    return config


def is_own_search(config: Mapping[str, Any]) -> bool:
    """Whether a run was saved by `SearchResult.save`, whatever its settings call it; no command has an `optimizer`."""
    return config.keys() >= {"version", "optimizer"}


def seed_folders(folder: Path) -> list[Path]:
    """The runs seed0, seed1, ... in a folder that `--seeds` made, by their seeds; none for one that is itself a run."""
    if (folder / CONFIG).exists():
        return []
    runs = [path.parent for path in folder.glob(f"seed*/{CONFIG}") if path.parent.name[4:].isdecimal()]
    return sorted(runs, key=lambda run: int(run.name[4:]))


def nearest_path(path: Path) -> str:
    """The end of a message about a path that is not there: one of a similar name beside it, or in runs."""
    near = _nearest(path)
    return "" if near in (None, path) else f"; did you mean {near}?"


def _nearest(path: Path) -> Path | None:
    """The path itself where it exists, else one that does and has similar names, or None."""
    if path.exists() or path.parent == path:
        return path if path.exists() else None
    parent = _nearest(path.parent)
    if parent is None or not parent.is_dir():
        return parent
    with suppress(OSError):
        known = [*(Path("runs").glob("*") if parent == Path() else ()), *parent.iterdir()]
        paths: dict[str, Path] = {each.name: each for each in known}
        if near := difflib.get_close_matches(path.name, paths, 1):
            return paths[near[0]]
    return None if parent == path.parent else parent


def settings_from_config(kind: type[SettingsT], config: Mapping[str, Any], folder: Path) -> SettingsT:
    """Settings from the configuration of the run in a folder; lists become tuples.

    ValueError, which names the file, for those that are missing, of another type or out of their range.
    """
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
    try:
        given = {field.name: tuples[field.name] for field in fields(kind)}  # type: ignore[arg-type]
        for name, hint in get_type_hints(kind).items():
            if name in given and (fault := mismatch(given[name], hint)):
                raise ValueError(f"{name} {fault}")
        return kind(**given)
    except (KeyError, ValueError) as error:
        fault = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{folder / CONFIG} is damaged ({fault}); run it again in another folder") from None


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file atomically."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    with atomic_write(path) as file:
        file.write(text.encode())


def describe_environment() -> dict[str, Any]:
    """Versions, machine, command line and time of this process, as JSON holds them.

    torch is asked only if it is loaded, and for GPUs only if they are in use, since both take time and memory.

    >>> describe_environment()["asng"] == __version__
    True
    """
    described: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "asng": __version__,
        "python": platform.python_version(),
        "numpy": sys.modules["numpy"].__version__,  # the core has loaded it
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        described |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if torch.cuda.is_initialized():
            described |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return described


def _cpu_name() -> str:
    with suppress(OSError):  # there is none on other systems than Linux
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
