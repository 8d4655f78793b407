"""Faces on the device, which of them train and which test, and mini-batches with holes in them."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asng._progress import Progress, no_progress
from asng._untrusted import read_text
from asng.experiments._images import ImageSet, data_folder, send
from asng.experiments.inpainting.faces import Faces, digest, read_faces

KNOWN = 13_107  # of 65,536 pixels: the chance to be known is 1/5 to within 4e-6
MAX_SHOWN = 10  # names in a message
MAX_TRAIN, MAX_TEST = 101_000, 2_000  # images, as in the paper, where there are as many

Mask = Literal["center", "pixel", "half"]  # what is missing: the center, four fifths of the pixels, or one half
Lists = tuple[Path, Path]  # two text files with the names of training and test images, one in each line
Indices = NDArray[np.int64]


class FaceData(NamedTuple):
    """Faces to train and to test with, how they were told apart, and what was wrong with images that were left out."""

    train: ImageSet
    test: ImageSet
    split: str
    damaged: dict[str, str]


def load_faces(
    given: Path | None = None,
    device: torch.device | str = "cpu",
    *,
    size: int = 64,
    lists: Lists | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> FaceData:
    """The faces in a folder (see `faces_folder`), cropped and resized once; split by lists, its folders or a seed.

    With lists, those are the split; else, if the folder has images in subfolders train and test, these are; else
    2,000 images, or a twentieth of them if that is less, are drawn to test with and at most 101,000 others to train.
    """
    folder = faces_folder(given)
    cached = read_faces(folder, size, progress)
    rows: Sequence[Any] = [
        [row for row, name in enumerate(cached.names) if name.startswith(f"{part}/")] for part in ("train", "test")
    ]
    if lists is not None:
        rows, split = _listed_split(cached, lists), f"listed in {lists[0]} and {lists[1]}"
    elif all(rows):
        split = "folders train and test"
    else:
        rows, split = random_split(len(cached.names), seed), f"drawn with seed {seed}"
    train, test = (_faces(cached, part, device) for part in rows)
    return FaceData(train, test, split, cached.damaged)


def describe_faces(train: ImageSet, test: ImageSet) -> str:
    """The faces of a run in one line: their numbers, and a digest of their names."""
    names = [*(train.names or ()), "", *(test.names or ())]
    named = digest("\n".join(names))[:12]
    return f"{len(train)} to train with, {len(test)} to test with, named {named}"


def load_folder(folder: Path, device: torch.device | str = "cpu") -> tuple[ImageSet, dict[str, str]]:
    """All images of a folder, cropped and resized, and what was wrong with those that were left out."""
    cached = read_faces(folder)
    return _faces(cached, range(len(cached.names)), device), cached.damaged


def faces_folder(given: Path | None = None) -> Path:
    """The folder of faces: the place of the data, or the folder in it that is called faces or celeba-something."""
    folder = data_folder(given)
    folders = [path for path in folder.glob("*") if path.is_dir()]
    inside = sorted(path for path in folders if re.match("faces$|celeba", path.name, re.IGNORECASE))
    if len(inside) > 1:
        raise ValueError(f"which faces: {', '.join(str(path) for path in inside)}? Name one by --data")
    return inside[0] if inside else folder


def random_split(n: int, seed: int) -> tuple[Indices, Indices]:
    """Split n images at random into those that train and those that test.

    >>> [[len(half) for half in random_split(n, seed=0)] for n in (202_599, 1_000)]
    [[101000, 2000], [950, 50]]
    """
    if n < 2:
        raise ValueError(f"a training and a test set need at least 2 images, got {n}")
    test = min(MAX_TEST, max(1, n // 20))
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[test : test + MAX_TRAIN]), np.sort(order[:test])


def _listed_split(cached: Faces, lists: Lists) -> list[list[int]]:
    """The images named in two files, by their paths in the folder or, where only one has it, by the file's name."""
    rows = {name: row for row, name in enumerate(cached.names)}
    files = Counter(_file(name) for name in cached.names)
    rows |= {_file(name): row for name, row in rows.items() if files[_file(name)] == 1}
    damaged = {short for name in cached.damaged for short in (name, _file(name))}
    chosen: list[list[int]] = []
    for path in lists:
        if not path.is_file():
            raise ValueError(f"there is no file {path}; give one with the name of an image in each line")
        lines = read_text(path, "write it in UTF-8, one name in each line").splitlines()
        names = [line.strip() for line in lines if line.strip()]
        if wrong := [name for name in names if name not in rows and name not in damaged]:
            raise ValueError(f"{path} names images that are not in the folder, or not only once: {_join_names(wrong)}")
        chosen.append([rows[name] for name in names if name in rows])
        if not chosen[-1]:
            raise ValueError(f"{path} names no image that can be read; write one name in each line")
    if twice := [cached.names[row] for row, count in Counter(chosen[0] + chosen[1]).items() if count > 1]:
        raise ValueError(f"{lists[0]} and {lists[1]} name images twice: {_join_names(twice)}")
    return chosen


def _file(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")


def _faces(cached: Faces, rows: Indices | Sequence[int], device: torch.device | str) -> ImageSet:
    names = tuple(cached.names[row] for row in rows)
    return ImageSet(torch.from_numpy(cached.images[rows]).to(device), names=names)


def mask_batches(
    mask: Mask, images: ImageSet, chosen: Tensor, generators: Sequence[torch.Generator]
) -> tuple[Tensor, Tensor]:
    """Originals, float32 (n, 3, height, width) in [0, 1], mirrored or not; and the same with holes of zeros.

    All random numbers are drawn on the CPU, so that every device sees the same images; the rest is done
    on the device.
    """
    each = len(chosen) // len(generators)
    drawn = [
        (torch.randint(2, (each,), generator=generator) == 1, draw_masks(mask, each, images.size, generator))
        for generator in generators
    ]
    mirrored, masks = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    original = pick(images.images, chosen, mirrored) / 255
    return original, original * send(masks, images.device)


def pick(images: Tensor, chosen: Tensor, mirrored: Tensor) -> Tensor:
    """Take the chosen (m,) of images (n, channels, height, width), and flip those that are mirrored (m,).

    >>> pick(torch.arange(6).view(2, 1, 1, 3), torch.tensor([1, 1]), torch.tensor([False, True])).tolist()
    [[[[3, 4, 5]]], [[[5, 4, 3]]]]
    """
    channels, height, width = images.shape[1:]
    line = torch.arange(width)
    columns = torch.where(mirrored[:, None], line.flip(0), line)
    plan = send(torch.cat([chosen[:, None], columns], 1), images.device)  # in one piece
    return images[plan[:, 0]].gather(3, plan[:, None, None, 1:].expand(-1, channels, height, -1))


def draw_masks(mask: Mask, n: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Masks (n, 1, height, width) on the CPU, True where an image is known; the first of many are those of few.

    The generator is one of the CPU, so that every device gets the same masks. Of the three, only `pixel` needs many
    numbers, and 16 bits each are enough: for 16 images of 64x64 that takes a tenth of a millisecond.

    >>> draw_masks("center", 1, (4, 4), torch.Generator())[0, 0].int()
    tensor([[1, 1, 1, 1],
            [1, 0, 0, 1],
            [1, 0, 0, 1],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    height, width = size
    if mask == "center":  # unknown: the rows and columns from one quarter to three quarters, 16 to 47 of 64
        known = torch.ones(n, 1, height, width, dtype=torch.bool)
        known[:, :, height // 4 : height - height // 4, width // 4 : width - width // 4] = False
        return known
    if mask == "pixel":
        words = torch.empty((n * height * width + 3) // 4, dtype=torch.int64)
        words.random_(-(2**63), None, generator=generator)  # all 64 bits
        return words.view(torch.int16)[: n * height * width].view(n, 1, height, width) < KNOWN - 2**15
    return _halves(height, width)[torch.randint(4, (n,), generator=generator)]


def fixed_masks(mask: Mask, n: int, size: tuple[int, int], seed: int) -> Tensor:
    """The masks (n, 1, height, width) of a test set: the same for the same seed."""
    return draw_masks(mask, n, size, torch.Generator().manual_seed(seed))


def _halves(height: int, width: int) -> Tensor:
    """Masks (4, 1, height, width) that lack the left, right, upper or lower half; of an odd size the larger one."""
    row, column = torch.arange(height)[:, None], torch.arange(width)[None, :]
    left, top = column < (width + 1) // 2, row < (height + 1) // 2
    right, bottom = column >= width // 2, row >= height // 2
    everywhere = torch.ones(height, width, dtype=torch.bool)
    return torch.stack([everywhere & ~half for half in (left, right, top, bottom)])[:, None]
