"""The faces in a folder of images, read once and kept in a single file that loads in seconds."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pooch  # type: ignore[import-untyped]

from asng._files import atomic_write, remove_leftovers
from asng.experiments import Progress
from asng.experiments.inpainting.crops import BOXES, Bytes, reader, sources
from asng.runs import write_json

VERSION = 1  # of what is kept; another one is built anew
CHUNK = 128  # images between two reports of progress


@dataclass(frozen=True)
class Cache:
    """Images (n, 3, size, size) in a file, their names (paths within the folder), and what was wrong with others."""

    images: Bytes
    names: tuple[str, ...]
    damaged: dict[str, str]


def read_faces(folder: Path, size: int = 64, progress: Progress = lambda done: None) -> Cache:
    """The images of a folder, from the cache in it (or in the user's, where it cannot be written), built if need be."""
    if size < 1:
        raise ValueError(f"images need at least 1 pixel, got size {size}")
    files, boxes = sources(folder)
    key = json.dumps([VERSION, size, files, boxes])
    fingerprint = hashlib.sha256(key.encode()).hexdigest()[:32]
    cache_folders = folder / ".asng", _user_cache(folder)
    for cache_folder in cache_folders:
        cached = _read(cache_folder, size, fingerprint)
        if cached is not None:
            return cached
    cache_folder = cache_folders[0] if _is_writable(cache_folders[0]) else cache_folders[1]
    cache_folder.mkdir(parents=True, exist_ok=True)
    read = reader(folder, boxes, size)
    crops = "central square" if boxes is None else BOXES
    settings = {"fingerprint": fingerprint, "folder": str(folder), "size": size, "filter": "lanczos", "crop": crops}
    _build(cache_folder, settings, [file.name for file in files], read, progress)
    built = _read(cache_folder, size, fingerprint)
    if built is None:  # somebody else has read, and kept, other files
        raise ValueError(f"the images in {folder} changed while they were read; run the same command again")
    return built


def _build(
    cache_folder: Path,
    settings: dict[str, Any],
    names: list[str],
    one: Callable[[str], Bytes | str],
    progress: Progress,
) -> None:
    """Write both files, the one with the names last: only then the cache is there; then remove what is out of use."""
    size, fingerprint = settings["size"], settings["fingerprint"]
    remove_leftovers(cache_folder)
    with atomic_write(_images(cache_folder, size, fingerprint)) as file:
        good, damaged = _write_images(file, size, names, one, progress)
        if not good:
            name, reason = next(iter(damaged.items()))
            where = f"{settings['folder']} are damaged, such as {name} ({reason})"
            raise ValueError(
                f"all {len(names)} images in {where}; get them again, or name others by --data or --pictures"
            )
    write_json(cache_folder / f"faces-{size}.json", {**settings, "damaged": damaged, "names": good})
    remove_leftovers(cache_folder)
    for path in cache_folder.glob(f"faces-{size}-*.npy"):  # of other files and settings; never by what a file says
        if re.fullmatch(rf"faces-{size}-[0-9a-f]{{32}}\.npy", path.name) and fingerprint not in path.name:
            with suppress(OSError):
                path.unlink()
    progress(1.0)


def _write_images(
    file: BinaryIO, size: int, names: list[str], one: Callable[[str], Bytes | str], progress: Progress
) -> tuple[list[str], dict[str, str]]:
    """A .npy file (n, 3, size, size) of all images that can be read; their names, and what is wrong with the others."""
    good: list[str] = []
    damaged: dict[str, str] = {}
    with closing(_in_threads(one, names)) as results:
        start = _write_header(file, len(names), size)
        for number, (name, result) in enumerate(zip(names, results, strict=True)):
            if number % CHUNK == 0:
                progress(number / len(names))
            if isinstance(result, str):
                damaged[name] = result
            else:
                good.append(name)
                file.write(result.tobytes())
        file.seek(0)
        again = _write_header(file, len(good), size)
        assert again == start  # NumPy leaves room for any number of images
    return good, damaged


def _write_header(file: BinaryIO, n: int, size: int) -> int:
    """What stands before the numbers in a .npy file; returns where they begin."""
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (n, 3, size, size)})
    return file.tell()


def _in_threads(one: Callable[[str], Bytes | str], names: list[str]) -> Generator[Bytes | str, None, None]:
    """The results in the order of the names. Threads are enough: Pillow decodes and resizes side by side."""
    chunks = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)]
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for results in pool.map(lambda chunk: [one(name) for name in chunk], chunks):
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption does not wait for the rest


def _images(cache_folder: Path, size: int, fingerprint: str) -> Path:
    return cache_folder / f"faces-{size}-{fingerprint}.npy"


def _read_index(cache_folder: Path, size: int) -> dict[str, Any]:
    try:
        index = json.loads((cache_folder / f"faces-{size}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def _read(cache_folder: Path, size: int, fingerprint: str) -> Cache | None:
    """What is kept in a place, if it is whole and of the same files and settings."""
    index = _read_index(cache_folder, size)
    if index.get("fingerprint") != fingerprint:
        return None
    try:
        images = np.load(_images(cache_folder, size, fingerprint), mmap_mode="r")
    except (OSError, ValueError):
        return None
    names = tuple(index["names"])
    return Cache(images, names, index["damaged"]) if images.shape == (len(names), 3, size, size) else None


def _user_cache(folder: Path) -> Path:
    key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return Path(pooch.os_cache("asng")) / "faces" / key


def _is_writable(cache_folder: Path) -> bool:
    if cache_folder.is_symlink():  # the folder of images may come from anywhere, and the link lead anywhere
        return False
    try:
        cache_folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_folder):
            return True
    except OSError:
        return False
