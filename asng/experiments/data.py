"""Shared by the image experiments: the data folder, halves, and the order of mini-batches."""

import os
from pathlib import Path

import numpy as np
import pooch  # type: ignore[import-untyped]
import torch
from torch import Tensor

SPLIT, SHUFFLE, NUMBERS = range(3)  # independent streams that follow from the same seeds


def data_folder(given: Path | None = None) -> Path:
    """The data folder: the given one (`--data`), else the environment variable ASNG_DATA, else the user's cache folder.

    >>> data_folder(Path("pictures")).name
    'pictures'
    """
    if given is not None:
        return given
    return Path(os.environ.get("ASNG_DATA") or pooch.os_cache("asng")).expanduser()


def halves(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers below n in a random order, cut in the middle; the first half is the smaller one if n is odd.

    >>> [sorted(half.tolist()) for half in halves(5, seed=0)]
    [[0, 3], [1, 2, 4]]
    """
    if n < 2:
        raise ValueError(f"two halves need at least 2 images, got {n}")
    if seed < 0:
        raise ValueError(f"a seed is needed that is not below 0, got {seed}")
    order = torch.from_numpy(np.random.default_rng(_stream((seed,), SPLIT)).permutation(n))
    return order[: n // 2], order[n // 2 :]


class BatchOrder:
    """Which images make up a mini-batch, and the random numbers for it.

    Both depend on the seeds and the number of the mini-batch alone, so that a run continues from any
    step without a state of the data.

    >>> order = BatchOrder(torch.arange(100, 106), 2, 7)
    >>> [order(number)[0].tolist() for number in range(order.steps)]
    [[102, 101], [105, 104], [103, 100]]
    """

    def __init__(self, indices: Tensor, size: int, *seeds: int) -> None:
        """Mini-batches of `size` from `indices` (n,); several seeds, such as (seed, stream), are mixed."""
        if indices.ndim != 1 or indices.dtype != torch.int64:
            shown = f"{indices.dtype} of shape {tuple(indices.shape)}"
            raise ValueError(f"indices must be a vector of int64, such as torch.arange(n), got {shown}")
        if size < 1:
            raise ValueError(f"a mini-batch needs at least 1 image, got size {size}")
        if size > len(indices):
            raise ValueError(f"mini-batches of {size} cannot be made of {len(indices)} images; choose a smaller batch")
        if not seeds or min(seeds) < 0:
            raise ValueError(f"at least one seed is needed, and none below 0, got {seeds}")
        self.steps = len(indices) // size  # what does not fill a mini-batch is left out of that epoch
        self._indices = indices.cpu()
        self._size = size
        self._seeds = seeds
        self._epoch = -1
        self._shuffled = self._indices

    def __call__(self, number: int) -> tuple[Tensor, torch.Generator]:
        """The indices (size,) of a mini-batch and a generator of its own; `number` counts over all epochs, from 0.

        Random numbers are drawn on the CPU so that every device sees the same ones.
        """
        if number < 0:
            raise ValueError(f"mini-batches are counted from 0, got number {number}")
        epoch, step = divmod(number, self.steps)
        if epoch != self._epoch:
            order = np.random.default_rng(_stream(self._seeds, SHUFFLE, epoch)).permutation(len(self._indices))
            self._epoch, self._shuffled = epoch, self._indices[torch.from_numpy(order)]
        state = _stream(self._seeds, NUMBERS, number).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0] >> 1))  # torch takes 63 bits everywhere
        return self._shuffled[step * self._size : (step + 1) * self._size], generator


def _stream(seeds: tuple[int, ...], *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seeds, spawn_key=key)
