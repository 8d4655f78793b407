"""A checkpoint as one JSON file with one writer: written atomically, the previous one kept, refused to other runs."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from asng import _files
from asng._untrusted import parse_json, read_bytes

MIN_INTERVAL = 1.0  # seconds between two saves
MAX_SHARE = 0.05  # of the time, spent on saving


class JsonCheckpoint:
    """The file of a run with this identity, locked until it is released."""

    def __init__(self, given: str | PathLike[str], format: str, identity: Mapping[str, Any]) -> None:
        path = _files.as_checkpoint_path(given, "search.json")
        self._path, self._format, self._identity = path, format, _pass_through_json(identity)
        _files.check_writable(path)
        self._lock = _files.lock_checkpoint(path)
        self._next_save = time.monotonic() + MIN_INTERVAL

    def load(self, restore: Callable[[dict[str, Any]], None]) -> None:
        """Restore the saved state, if there is a file; ValueError for damaged files and those of other runs."""
        if not self._path.exists():
            return
        raw = read_bytes(self._path)
        try:
            content = parse_json(raw)
            found, identity, state = content["format"], content["identity"], content["state"]
            is_intact = content["checksum"] == _checksum(state)
        except Exception as error:  # anything may be in it
            raise self._damage_error("damaged or no checkpoint", error) from None
        if found != self._format:
            raise ValueError(f"{self._path} is of the format {found!r}, not {self._format!r}; use another path")
        if different := _files.differences(identity, self._identity):
            raise ValueError(f"{self._path} is of another run ({different}); use another path, or delete it")
        if not is_intact or not isinstance(state, dict):
            raise ValueError(f"{self._path} is damaged: it is not as it was saved{_files.offer_previous(self._path)}")
        try:
            restore(state)
        except Exception as error:  # anybody may have written it
            raise self._damage_error("damaged", error) from None

    def _damage_error(self, fault: str, error: Exception) -> ValueError:
        reason = f"{type(error).__name__}: {error}"[:80]
        return ValueError(f"{self._path} is {fault} ({reason}){_files.offer_previous(self._path)}")

    def save_if_due(self, make_state: Callable[[], Mapping[str, Any]]) -> None:
        """Save, if the last time was long enough ago."""
        if time.monotonic() >= self._next_save:
            self.save(make_state())

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the file atomically; ValueError if another process took it over."""
        begin = time.monotonic()
        state = _pass_through_json(state)
        content = {"format": self._format, "identity": self._identity, "checksum": _checksum(state), "state": state}
        _files.make_folder_for(self._path)  # it may have been removed
        self._lock.renew()
        with _files.atomic_write(self._path, keep=_files.previous_path(self._path)) as file:
            file.write(json.dumps(content, allow_nan=False).encode())
        end = time.monotonic()
        self._next_save = end + max(MIN_INTERVAL, (end - begin) / MAX_SHARE)

    def close(self) -> None:
        """Let other processes write the file."""
        self._lock.release()


def _pass_through_json(value: Mapping[str, Any]) -> Any:
    """Data after a round trip through JSON: tuples are lists."""
    return json.loads(json.dumps(value, allow_nan=False))


def _checksum(state: Any) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
