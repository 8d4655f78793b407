"""CIFAR-10 as one tensor on the training device: read and checked, or downloaded; mini-batches augmented there."""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from asng._progress import Progress, no_progress
from asng._untrusted import read_bytes
from asng.experiments._images import ImageSet, data_folder, send

FOLDER = "cifar-10-batches-bin"
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # bytes: a label, then the red, the green and the blue plane
PADDING = 4
# Of the 50,000 training images, per channel, in the units of the pixels.
MEAN = (125.306918046875, 122.950394140625, 113.86538318359375)
STD = (62.99321927813691, 62.088707640014164, 66.70489964063096)


@dataclass(frozen=True)
class Release:
    """A published archive of files with the same number of images each; the last one is the test set."""

    url: str
    md5: str
    size: int  # in bytes
    files: dict[str, str]  # names, and the MD5 sum of each
    images: int  # in each file


RELEASE = Release(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    size=170_052_171,
    files={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    images=10_000,
)


def load_cifar10(
    given: Path | None, device: torch.device | str, progress: Progress = no_progress
) -> tuple[ImageSet, ImageSet]:
    """The 50,000 training images and the 10,000 test images; downloaded first where there are none.

    `given` is the folder of `data_folder`: the one with the official binary files, or
    the one above it. Every file is checked against the sum published for it.
    """
    folder = _folder(given)
    if len(missing := _missing_files(folder)) == len(RELEASE.files):
        _download(folder, progress)
    elif missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}; {_repeat_hint(folder)}")
    *train, test = (_read(folder / name, md5) for name, md5 in RELEASE.files.items())
    return _to_images(device, np.concatenate(train)), _to_images(device, test)


def has_cifar10(given: Path | None) -> bool:
    """Whether any of the files is there, so that nothing would be downloaded."""
    return len(_missing_files(_folder(given))) < len(RELEASE.files)


def describe_source(given: Path | None) -> str:
    """Where the files are, or what would be downloaded."""
    folder = _folder(given)
    if has_cifar10(given):
        return f"CIFAR-10 in {folder}"
    download = f"{RELEASE.size / 1e6:.0f} MB from {RELEASE.url}"
    return f"CIFAR-10 is not in {folder}; the run downloads it ({download}); random images take its place here"


def make_noise(device: torch.device | str) -> tuple[ImageSet, ImageSet]:
    """Random images in the place of CIFAR-10, as many, for timing steps."""
    generator = torch.Generator().manual_seed(0)
    sets = []
    for count in ((len(RELEASE.files) - 1) * RELEASE.images, RELEASE.images):
        images = torch.randint(256, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
        sets.append(ImageSet(images.to(device), torch.randint(10, (count,), generator=generator).to(device)))
    return sets[0], sets[1]


def _folder(given: Path | None) -> Path:
    """The folder of the files: the one of the data, if it looks like it, else the one below it."""
    where = data_folder(given)
    if where.is_file():
        raise ValueError(f"{where} is a file; name the folder of CIFAR-10 instead, or the one above it")
    itself = where.name == FOLDER or any((where / name).exists() for name in RELEASE.files)
    return where if itself else where / FOLDER


def _missing_files(folder: Path) -> list[str]:
    return [name for name in RELEASE.files if not (folder / name).exists()]


def _manual_download() -> str:
    return f"download {RELEASE.url}, unpack it, and name its folder with --data or the environment variable ASNG_DATA"


def _repeat_hint(folder: Path) -> str:
    return f"move {folder} away to have it downloaded again, or {_manual_download()}"


def _read(path: Path, md5: str) -> np.ndarray:
    """The records of a file, uint8 (n, 3073), once they are seen to be the published ones."""
    content = read_bytes(path)
    if len(content) != RELEASE.images * RECORD:
        raise ValueError(
            f"{path} has {len(content):,} bytes, not {RELEASE.images * RECORD:,}; {_repeat_hint(path.parent)}"
        )
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise ValueError(f"{path} is damaged: its MD5 sum is {found}, not {md5}; {_repeat_hint(path.parent)}")
    return np.frombuffer(content, np.uint8).reshape(-1, RECORD)


def _to_images(device: torch.device | str, records: np.ndarray) -> ImageSet:
    pixels = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, SIDE, SIDE)
    return ImageSet(torch.from_numpy(pixels).to(device), torch.from_numpy(records[:, 0].astype(np.int64)).to(device))


def _download(folder: Path, progress: Progress) -> None:
    """Put the files of the release there, all at once: until the last moment nothing is seen of them."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there, but without any file of CIFAR-10; {_repeat_hint(folder)}")
    above = next(parent for parent in folder.absolute().parents if parent.is_dir())
    try:
        with TemporaryDirectory(prefix=".cifar-10-", dir=above) as aside:  # the same file system, to be renamed
            archive = Path(aside, "archive.tar.gz")
            _fetch(archive, progress)
            _unpack(archive, Path(aside, FOLDER))
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(Path(aside, FOLDER), folder)
            except OSError:
                if _missing_files(folder):  # otherwise another process was faster, and all is well
                    raise
    except (OSError, ValueError, EOFError, tarfile.TarError, zlib.error) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        if "NameResolutionError" in why or "Max retries" in why:  # of requests, which quotes three libraries
            why = f"{urlsplit(RELEASE.url).hostname} cannot be reached"
        raise OSError(
            f"CIFAR-10 is not in {folder} and could not be downloaded ({why}); {_manual_download()}"
        ) from None


def _fetch(archive: Path, progress: Progress) -> None:
    """Download the archive; ValueError as soon as it is larger than published, or if it has another sum."""
    import requests  # here, since it takes long and is needed once

    digest = hashlib.md5(usedforsecurity=False)
    with requests.get(RELEASE.url, stream=True, timeout=30) as answer, open(archive, "wb") as file:
        answer.raise_for_status()
        for chunk in answer.iter_content(2**18):
            file.write(chunk)
            digest.update(chunk)
            if file.tell() > RELEASE.size:
                raise ValueError(f"there are more than the {RELEASE.size:,} bytes of the archive")
            progress(file.tell() / RELEASE.size)
    if digest.hexdigest() != RELEASE.md5:
        raise ValueError(f"the MD5 sum of the archive is {digest.hexdigest()}, not {RELEASE.md5}")


def _unpack(archive: Path, folder: Path) -> None:
    """Write the files of the release, and nothing else that an archive may hold: no links, no other paths and sizes."""
    folder.mkdir()
    with tarfile.open(archive) as members:
        for member in members:
            name = member.name.removeprefix(f"{FOLDER}/")
            content = members.extractfile(member) if name in RELEASE.files and member.isfile() else None
            if content is not None and member.size == RELEASE.images * RECORD:
                (folder / name).write_bytes(content.read())
    if missing := _missing_files(folder):
        raise ValueError(f"the archive lacks {', '.join(missing)}")


def normalize(images: Tensor) -> Tensor:
    """Images, uint8 (n, 3, 32, 32), as float32; the training set then has mean 0 and deviation 1 per channel."""
    mean, deviation = _statistics(images.device)
    return (images - mean).div_(deviation)


@cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    mean, deviation = (torch.tensor(numbers, device=device).reshape(3, 1, 1) for numbers in (MEAN, STD))
    return mean, deviation


def draw_augmentations(n: int, generator: torch.Generator) -> tuple[np.ndarray, ...]:
    """Draw the numbers of n augmentations, (n,) each: top and left of the crop, flip, row and column of the cutout."""
    sizes = (2 * PADDING + 1, 2 * PADDING + 1, 2, SIDE, SIDE)
    return np.unravel_index(torch.randint(prod(sizes), (n,), generator=generator).numpy(), sizes)


def augment(images: Tensor, *generators: torch.Generator, cutout: int = 16) -> Tensor:
    """Images, uint8 (n, 3, 32, 32): padded by 4, cropped, flipped or not, normalized, a square of `cutout` set to 0.

    Random numbers are drawn on the CPU, for equal shares of the images from each generator, and sent at once; the rest
    happens where the images are. The padding is black. The square is of the mean color, lies around any pixel, and is
    clipped at the border.
    """
    parts = [draw_augmentations(len(images) // len(generators), generator) for generator in generators]
    top, left, flip, row, column = (np.concatenate(numbers)[:, None] for numbers in zip(*parts, strict=True))
    line = np.arange(SIDE)
    # For each row and column of the result: where it comes from in the padded image, and whether the square meets it.
    down, right = top + line, left + np.where(flip, line[::-1], line)
    met = [(line >= center - cutout // 2) & (line < center - cutout // 2 + cutout) for center in (row, column)]
    plan = torch.from_numpy(np.stack([down * (SIDE + 2 * PADDING), right, *met], 1))  # (n, 4, 32)
    rows, columns, rows_met, columns_met = send(plan, images.device).unbind(1)
    source = (rows[:, :, None] + columns[:, None, :]).flatten(1)
    padded = F.pad(images, [PADDING] * 4).flatten(2)
    result = normalize(padded.gather(2, source[:, None].expand(-1, 3, -1)).view(images.shape))
    return result.masked_fill_(torch.logical_and(rows_met[:, None, :, None], columns_met[:, None, None, :]), 0.0)


def augment_batches(images: ImageSet, chosen: Tensor, generators: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
    """Augmented images, float32 (n, 3, 32, 32), and labels, int64 (n,), of mini-batches of equal size."""
    assert images.labels is not None
    there = send(chosen, images.device)
    return to_fast_layout(augment(images.images[there], *generators)), images.labels[there]


def to_fast_layout(images: Tensor) -> Tensor:
    """On the CPU, convert images to channels last, with which the network is about twice as fast.

    Not for every network: torch 2.13 writes outside of its memory for 1x1 convolutions of stride 2 in that layout,
    which there are none of here.
    """
    return images.contiguous(memory_format=torch.channels_last) if images.device.type == "cpu" else images
