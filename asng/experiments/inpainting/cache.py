"""Cropped faces of a folder of images, kept in one file of the user's cache folder that loads in seconds."""

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pooch  # type: ignore[import-untyped]

from asng._files import atomic_write, remove_leftovers
from asng.experiments import Progress
from asng.experiments.inpainting.crops import Bytes, reader, sources

CACHE_VERSION = 2  # of the cache file; part of the fingerprint
CHUNK = 128  # images between two reports of progress


@dataclass(frozen=True)
class Cache:
    """Images (n, 3, size, size), their names (paths within the folder), and what was wrong with others."""

    images: Bytes
    names: tuple[str, ...]
    damaged: dict[str, str]


def read_faces(folder: Path, size: int = 64, progress: Progress = lambda done: None) -> Cache:
    """Crop and resize the images of a folder, or load them from the user's cache folder if none has changed."""
    if size < 1:
        raise ValueError(f"images need at least 1 pixel, got size {size}")
    files, boxes = sources(folder)
    path = _path(folder, size, json.dumps([CACHE_VERSION, files, boxes]))
    if path.exists():
        with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):  # damaged
            return _load(path)
    made = _crop_all(folder, [file.name for file in files], reader(folder, boxes, size), progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        with atomic_write(path) as file:
            np.savez(file, images=made.images, index=json.dumps([made.names, made.damaged]))
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror}); name another folder by XDG_CACHE_HOME"
        ) from None
    for old in path.parent.glob(f"{path.name.rsplit('-', 1)[0]}-*.npz"):  # the same folder and size before a change
        if old != path:
            with suppress(OSError):
                old.unlink()
    progress(1.0)
    return made


def _path(folder: Path, size: int, files: str) -> Path:
    where, what = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in (str(folder.resolve()), files))
    return Path(pooch.os_cache("asng")) / "faces" / f"{where}-{size}-{what}.npz"


def _load(path: Path) -> Cache:
    with open(path, "rb") as file, np.load(file) as cached:  # a zip archive, whose checksums are verified
        names, damaged = json.loads(str(cached["index"]))
        return Cache(cached["images"], tuple(names), damaged)


def _crop_all(folder: Path, names: list[str], crop: Callable[[str], Bytes | str], progress: Progress) -> Cache:
    """Run `crop` on every name. Threads are enough: Pillow releases the GIL to decode and resize."""
    images: list[Bytes] = []
    good, damaged = [], {}
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for number, (name, result) in enumerate(zip(names, pool.map(crop, names), strict=True)):
            if number % CHUNK == 0:
                progress(number / len(names))
            if isinstance(result, str):
                damaged[name] = result
            else:
                good.append(name)
                images.append(result)
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption does not wait for the rest
    if not images:
        name, reason = next(iter(damaged.items()))
        where = f"{folder} are damaged, such as {name} ({reason})"
        raise ValueError(f"all {len(names)} images in {where}; get them again, or name others by --data or --pictures")
    together = np.ascontiguousarray(np.stack(images))  # as it is when loaded: sums depend on the order in memory
    return Cache(together, tuple(good), damaged)
