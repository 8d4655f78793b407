"""Images on the device, and mini-batches that follow from a seed and their number alone."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch  # type: ignore[import-untyped]
import torch
from torch import Tensor

AHEAD = 16  # mini-batches that are made at once on a GPU, which is much faster than one by one
SPLIT, SHUFFLE, NUMBERS = range(3)  # independent streams that follow from the same seeds


def data_folder(given: Path | None = None) -> Path:
    """The data folder: the given one (`--data`), else the environment variable ASNG_DATA, else the user's cache folder.

    >>> data_folder(Path("pictures")).name
    'pictures'
    """
    return given or Path(os.environ.get("ASNG_DATA") or pooch.os_cache("asng")).expanduser()


def halves(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers below n in a random order, cut in the middle; the first half is the smaller one if n is odd.

    >>> [sorted(half.tolist()) for half in halves(5, seed=0)]
    [[0, 3], [1, 2, 4]]
    """
    order = torch.from_numpy(np.random.default_rng(_stream((seed,), SPLIT)).permutation(n))
    return order[: n // 2], order[n // 2 :]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images, uint8 (n, 3, height, width), with labels, int64 (n,), or names, on one device."""

    images: Tensor
    labels: Tensor | None = None
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.images.shape[2], self.images.shape[3]

    def subset(self, indices: Tensor) -> "ImageSet":
        """Some of the images, in the order of the indices."""
        there = indices.to(self.device)
        labels = None if self.labels is None else self.labels[there]
        names = None if self.names is None else tuple(self.names[index] for index in indices.tolist())
        return ImageSet(self.images[there], labels, names)


# Makes mini-batches, one after another, of the images with these indices, which are on the CPU; each mini-batch has a
# generator of its own.
Transform = Callable[[ImageSet, Tensor, Sequence[torch.Generator]], tuple[Tensor, ...]]


class Batches:
    """Mini-batches of some images: which images, and the random numbers for them.

    Both follow from seed, stream and the number of the mini-batch alone, so that a run continues from any step without
    a state of the data.

    >>> images = ImageSet(torch.zeros(106, 3, 1, 1))
    >>> batches = Batches(images, torch.arange(100, 106), 2, lambda images, chosen, generators: (chosen,), 7, 0)
    >>> [batches(number)[0].tolist() for number in range(batches.steps)]
    [[102, 101], [105, 104], [103, 100]]
    """

    def __init__(
        self, images: ImageSet, indices: Tensor, size: int, transform: Transform, seed: int, stream: int
    ) -> None:
        """Mini-batches of `size` from the images that `indices` (n,) name; streams of a seed are independent."""
        if size > len(indices):
            raise ValueError(f"batch_size must be at most {len(indices):,}, the number of images, got {size:,}")
        if int(indices.max()) >= len(images):
            raise ValueError(f"num_train_images must be at most {len(images):,}, got {int(indices.max()) + 1:,}")
        self.steps = len(indices) // size  # what does not fill a mini-batch is left out of that epoch
        self._images, self._transform, self._size, self._seeds = images, transform, size, (seed, stream)
        self._indices = self._shuffled = indices.cpu()
        self._epoch = -1
        self._ahead = AHEAD if images.device.type == "cuda" else 1
        self._ready: dict[int, tuple[Tensor, ...]] = {}

    def __call__(self, number: int) -> tuple[Tensor, ...]:
        """A mini-batch on the device of the images; `number` counts over all epochs, from 0."""
        if number not in self._ready:
            numbers = range(number, number + self._ahead)
            indices, generators = zip(*map(self._draw, numbers), strict=True)
            tensors = self._transform(self._images, torch.cat(indices), generators)
            parts = (torch.split(tensor, self._size) for tensor in tensors)
            self._ready = dict(zip(numbers, zip(*parts, strict=True), strict=True))
        return self._ready.pop(number)

    def _draw(self, number: int) -> tuple[Tensor, torch.Generator]:
        """The indices (size,) of a mini-batch and a generator of its own, on the CPU: the same for every device."""
        epoch, step = divmod(number, self.steps)
        if epoch != self._epoch:
            order = np.random.default_rng(_stream(self._seeds, SHUFFLE, epoch)).permutation(len(self._indices))
            self._epoch, self._shuffled = epoch, self._indices[torch.from_numpy(order)]
        state = _stream(self._seeds, NUMBERS, number).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0] >> 1))  # torch takes 63 bits everywhere
        return self._shuffled[step * self._size : (step + 1) * self._size], generator


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device; CUDA takes what it needs from ordinary memory at once, without a synchronization."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def _stream(seeds: tuple[int, ...], *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seeds, spawn_key=key)
