"""Faces of a folder of images: which files show them, which part of each, kept in one file of the user's cache folder.

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
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pooch  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image, ImageOps

from asng._files import atomic_write, remove_leftovers
from asng._progress import Progress, no_progress
from asng._untrusted import mismatch, open_regular, parse_json, read_text

CACHE_VERSION = 2  # of the cache file; part of the fingerprint
MAX_PIXELS = 50_000_000  # of an image: each of the threads that decode them may hold one
CHUNK = 128  # images between two reports of progress
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
BOXES = "list_bbox_celeba.txt"
WILD, *ALIGNED = "img_celeba", "img_align_celeba", "img_align_celeba_png"

FaceBox = tuple[int, int, int, int]  # left, top, width, height
Bytes = NDArray[np.uint8]


class File(NamedTuple):
    """A cheap fingerprint of a file: equal as long as the file is unchanged."""

    name: str
    bytes: int
    changed: int


def sources(folder: Path) -> tuple[list[File], File | None]:
    """The image files of a folder in the order of their names, and the file of boxes if they are to be used."""
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder}; name the one with the face images by --data, ASNG_DATA or --pictures "
            "(CelebA is at https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, for research that is not commercial)"
        )
    found = sorted(_walk(folder))
    files = [file for file in found if file.name.lower().endswith(ENDINGS)]
    if not files:
        raise ValueError(
            f"{folder} holds no images ({', '.join(ENDINGS)}); name the folder with the face images by --data, "
            "ASNG_DATA or --pictures"
        )
    above = f"/{Path(os.path.abspath(folder)).name}/"
    releases = {name: [file for file in files if f"/{name}/" in above + file.name] for name in (WILD, *ALIGNED)}
    release, members = next(((name, some) for name, some in releases.items() if some), ("", files))
    boxes = next((file for file in found if f"/{file.name}".endswith(f"/{BOXES}")), None)
    if release == WILD and boxes is None:
        raise ValueError(
            f"the images in {WILD} are cropped by the boxes of {BOXES}, which is not in {folder}; "
            "put it there, or name the folder that holds both"
        )
    return members, boxes if release not in ALIGNED else None


def _walk(folder: Path) -> Iterator[File]:
    """All images and boxes in a folder and those below it; links are followed, hidden files and folders are not."""
    seen = set()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        folders[:] = [] if real in seen else [name for name in folders if not name.startswith(".")]
        for name in [] if real in seen else names:  # a link may lead back up
            file = Path(path, name)
            wanted = name == BOXES or name.lower().endswith(ENDINGS)
            if wanted and not name.startswith(".") and file.is_file():  # no pipe, on which a reader waits
                about = file.stat()
                yield File(file.relative_to(folder).as_posix(), about.st_size, about.st_mtime_ns)
        seen.add(real)


def read_boxes(path: Path) -> dict[str, FaceBox]:
    """Read the positions of the faces in CelebA's original images, by the name of the image file."""
    lines = read_text(path, "download it again").splitlines()
    boxes: dict[str, FaceBox] = {}
    try:
        for line in lines[2:]:
            name, left, top, width, height = line.split()
            boxes[name] = int(left), int(top), int(width), int(height)
        announced = int(lines[0])
    except (ValueError, IndexError):
        wrong = lines[len(boxes) + 2] if len(boxes) + 2 < len(lines) else "its first line"
        raise ValueError(f"{path} is not CelebA's file of boxes ({wrong!r}); download it again") from None
    if announced != len(boxes):
        raise ValueError(f"{path} is cut off: it announces {announced} boxes and has {len(boxes)}; download it again")
    return boxes


def crop(width: int, height: int, box: FaceBox | None) -> tuple[int, int, int, int]:
    """The square of an image that is kept, as its left, upper, right and lower border.

    >>> crop(178, 218, None)
    (0, 20, 178, 198)
    >>> crop(409, 687, (95, 71, 226, 313))
    (51, 71, 364, 384)
    """
    box = box or (0, 0, width, height)
    side = min(max(box[2:]), width, height)
    if box[2] < 1 or box[3] < 1 or not (-box[2] < box[0] < width and -box[3] < box[1] < height):
        raise ValueError(f"its box {box} (left, top, width, height) is empty or not in the {width}x{height} image")
    left, top = (
        min(max(start + (length - side) // 2, 0), whole - side)
        for start, length, whole in ((box[0], box[2], width), (box[1], box[3], height))
    )
    return left, top, left + side, top + side


def face(path: Path, size: int, box: FaceBox | None) -> Bytes:
    """One image, cropped and resized: (3, size, size)."""
    with Image.open(path) as image:  # reads the header alone
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width}x{image.height} pixels are more than {MAX_PIXELS:,}; make it smaller")
        if box is None:  # cameras may store images sideways and say so; boxes count the pixels as they are stored
            ImageOps.exif_transpose(image, in_place=True)
        square = image.crop(crop(image.width, image.height, box))
        small = _to_rgb(square).resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(small).transpose(2, 0, 1)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Any image with three bytes for a pixel."""
    if image.mode.startswith("I"):  # gray in 16 bits, which Pillow would cut off at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")


def face_or_fault(folder: Path, boxes: dict[str, FaceBox] | None, size: int, name: str) -> Bytes | str:
    """The face (3, size, size) in an image of the folder, or what is wrong with the image."""
    box = None if boxes is None else boxes.get(Path(name).name)
    if boxes is not None and box is None:
        return f"{BOXES} has no box for it"
    try:
        return face(folder / name, size, box)
    except Exception as error:  # a damaged file may raise anything
        reason = str(error).replace(f" '{folder / name}'", "") or type(error).__name__
        return reason.splitlines()[0].rstrip(":")


@dataclass(frozen=True)
class Faces:
    """Images (n, 3, size, size), their names (paths within the folder), and what was wrong with others."""

    images: Bytes
    names: tuple[str, ...]
    damaged: dict[str, str]


def read_faces(folder: Path, size: int = 64, progress: Progress = no_progress) -> Faces:
    """Crop and resize the images of a folder, or load them from the user's cache folder if none has changed."""
    files, boxes = sources(folder)
    fingerprint, where = map(digest, (json.dumps([CACHE_VERSION, files, boxes]), str(folder.resolve())))
    path = Path(pooch.os_cache("asng")) / "faces" / f"{where}-{size}.npz"
    with suppress(Exception):  # there is no such file, or it is damaged, which may raise anything
        if (cached := _read_cache(path, fingerprint, [file.name for file in files], size)) is not None:
            return cached
    made = _crop_all(folder, [file.name for file in files], boxes and read_boxes(folder / boxes.name), size, progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        with atomic_write(path) as file:
            np.savez(file, images=made.images, index=json.dumps([fingerprint, made.names, made.damaged]))
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({os.strerror(error.errno or 0)}); name another folder by XDG_CACHE_HOME"
        ) from None
    progress(1.0)
    return made


def _read_cache(path: Path, fingerprint: str, names: list[str], size: int) -> Faces | None:
    """The cached faces if they are those of the files with these names; a damaged cache may raise anything."""
    with open_regular(path) as file, np.load(file, allow_pickle=False) as cached:  # a zip archive, with checksums
        index: Any = parse_json(str(cached["index"]))
        if mismatch(index, tuple[str, list[str], dict[str, str]]) or index[0] != fingerprint:
            return None
        kept, damaged = index[1:]
        images = cached["images"]
    if sorted([*kept, *damaged]) != names or images.dtype != np.uint8 or images.shape != (len(kept), 3, size, size):
        return None
    return Faces(images, tuple(kept), damaged)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _crop_all(folder: Path, names: list[str], boxes: dict[str, FaceBox] | None, size: int, progress: Progress) -> Faces:
    """Crop and resize all images. Threads are enough: Pillow releases the GIL to decode and resize."""
    results: dict[str, Bytes | str] = {}
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of damaged metadata and the like, a line for each image
            for name, result in zip(names, pool.map(partial(face_or_fault, folder, boxes, size), names), strict=True):
                if len(results) % CHUNK == 0:
                    progress(len(results) / len(names))
                results[name] = result
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption does not wait for the rest
    damaged = {name: result for name, result in results.items() if isinstance(result, str)}
    images = {name: result for name, result in results.items() if not isinstance(result, str)}
    if not images:
        name, reason = next(iter(damaged.items()))
        where = f"{folder} are damaged, such as {name} ({reason})"
        raise ValueError(f"all {len(names)} images in {where}; get them again, or name others by --data or --pictures")
    # In memory as it is when loaded: sums depend on the order.
    return Faces(np.ascontiguousarray(np.stack(list(images.values()))), tuple(images), damaged)
