"""Folders of face images, cropped and resized once into a single file that loads in seconds.

CelebA is taken as its authors distribute it. `img_celeba` holds the images as they were found; there
`list_bbox_celeba.txt`, anywhere in the folder, says where the face is: the number of images in its first line, a
heading in its second, then `name x_1 y_1 width height`. The crop is the square around the middle of that box with the
length of its longer side, moved into the image where it stands out, so that the face keeps its proportions. Boxes do
not belong to the aligned images of `img_align_celeba`: of those, as of any other image, the largest central square is
taken. Where several of these folders lie together, only the first is used, for all show the same faces.
"""

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pooch  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image, ImageOps

from asng.experiments.data import Progress
from asng.runs import write_json

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
BOXES = "list_bbox_celeba.txt"
WILD, *ALIGNED = "img_celeba", "img_align_celeba", "img_align_celeba_png"
VERSION = 1  # of what is kept; another one is built anew
CHUNK = 128  # images between two reports of progress
BUILDING = "building-"  # how folders begin that are about to become a cache

Box = tuple[int, int, int, int]  # left, top, width, height
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Cache:
    """Images (n, 3, size, size) in a file, their names (paths within the folder), and what was wrong with others."""

    images: Bytes
    names: tuple[str, ...]
    damaged: dict[str, str]


class File(NamedTuple):
    """What tells, at little cost, whether a file is still the same."""

    name: str
    bytes: int
    changed: int


def faces(folder: Path, size: int = 64, progress: Progress = lambda done: None) -> Cache:
    """The images of a folder, from the cache in it (or in the user's, where it cannot be written), built if need be."""
    if size < 1:
        raise ValueError(f"images need at least 1 pixel, got size {size}")
    files, boxes = _sources(folder)
    key = json.dumps([VERSION, size, files, boxes])
    fingerprint = hashlib.sha256(key.encode()).hexdigest()[:32]
    places = folder / ".asng", _users_place(folder)
    for place in places:
        kept = _read(place, size, fingerprint)
        if kept is not None:
            return kept
    place = places[0] if _writable(places[0]) else places[1]
    place.mkdir(parents=True, exist_ok=True)
    at = None if boxes is None else read_boxes(folder / boxes.name)
    crops = "central square" if at is None else BOXES
    settings = {"fingerprint": fingerprint, "folder": str(folder), "size": size, "filter": "lanczos", "crop": crops}
    with _at_work(place):
        _build(place, settings, [file.name for file in files], partial(_one, folder, at, size), progress)
    built = _read(place, size, fingerprint)
    if built is None:  # somebody else has read, and kept, other files
        raise ValueError(f"the images in {folder} changed while they were read; run the same command again")
    return built


def _sources(folder: Path) -> tuple[list[File], File | None]:
    """The image files of a folder in the order of their names, and the file of boxes if they are to be used."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; name the one with the face images by --data or ASNG_DATA")
    found = sorted(_walk(folder))
    files = [file for file in found if file.name.lower().endswith(ENDINGS)]
    if not files:
        raise ValueError(
            f"{folder} holds no images ({', '.join(ENDINGS)}); "
            "name the folder with the face images by --data or ASNG_DATA"
        )
    for release in (WILD, *ALIGNED):
        members = [file for file in files if f"/{release}/" in f"/{Path(os.path.abspath(folder)).name}/{file.name}"]
        if members:
            break
    else:
        release, members = "", files
    boxes = next((file for file in found if f"/{file.name}".endswith(f"/{BOXES}")), None)
    if release == WILD and boxes is None:
        raise ValueError(
            f"the images in {WILD} are cropped by the boxes of {BOXES}, which is not in {folder}; "
            "put it there, or name the folder that holds both"
        )
    return members, boxes if release not in ALIGNED else None


def _walk(folder: Path) -> Iterator[File]:
    """All files in a folder and those below it, linked ones too, hidden ones not."""
    waiting, seen = [""], set()
    while waiting:
        path = waiting.pop()
        inside = os.stat(folder / path)
        if (inside.st_dev, inside.st_ino) in seen:  # a link that leads back up
            continue
        seen.add((inside.st_dev, inside.st_ino))
        with os.scandir(folder / path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = path + entry.name
                with suppress(OSError):  # a link that leads nowhere, or to itself
                    if entry.is_dir():
                        waiting.append(name + "/")
                    elif entry.name == BOXES or entry.name.lower().endswith(ENDINGS):
                        about = entry.stat()
                        if stat.S_ISREG(about.st_mode):  # who opens a pipe waits, perhaps for ever
                            yield File(name, about.st_size, about.st_mtime_ns)


def read_boxes(path: Path) -> dict[str, Box]:
    """Where the faces are in CelebA's original images, by the name of the image file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    boxes: dict[str, Box] = {}
    try:
        for line in lines[2:]:
            name, left, top, width, height = line.split()
            boxes[name] = int(left), int(top), int(width), int(height)
        said = int(lines[0])
    except (ValueError, IndexError):
        wrong = lines[len(boxes) + 2] if len(boxes) + 2 < len(lines) else "its first line"
        raise ValueError(f"{path} is not CelebA's file of boxes ({wrong!r}); download it again") from None
    if said != len(boxes):
        raise ValueError(f"{path} is cut off: it speaks of {said} boxes and has {len(boxes)}; download it again")
    return boxes


def crop(width: int, height: int, box: Box | None) -> tuple[int, int, int, int]:
    """The square of an image that is kept, as its left, upper, right and lower border.

    >>> crop(178, 218, None)
    (0, 20, 178, 198)
    >>> crop(409, 687, (95, 71, 226, 313))
    (51, 71, 364, 384)
    """
    if box is None:
        box = 0, 0, width, height
        side = min(width, height)
    else:
        side = min(max(box[2:]), width, height)
    if box[2] < 1 or box[3] < 1 or not (-box[2] < box[0] < width and -box[3] < box[1] < height):
        raise ValueError(f"its box {box} (left, top, width, height) is empty or not in the {width}x{height} image")
    left, top = (
        min(max(start + (length - side) // 2, 0), whole - side)
        for start, length, whole in ((box[0], box[2], width), (box[1], box[3], height))
    )
    return left, top, left + side, top + side


def face(path: Path, size: int, box: Box | None) -> Bytes:
    """One image, cropped and resized: (3, size, size)."""
    with Image.open(path) as image:
        if box is None:  # cameras may store images sideways and say so; boxes count the pixels as they are stored
            ImageOps.exif_transpose(image, in_place=True)
        square = image.crop(crop(image.width, image.height, box))
        small = _coloured(square).resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(small).transpose(2, 0, 1)


def _coloured(image: Image.Image) -> Image.Image:
    """Any image with three bytes for a pixel."""
    if image.mode.startswith("I"):  # grey in 16 bits, which Pillow would cut off at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")


def _one(folder: Path, boxes: dict[str, Box] | None, size: int, name: str) -> Bytes | str:
    """The image of a name, or what is wrong with it."""
    try:
        if boxes is None:
            return face(folder / name, size, None)
        if Path(name).name not in boxes:
            return f"{BOXES} has no box for it"
        return face(folder / name, size, boxes[Path(name).name])
    except Exception as error:  # whatever a damaged file makes of its reader
        reason = str(error).replace(f" '{folder / name}'", "") or type(error).__name__
        return reason.splitlines()[0].rstrip(":")


@contextmanager
def _at_work(place: Path) -> Iterator[None]:
    """Tell others that somebody builds here; whoever finds nobody removes what builders left that were killed."""
    if os.name != "posix":  # elsewhere there are no such locks, and it stays
        yield
        return
    import fcntl

    def sweep() -> None:
        with suppress(OSError):  # others are at work, or the file system has no locks
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in place.glob(f"{BUILDING}*"):
                shutil.rmtree(left, ignore_errors=True)

    opened = os.open(place, os.O_RDONLY)
    try:
        sweep()
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_SH)
        yield
    finally:
        sweep()
        os.close(opened)


def _build(
    place: Path, settings: dict[str, Any], names: list[str], one: Callable[[str], Bytes | str], progress: Progress
) -> None:
    """Write both files aside and move them into place, the one with the names last: only then the cache is there."""
    size = settings["size"]
    with tempfile.TemporaryDirectory(prefix=BUILDING, dir=place, ignore_cleanup_errors=True) as aside:
        images, about = Path(aside) / "images", Path(aside) / "about"
        good, damaged = _write_images(images, size, names, one, progress)
        if not good:
            name, reason = next(iter(damaged.items()))
            where = f"{settings['folder']} are damaged, such as {name} ({reason})"
            raise ValueError(f"all {len(names)} images in {where}; get them again, or name others by --data")
        kept = f"faces-{size}-{settings['fingerprint']}.npy"
        write_json(about, {**settings, "images": kept, "damaged": damaged, "names": good})
        before = _about(place, size).get("images")
        os.replace(images, place / kept)
        os.replace(about, place / f"faces-{size}.json")
    if isinstance(before, str) and before != kept:
        with suppress(OSError):
            (place / before).unlink()
    progress(1.0)


def _write_images(
    path: Path, size: int, names: list[str], one: Callable[[str], Bytes | str], progress: Progress
) -> tuple[list[str], dict[str, str]]:
    """A .npy file (n, 3, size, size) of all images that can be read; their names, and what is wrong with the others."""
    good: list[str] = []
    damaged: dict[str, str] = {}
    with open(path, "wb") as file, closing(_in_threads(one, names)) as results:
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
        file.flush()
        os.fsync(file.fileno())
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


def _about(place: Path, size: int) -> dict[str, Any]:
    try:
        about = json.loads((place / f"faces-{size}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _read(place: Path, size: int, fingerprint: str) -> Cache | None:
    """What is kept in a place, if it is whole and of the same files and settings."""
    about = _about(place, size)
    if about.get("fingerprint") != fingerprint:
        return None
    try:
        images = np.load(place / about["images"], mmap_mode="r")
    except (OSError, ValueError):
        return None
    names = tuple(about["names"])
    return Cache(images, names, about["damaged"]) if images.shape == (len(names), 3, size, size) else None


def _users_place(folder: Path) -> Path:
    key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return Path(pooch.os_cache("asng")) / "faces" / key


def _writable(place: Path) -> bool:
    try:
        place.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False
