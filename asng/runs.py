"""A run as a folder: `config.json` holds its settings, a file of JSON lines its finished records.

One process at a time writes it. Writes are atomic: files are renamed into place, and a line torn by a crash is
dropped when the folder is opened again.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

from asng import __version__
from asng._files import Lock, atomic_write, differences, explain_full_disk, make_folder_for
from asng._untrusted import mismatch, read_bytes, read_json, read_json_lines

CONFIG = "config.json"
LOCK = ".asng-lock"
RESULTS = "results.jsonl"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.pt"
ARCHITECTURE = "architecture.json"
SUMMARY = "summary.json"

Settings = TypeVar("Settings")


class Run:
    """The folder of a run; opened again with the same configuration, the run continues.

    `lines` names the file of JSON lines: results, which stand for themselves, or the metrics of a
    training, a copy of what its checkpoint holds. The folder is locked until the run is
    left (`with Run(...) as run`); a second process that opens it is refused.
    """

    def __init__(self, folder: str | Path, config: Mapping[str, Any], lines: str = RESULTS) -> None:
        self.folder: Path = Path(folder)
        self.config: dict[str, Any] = json.loads(json.dumps(config))  # as it is read back
        self._lines = self.folder / lines
        make_folder_for(self.folder / CONFIG)
        cure = "wait until it ends, or use another folder (--out)"
        self._lock = Lock(self.folder / LOCK, self.folder, cure)
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _begin(self) -> None:
        if self._lines.is_symlink():  # it is written in place, wherever it leads
            raise ValueError(f"{self._lines} is a link; put the file itself there, or use another folder (--out)")
        if (self.folder / CONFIG).exists():
            self._check()
        elif self._lines.exists():
            raise ValueError(f"{self._lines} is there but no {CONFIG}; use another folder, or delete this one")
        else:
            write_json(self.folder / CONFIG, self.config)
        if self._lines.exists():
            content = read_bytes(self._lines)
            os.truncate(self._lines, content.rfind(b"\n") + 1)  # drops a torn line

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
        with explain_full_disk(self._lines), open(self._lines, "ab") as file:
            file.write(_to_line(record))
            file.flush()
            os.fsync(file.fileno())

    def results(self) -> list[dict[str, Any]]:
        """The finished records, in the order in which they were appended."""
        cure = "delete the folder, or the line if you can spare it"
        return read_json_lines(self._lines, cure) if self._lines.exists() else []

    def restore(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Make these the finished records; the file is rewritten only where it holds others."""
        try:
            content = b"".join(map(_to_line, records))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.folder} has a checkpoint with damaged records ({error}); delete it") from None
        if content != (read_bytes(self._lines) if self._lines.exists() else b""):
            with atomic_write(self._lines) as file:
                file.write(content)


def _to_line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def make_config(experiment: str, kind: str, settings: Any, **more: Any) -> dict[str, Any]:
    """The configuration of a run."""
    return {"experiment": experiment, "kind": kind, "version": __version__, **vars(settings), **more}


def read_config(folder: Path, experiment: str | None = None, needs: str | None = None) -> dict[str, Any]:
    """The configuration of a run; raises ValueError for a folder that is none.

    Args:
        folder: Of the run.
        experiment: That the run must be of.
        needs: A file that must be in the folder.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    if not path.exists():
        raise ValueError(f"{folder} is no run: it has no {CONFIG}")
    config: dict[str, Any] = read_json(path, "delete the folder, or use another", dict[str, Any])
    if experiment is not None and config.get("experiment") != experiment:
        raise ValueError(f"{folder} is no run of {experiment}: its {CONFIG} says {config.get('experiment')!r}")
    if needs is not None and not (folder / needs).is_file():
        raise ValueError(f"there is no {folder / needs} yet; let the run get that far: the same command continues it")
    return config


def settings_from_config(kind: type[Settings], config: Mapping[str, Any]) -> Settings:
    """Settings from a run's configuration; lists become tuples. ValueError for those of another type."""
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
    try:
        given = {field.name: tuples[field.name] for field in fields(kind)}  # type: ignore[arg-type]
    except KeyError as error:
        made = f"asng {config.get('version', 'of another version')}"
        raise ValueError(
            f"the run was made by {made}, without the setting {error}, and this is asng {__version__}; "
            f"do this with {made}, or run it again"
        ) from None
    check_config(kind, given)
    return kind(**given)


def check_config(kind: type, config: Mapping[str, Any]) -> None:
    """Raise ValueError for settings in a run's configuration that are not of their types."""
    for name, hint in get_type_hints(kind).items():
        if name in config and (fault := mismatch(config[name], hint)):
            raise ValueError(f"{CONFIG} of the run is damaged ({name} {fault}); run it again in another folder")


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file atomically."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    with atomic_write(path) as file:
        file.write(text.encode())
